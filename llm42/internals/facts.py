"""What a worker computes with: all that may change its bits, and that no configuration names.

Relies on vLLM 0.32.0: ``attn_groups`` of the model runner, ``llm42_weights_digest`` (:mod:`llm42.internals.weights`),
``envs.compile_factors`` naming the switches that may change what vLLM computes, and its copy of ``pynvml``.
"""

import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

LIBRARIES = (
    *("vllm", "torch", "triton", "flashinfer", "flash-attn", "nvidia-", "mkl", "intel-openmp", "onednn"),
    *("xgrammar", "transformers", "tokenizers"),
)
"""Distributions that bring kernels or decide what may be chosen, by the beginning of their names."""
SWITCHES = ("ATEN_", "DNNL_", "ONEDNN_", "MKL_", "OMP_", "KMP_", "GOMP_", "CUBLAS", "CUDNN_", "NVIDIA_TF32", "TORCH_")
"""Environment variables by which those libraries choose how to compute, by the beginning of their names."""

LOADED = ("libgomp", "libiomp", "libomp", "libmkl", "libdnnl", "libonednn", "libcublas", "libcudnn")
"""Shared objects that decide it too, by the beginning of their names."""


def worker_facts(runner: Any) -> dict[str, Any]:
    """Of the process that calls, in JSON types. ``runner`` is vLLM's model runner, its model loaded."""
    builders = [group.get_metadata_builder() for group in runner.attn_groups[0]]
    return {
        "weights": runner.model.llm42_weights_digest,
        "dtype": str(runner.model_config.dtype),
        "quantization": str(runner.model_config.quantization),
        "kv_cache_dtype": str(runner.vllm_config.cache_config.cache_dtype),
        "attention": sorted({group.backend.get_name() for group in runner.attn_groups[0]}),
        "attention_isa": sorted({str(getattr(builder, "isa", "")) for builder in builders}),
        "device": _device(runner.device),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "torch_build": _torch_build(),
        "libraries": _libraries(),
        "loaded": _loaded(),
        "env": inherited_switches(os.environ),
    }


def inherited_switches(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables in ``environ`` that may change what is computed, whoever has set them."""
    from vllm import envs

    names = envs.compile_factors().keys()
    return {name: value for name, value in environ.items() if name in names or name.startswith(SWITCHES)}


def _device(device: torch.device) -> dict[str, Any]:
    if device.type == "cpu":
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "processors": properties.multi_processor_count,  # tiles are handed out by it
        "driver": _driver(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def _driver() -> str:
    if torch.version.cuda is None:
        return str(torch.version.hip)
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _cpu() -> dict[str, Any]:
    """Libraries choose instructions and blocking by these."""
    found = torch.cpu.get_capabilities()
    return {
        "name": str(found.get("cpu_name", "")),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "instructions": sorted(name for name, value in found.items() if value is True),
        "cache_bytes": {name: value for name, value in found.items() if name.endswith("_cache_size")},
    }


def _torch_build() -> dict[str, Any]:
    """Which BLAS, oneDNN, CUDA and cuDNN torch was built with, in its own words."""
    text = torch.__config__.show()
    lines = [line.strip().removeprefix("- ") for line in text.splitlines()[1:]]
    return {
        "with": [line for line in lines if not line.startswith("Build settings")],
        "digest": hashlib.sha256(text.encode()).hexdigest(),
    }


def _libraries() -> dict[str, str]:
    """Version of each, and the digest of its shared objects as its wheel lists them: two builds of one version differ.

    A library that was built here, and not installed from a wheel, may list none.
    """
    found = {}
    for distribution in distributions():
        name = str(distribution.metadata["Name"]).lower().replace("_", "-")
        if name.startswith(LIBRARIES):
            files = [file for file in distribution.files or () if ".so" in file.name and file.hash is not None]
            listed = "\n".join(sorted(f"{file} {file.hash.value}" for file in files if file.hash))
            digest = f" {hashlib.sha256(listed.encode()).hexdigest()}" if files else ""
            found[name] = f"{distribution.version}{digest}"
    return found


def _loaded() -> list[str]:
    """The thread and BLAS libraries that are in this process: a preloaded one replaces a wheel's own."""
    maps = Path("/proc/self/maps")
    paths = {line.rpartition("/")[2] for line in maps.read_text().splitlines()} if maps.exists() else set()
    return sorted(name for name in paths if name.startswith(LOADED))
