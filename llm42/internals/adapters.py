"""LoRA adapters in vLLM's engines.

Relies on vLLM 0.32.0: ``MaxLoRARanks``; ``add_lora`` of an engine core's client and of the model runner, and its
``_set_active_loras``, which takes an adapter's number for each token (of the layers) and for each row of the LM head;
``add_dummy_lora`` making an adapter of zeros; adapters filling slots in order; and the frontend numbering
``--lora-modules`` from 1.

vLLM's CPU kernels give a token without an adapter the *last* slot's (index -1; vllm#48421). So there is always one slot
more than adapters: on the fast path it stays empty, and a verifier fills it with zeros.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from llm42.adapters import Adapter


def adapter_engine_args(adapters: Sequence[Adapter]) -> dict[str, Any]:
    """Arguments of ``vllm.EngineArgs`` by which all of ``adapters`` stay loaded; none where there are none.

    Raises ValueError if one of them is wider than vLLM serves.
    """
    if not adapters:
        return {}
    from vllm.config.lora import MaxLoRARanks

    ranks: tuple[int, ...] = get_args(MaxLoRARanks)
    widest = max(adapters, key=lambda adapter: adapter.rank)
    if widest.rank > max(ranks):
        raise ValueError(f"the adapter {widest.name!r} has rank {widest.rank}, but vLLM serves at most {max(ranks)}")
    rank = min(rank for rank in ranks if rank >= widest.rank)
    return {"enable_lora": True, "max_loras": len(adapters) + 1, "max_lora_rank": rank}


def adapter_arguments(paths: Mapping[str, str]) -> list[str]:
    """Arguments of ``vllm serve`` for the frontend: it serves these names, and numbers them in this order from 1."""
    modules = (json.dumps({"name": name, "path": path}) for name, path in paths.items())
    return ["--enable-lora", "--lora-modules", *modules] if paths else []


def load_adapters(client: Any, adapters: Sequence[Adapter]) -> None:
    """Into an engine core, for good. Raises what vLLM raises."""
    for adapter in adapters:
        client.add_lora(lora_request(adapter))


def lora_request(adapter: Adapter) -> Any:
    """What vLLM knows it by."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.name, adapter.number, str(adapter.path))


class SlotAdapters:
    """An adapter for each slot of a pass. One without has that of zeros, so every pass runs the same kernels.

    ``paths`` are local directories by name, in the order of their numbers; they are loaded here, for good. Raises what
    vLLM raises for an adapter that it cannot serve.
    """

    def __init__(self, runner: Any, paths: Mapping[str, str]) -> None:
        self._runner = runner
        adapters = [Adapter(name, number, Path(path)) for number, (name, path) in enumerate(paths.items(), start=1)]
        zeros = Adapter("", len(paths) + 1, Path("zeros"))
        for adapter in adapters:
            runner.add_lora(lora_request(adapter))
        runner.lora_manager.add_dummy_lora(lora_request(zeros), rank=1)
        self._numbers = {adapter.name: adapter.number for adapter in [*adapters, zeros]}
        self._requests = {lora_request(adapter) for adapter in [*adapters, zeros]}

    def wear(self, names: Sequence[str]) -> None:
        """Until the next call, slot i of what is computed has the adapter ``names[i]``."""
        numbers = tuple(self._numbers[name] for name in names)
        self._runner._set_active_loras(numbers, numbers, self._requests)
