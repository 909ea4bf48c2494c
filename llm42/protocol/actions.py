"""What a session asks of the world. The world answers by calling the session's event methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Finish(Enum):
    """Why a request ended, by committed tokens alone."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class StartDraft:
    """Draft up to ``max_tokens`` tokens after ``tokens``, as stream ``stream``."""

    stream: int
    tokens: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class StopDraft:
    """Stop stream ``stream``; whatever it still says is ignored."""

    stream: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Replay packed ``tokens`` and bring the canonical tokens after positions ``start ..``."""

    call: int
    tokens: bytes
    start: int
    count: int
    """Canonical tokens expected: one for each position from ``start`` to the end of ``tokens``."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Canonical tokens, final: they may leave for the client. ``logprobs`` are their fp32 bits."""

    tokens: Sequence[int]
    logprobs: bytes
    ranks: Sequence[int]
    finish: Finish | None
    stop_token: int | None
    """The stop token id that ended the request, where it is not the model's end-of-sequence token."""


Action = StartDraft | StopDraft | Verify | Commit
