"""What a session asks of the world. The world answers by calling the session's event methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from llm42.protocol.messages import Question, Scores


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
    """Have ``question`` answered."""

    call: int
    question: Question


@dataclass(frozen=True, slots=True)
class Commit:
    """Canonical tokens, final: they may leave for the client."""

    scores: Scores
    finish: Finish | None = None
    stop_token: int | None = None
    """The stop token id that ended the request, where it is not the model's end-of-sequence token."""
    prompt: Scores | None = None
    """With the first commit, if asked for: the prompt's tokens but the first."""


Action = StartDraft | StopDraft | Verify | Commit
