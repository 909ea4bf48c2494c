"""Load weights as vLLM does and digest every tensor on the way.

The digest is taken in flight because afterwards it is too late: on CPU vLLM packs linear weights into
opaque oneDNN handles and empties the parameters, and quantised formats repack theirs on any device.

Relies on vLLM 0.32.0: ``register_model_loader`` and ``DefaultModelLoader.get_all_weights`` being what
``load_weights`` feeds to the model. Importing this module registers the loader.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

LOAD_FORMAT = "llm42"
"""The ``load_format`` engine argument that selects :class:`DigestingLoader`."""


@register_model_loader(LOAD_FORMAT)
class DigestingLoader(DefaultModelLoader):  # type: ignore[misc]
    """vLLM's default loader; leaves the digest on the model as ``llm42_weights_digest``."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(replace(load_config, load_format="auto"))

    def load_weights(self, model: Any, model_config: Any) -> None:
        self._digests: dict[str, str] = {}
        super().load_weights(model, model_config)
        lines = "\n".join(f"{name} {digest}" for name, digest in sorted(self._digests.items()))
        model.llm42_weights_digest = hashlib.sha256(lines.encode()).hexdigest()

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in super().get_all_weights(model_config, model):
            self._digests[name] = tensor_digest(tensor)
            yield name, tensor


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 of dtype, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
