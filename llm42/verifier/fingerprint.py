"""The identity of a verifier: a digest of everything that may change canonical bits."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llm42 import __version__
from llm42.internals import VLLM_VERSION
from llm42.verifier.passes import PassShape

ABSENT = "(absent)"
"""Stands for a part that only the other fingerprint has."""

# Says where a model came from, not what it computes.
_PROVENANCE = ("_name_or_path", "transformers_version")
# How much is cached, not how it is computed: a page holds the same bits wherever it lies.
_CACHE_SIZES = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
# Of a model's directory: what turns a request into tokens, and tokens into text.
_TEXT_FILES = (
    *("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"),
    *("chat_templates/*.jinja", "additional_chat_templates/*.jinja"),
)
_GENERATION = "generation_config.json"
# Subpackages that make a replay. Not all that is in them does: better a new fingerprint too many than one too few.
_CANONICAL = ("internals", "protocol", "sampling", "verifier")
# A word of a name whose value is nobody's business. The parts are published, and what a token is changes no bit.
_SECRET = frozenset("apikey credential credentials key passwd password secret token".split())


def fingerprint_parts(
    shape: PassShape, hf_config: dict[str, Any], env: dict[str, str], facts: dict[str, Any], ranks: int
) -> dict[str, Any]:
    """What the fingerprint is made of, in JSON types: kept to explain why two verifiers differ.

    ``facts`` are those of ``ReplayExtension.llm42_setup``, and whatever else is known; ``ranks`` is the
    tensor-parallel size.
    """
    from llm42.sampling import SELECT_VERSION  # imports torch, which those who only compare have no use for

    parts = {
        **facts,
        "model_config": {name: value for name, value in hf_config.items() if name not in _PROVENANCE},
        "window_size": shape.window,
        "verify_batch_size": shape.rows,
        "block_size": shape.block,
        "max_model_len": shape.context,
        "tensor_parallel_size": ranks,
        "env": {name: value for name, value in {**facts["env"], **env}.items() if not _secret(name)},
        "vllm": VLLM_VERSION,
        "select": SELECT_VERSION,
        "llm42": {"version": __version__, "code": _code()},
    }
    normal: dict[str, Any] = json.loads(_canonical(parts))
    return normal


def fingerprint(parts: dict[str, Any]) -> str:
    """SHA-256 (hex) of the parts as canonical JSON."""
    return hashlib.sha256(_canonical(parts).encode()).hexdigest()


def engine_parts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of an engine's further arguments that may change what it computes."""
    return {name: value for name, value in arguments.items() if name not in _CACHE_SIZES and not _secret(name)}


def text_parts(model: str, revision: str | None, arguments: Sequence[str]) -> dict[str, Any]:
    """The parts that decide what a request's tokens are: digests of the model's generation config, chat template and
    tokenizer, and the frontend's further ``arguments``, with the digests of the files that they name.

    ``model`` is a directory or a hub id; small files of the latter are downloaded unless they are here.
    """
    files = _text_files(_directory(model, revision))
    generation, templates = files.pop(_GENERATION, None), [name for name in files if name.startswith("chat_template")]
    return {
        "generation_config": generation,
        "chat_template": {name: files.pop(name) for name in templates},
        "tokenizer": files,
        "frontend": [_argument(argument) for argument in _public(arguments)],
    }


def text_digest(parts: dict[str, Any]) -> str:
    """Of the :func:`text_parts` among ``parts``."""
    return fingerprint({name: parts[name] for name in ("generation_config", "chat_template", "tokenizer", "frontend")})


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where two sets of parts differ: dotted name to both values, :data:`ABSENT` where there is none."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(one.keys() | other.keys()):
        left, right = one.get(name, ABSENT), other.get(name, ABSENT)
        if isinstance(left, dict) and isinstance(right, dict):
            found |= {f"{name}.{inner}": pair for inner, pair in differences(left, right).items()}
        elif left != right:
            found[name] = (left, right)
    return found


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _directory(model: str, revision: str | None) -> Path:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, allow_patterns=list(_TEXT_FILES)))


def _text_files(directory: Path) -> dict[str, str]:
    """Digests by name; not of the model's own configuration, and of what says where its weights lie."""
    paths = [path for pattern in _TEXT_FILES for path in directory.glob(pattern)]
    digests = {str(path.relative_to(directory)): _file_digest(path) for path in paths}
    return {name: digests[name] for name in digests if name != "config.json" and not name.endswith(".index.json")}


def _code() -> str:
    """Of the part of this package that computes canonical bits: a change there is another function."""
    package = Path(__file__).parents[1]
    paths = sorted(path for name in _CANONICAL for path in (package / name).rglob("*.py"))
    lines = [f"{path.relative_to(package)} {_file_digest(path)}" for path in paths]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _secret(name: str) -> bool:
    """Whether ``name`` (of a variable, or of an argument with its dashes) says that its value is a secret."""
    return not _SECRET.isdisjoint(name.lower().replace("-", "_").split("_"))


def _public(arguments: Sequence[str]) -> Iterator[str]:
    """All but secrets: the flag, and the values behind it."""
    secret = False
    for argument in arguments:
        if argument.startswith("-"):
            secret = _secret(argument.partition("=")[0])
        if not secret:
            yield argument


def _argument(argument: str) -> str:
    path = argument.partition("=")[2] or argument
    if os.path.isfile(path):  # pathlib's raises where the value is a whole template, too long for a name
        return f"{argument} {_file_digest(Path(path))}"
    return f"{argument} {fingerprint(_text_files(Path(path)))}" if os.path.isdir(path) else argument


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
