"""Models that need no hub: ``demo`` answers questions, ``tiny`` is for tests."""

from llm42.models.demo import demo_model
from llm42.models.tiny import tiny_adapter, tiny_model

__all__ = ["demo_model", "resolve_model", "tiny_adapter", "tiny_model"]


def resolve_model(name: str) -> str:
    """Turn ``demo`` and ``tiny`` into directories, made on first use; any other name is for vLLM to judge."""
    if name == "demo":
        return str(demo_model())
    if name == "tiny":
        return str(tiny_model())
    return name
