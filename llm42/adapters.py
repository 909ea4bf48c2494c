"""LoRA adapters as peft writes them: which directory one is, how wide it is, and what is in it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from llm42.config import Config

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A local one. ``number`` is vLLM's name for it, from 1 on, and the same in all processes of a deploy."""

    name: str
    number: int
    path: Path

    @property
    def rank(self) -> int:
        """Of its widest matrices. Raises ValueError if the directory holds no LoRA adapter."""
        if not (self.path / CONFIG).is_file() or not any((self.path / name).is_file() for name in _WEIGHTS):
            raise ValueError(f"{self.path} is no LoRA adapter: it needs {CONFIG} and {_WEIGHTS[0]}")
        config = json.loads((self.path / CONFIG).read_text())
        if not isinstance(config.get("r"), int):
            raise ValueError(f"{self.path / CONFIG} has no rank `r`: it is no LoRA adapter")
        ranks: list[int] = [config["r"], *(config.get("rank_pattern") or {}).values()]
        return max(ranks)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the names and contents of its files."""
        digest = hashlib.sha256()
        for name in (CONFIG, *_WEIGHTS):
            if (self.path / name).is_file():
                with (self.path / name).open("rb") as file:
                    digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()


def adapters_of(config: Config) -> list[Adapter]:
    """Those of a deployment, in the order of their numbers. A hub id is downloaded unless it is here."""
    return [Adapter(name, number, _directory(config.adapters[name])) for name, number in config.adapter_numbers.items()]


def _directory(path: str) -> Path:
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, allow_patterns=[CONFIG, *_WEIGHTS]))
