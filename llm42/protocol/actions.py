"""What a session asks of the world. The world answers by calling the session's event methods."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from llm42.protocol.messages import Haste, Question, Scores


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
    haste: Haste = Haste.URGENT


@dataclass(frozen=True, slots=True)
class Commit:
    """Canonical tokens, final: they may leave for the client."""

    scores: Scores
    finish: Finish | None = None
    stop_token: int | None = None
    """The stop token id that ended the request, where it is not the model's end-of-sequence token."""
    prompt: Scores | None = None
    """With the first commit, if asked for: the prompt's tokens but the first."""

    def singly(self) -> "Iterator[Commit]":
        """The same, a token at a time."""
        last = len(self.scores) - 1
        for i in range(last + 1):
            prompt = self.prompt if i == 0 else None
            ends = (self.finish, self.stop_token) if i == last else (None, None)
            yield Commit(self.scores[i : i + 1], *ends, prompt)


Action = StartDraft | StopDraft | Verify | Commit
