"""Every touch of vLLM's and Ray's internals, and nothing else.

Each module says what it relies on. None of it is public API, so both are pinned to one exact version and
checked before use: a silent change here could change bits.
"""

from importlib import import_module

VLLM_VERSION = "0.32.0"
RAY_VERSION = "2.60.0"


class VersionMismatchError(RuntimeError):
    """The installed vLLM or Ray is not the one this package was written and tested against."""


def require_vllm() -> None:
    """Raise :class:`VersionMismatchError` unless vLLM is exactly :data:`VLLM_VERSION` (any local build suffix)."""
    _require("vllm", "vllm.version", VLLM_VERSION, "pip install 'llm42[gpu]' (or 'llm42[cpu]')")


def require_ray() -> None:
    """Raise :class:`VersionMismatchError` unless Ray is exactly :data:`RAY_VERSION`."""
    _require("ray", "ray", RAY_VERSION, "pip install llm42")


def _require(package: str, module: str, wanted: str, remedy: str) -> None:
    try:
        found = str(import_module(module).__version__)
    except ModuleNotFoundError as error:
        raise VersionMismatchError(f"{package} is not installed; llm42 needs {package}=={wanted}: {remedy}") from error
    if found.partition("+")[0] != wanted:
        raise VersionMismatchError(f"{package} is {found}; llm42 needs exactly {wanted}: {remedy}")
