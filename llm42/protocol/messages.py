"""What a router and a verifier say to each other. Plain data: picklable, no numpy, no torch."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm42.protocol.selection import GREEDY, Selection

TOKEN_TYPECODE = "i"  # int32, native order: what the verifier hands to the model
_TOKEN_BYTES = array(TOKEN_TYPECODE).itemsize


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as consecutive native int32."""
    return array(TOKEN_TYPECODE, tokens).tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """Inverse of :func:`pack_tokens`."""
    tokens = array(TOKEN_TYPECODE)
    tokens.frombytes(data)
    return tokens.tolist()


def token_digest(tokens: bytes) -> bytes:
    """SHA-256 of packed tokens: names the exact question that a reply answers."""
    return hashlib.sha256(tokens).digest()


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Ask for the canonical next tokens of the sequence ``t[0..n)``.

    The answer is a pure function of these fields and the verifier's fingerprint, so any verifier can
    give it and asking twice is harmless.
    """

    request_id: str
    """For logs only."""
    tokens: bytes
    """Packed ``t[0..n)``: prompt, committed tokens and candidates."""
    start: int
    """First position whose next token is asked for; ``0 <= start < n``."""
    fingerprint: str | None = None
    """The fingerprint that the caller builds on; None accepts any (the first call of a request)."""
    selection: Selection = GREEDY
    fresh: bool = False
    """Compute everything anew, in other rows than usual, and leave nothing in the cache: to audit an answer."""

    def answered_by(self, reply: "ReplayReply") -> bool:
        """See :meth:`ReplayReply.answers`."""
        return reply.answers(self.tokens, self.start)


@dataclass(frozen=True, slots=True)
class ReplayReply:
    """The canonical tokens that follow positions ``start .. n-1``.

    ``tokens[i]`` is the canonical token at position ``start + i + 1``, valid if the candidates up to
    ``start + i`` are themselves canonical.
    """

    fingerprint: str
    start: int
    digest: bytes
    """:func:`token_digest` of the request's tokens."""
    tokens: Sequence[int]
    logprobs: bytes
    """fp32 bits of the canonical tokens' log-probabilities, ``len(tokens)`` values."""
    ranks: Sequence[int]
    """1-based rank of each canonical token in its distribution."""
    idle_rows: int
    """Rows of a replay pass that found no work when this reply left: room to verify earlier."""
    replica_id: str = ""
    """Who answered: its cache holds this sequence, so ask it again. A hint, not part of the answer."""

    def answers(self, tokens: bytes, start: int) -> bool:
        """Whether this answers that very question (a late reply, or one for other tokens, does not)."""
        count = len(tokens) // _TOKEN_BYTES - start
        return (
            self.start == start
            and len(self.tokens) == len(self.ranks) == count
            and len(self.logprobs) == 4 * count
            and self.digest == token_digest(tokens)
        )
