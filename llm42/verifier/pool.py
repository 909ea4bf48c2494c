"""Who may serve in a pool of verifiers: those that compute as the first one of it did."""

import json
from typing import Any

from llm42.internals.pool_registry import agree
from llm42.verifier.fingerprint import differences, fingerprint


class PoolMismatch(RuntimeError):
    """A verifier that computes other bits than its pool, and so must not answer anything."""


def join_pool(pool: str, parts: dict[str, Any]) -> None:
    """Hold this verifier to its pool, or the pool to it if it is the first.

    Raises :class:`PoolMismatch` with both fingerprints and every part that differs.
    """
    agreed = json.loads(agree(pool, json.dumps(parts).encode()))
    if agreed == parts:
        return
    lines = [f"  {name}: {ours!r}, the pool {theirs!r}" for name, (ours, theirs) in differences(parts, agreed).items()]
    raise PoolMismatch(
        f"this verifier computes as {fingerprint(parts)}, its pool as {fingerprint(agreed)}. What differs:\n"
        + "\n".join(lines)
        + "\nIf that is on purpose, deploy again: a new deploy is a new pool."
    )
