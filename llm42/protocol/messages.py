"""What a router and a verifier say to each other. Plain data: picklable, no numpy, no torch."""

import hashlib
import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from llm42.protocol.selection import GREEDY, Selection

TOKEN_TYPECODE = "i"  # int32, native order: what the verifier hands to the model
WORD = array(TOKEN_TYPECODE).itemsize
"""Bytes of an int32 or an fp32, of which all that is packed is made."""


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as consecutive native int32."""
    return array(TOKEN_TYPECODE, tokens).tobytes()


def prompt_digest(tokens: Iterable[int]) -> str:
    """SHA-256, in hexadecimal, of token ids as consecutive little-endian int32."""
    packed = array(TOKEN_TYPECODE, tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return hashlib.sha256(packed.tobytes()).hexdigest()


def unpack_tokens(data: bytes) -> list[int]:
    """Inverse of :func:`pack_tokens`."""
    tokens = array(TOKEN_TYPECODE)
    tokens.frombytes(data)
    return tokens.tolist()


@dataclass(frozen=True, slots=True)
class Question:
    """What are the canonical next tokens of the sequence ``t[0..n)``?

    The answer is a pure function of these fields and the verifier's fingerprint, so any verifier can
    give it and asking twice is harmless.
    """

    tokens: bytes
    """Packed ``t[0..n)``: prompt, committed tokens and candidates."""
    start: int
    """First position whose next token is asked for; ``0 <= start < n``."""
    selection: Selection = GREEDY
    given: int = 0
    """For so many positions from ``start`` on, the token that the sequence has next is scored, and none chosen."""
    top: int = 0
    """How many of the most probable tokens to name beside each."""
    adapter: str = ""
    """Name of the LoRA adapter that the model has on; "" for none."""

    @property
    def length(self) -> int:
        """n."""
        return len(self.tokens) // WORD

    @property
    def count(self) -> int:
        """Tokens asked for: one for each position from ``start`` to the end."""
        return self.length - self.start

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        fields = [self.start, self.given, self.top, self.adapter, self.selection.fields]
        head = json.dumps(fields, separators=(",", ":"))
        return hashlib.sha256(head.encode() + b"\0" + self.tokens).digest()


@dataclass(frozen=True, slots=True)
class Scores:
    """Consecutive tokens, and what the model thinks of each."""

    tokens: Sequence[int]
    logprobs: bytes
    """fp32 bits of their log-probabilities."""
    ranks: Sequence[int]
    """1-based, in the distribution."""
    top: int = 0
    top_tokens: bytes = b""
    """Packed [tokens, top]: the most probable ones in falling order."""
    top_logprobs: bytes = b""
    """fp32 bits [tokens, top]."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> "Scores":
        """Consecutive ones of these; ``part`` has no step."""
        first, end, _ = part.indices(len(self))
        one, wide = slice(WORD * first, WORD * end), slice(WORD * first * self.top, WORD * end * self.top)
        return Scores(
            self.tokens[part],
            self.logprobs[one],
            self.ranks[part],
            self.top,
            self.top_tokens[wide],
            self.top_logprobs[wide],
        )

    @property
    def complete(self) -> bool:
        """Whether every token has all of it."""
        one = WORD * len(self)
        return (
            len(self.ranks) == len(self)
            and len(self.logprobs) == one
            and len(self.top_tokens) == len(self.top_logprobs) == one * self.top
        )


class Haste(IntEnum):
    """Who waits for a replay."""

    EARLY = 0
    """Nobody: no window is full yet, and nothing ends. It shall have the rows that others leave, and company."""
    SOON = 1
    """Nobody yet, but the draft is about to end, or in doubt: rows that others leave, without delay."""
    DUE = 2
    """Nobody: a window is full, but drafting goes on meanwhile, for another window at least. It shall have company."""
    URGENT = 3
    """The client, for its first token or its last; or the draft, which has to stop soon."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Ask a verifier."""

    request_id: str
    """For logs, and to tell the replays of one request from those of others."""
    question: Question
    fingerprint: str | None = None
    """The fingerprint that the caller builds on; None accepts any (the first call of a request)."""
    text: str | None = None
    """The digest of the tokenizer and templates that have made the prompt's tokens; None: of no others than these."""
    cache_salt: str = ""
    """Cached work is shared among requests of one salt."""
    fresh: bool = False
    """Compute everything anew, in other rows than usual, and leave nothing in the cache: to audit an answer."""
    haste: Haste = Haste.URGENT
    trace: str | None = None
    """Where in a trace this belongs, as a W3C ``traceparent``; None: nobody wants to know. Not part of the question."""


@dataclass(frozen=True, slots=True)
class ReplayReply:
    """The canonical tokens that follow the positions asked for.

    The i-th is valid if the candidates before it are themselves canonical. Where there is no valid choice, as behind
    a candidate that is not canonical there may be, the reply ends.
    """

    fingerprint: str
    digest: bytes
    """That of the question."""
    scores: Scores
    idle_rows: int
    """Rows of a replay pass that found no work when this reply left: room to verify earlier."""
    replica_id: str = ""
    """Who answered: its cache holds this sequence, so ask it again. A hint, not part of the answer."""

    def answers(self, question: Question) -> bool:
        """Whether this answers that very question (a late reply, or one for other tokens, does not)."""
        return (
            question.given < len(self.scores) <= question.count
            and self.scores.top == question.top
            and self.scores.complete
            and self.digest == question.digest
        )
