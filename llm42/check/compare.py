"""Completions compared as bits: where two differ, and how many kinds of each prompt there were.

Knows no network and no terminal. Memory is bounded by the prompts: of a completion only two digests are
kept, and of a prompt its first completion and its worst divergence.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

BEFORE = 12
"""Tokens (or characters) shown before a divergence."""
AFTER = 8
"""Tokens (or characters) shown from a divergence on."""


def float_bits(value: float | None) -> str | None:
    """The 16 hex digits of a float64, most significant first: tells 0.0 from -0.0 and one ulp from none."""
    return None if value is None else struct.pack(">d", value).hex()


@dataclass(frozen=True, slots=True)
class Completion:
    """What a server answered. The tuples, where the server gave them, have one entry per token."""

    text: str
    finish_reason: str | None
    tokens: tuple[str, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None

    @property
    def logprob_bits(self) -> tuple[str | None, ...] | None:
        return None if self.logprobs is None else tuple(map(float_bits, self.logprobs))

    def output_digest(self) -> bytes:
        """SHA-256 of everything but the logprobs."""
        return _digest([self.text, self.finish_reason, self.tokens, self.token_ids])

    def logprob_digest(self) -> bytes:
        """SHA-256 of the logprobs' bits."""
        return _digest(self.logprob_bits)


def _digest(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value).encode()).digest()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two completions, from the divergence on."""

    continuation: tuple[str, ...]
    logprob: float | None
    finish_reason: str | None

    @property
    def bits(self) -> str | None:
        return float_bits(self.logprob)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two completions of a prompt.

    ``position`` counts tokens of the output from 0, or characters of the text where ``unit`` says so: where
    a server gives no tokens, or equal tokens and another text. ``logprob_position`` is the first token whose
    logprob differs, which may come earlier than the token that does.
    """

    kind: Literal["token", "text", "finish_reason", "logprob"]
    unit: Literal["token", "character"]
    position: int
    logprob_position: int | None
    before: tuple[str, ...]
    alone: Side
    other: Side


def first_difference(a: Sequence[object] | None, b: Sequence[object] | None) -> int | None:
    """Index of the first difference, where the shorter one ends at the latest; None if there is none.

    No sequence differs at 0 from a sequence, an empty one included.
    """
    if a is None or b is None:
        return None if a is b else 0
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def compare(alone: Completion, other: Completion) -> Divergence | None:
    """Where ``other`` first differs from ``alone``; None exactly if both digests agree.

    A difference in the output is reported before one in the logprobs, whichever comes first in the text.
    """
    logprob_at = first_difference(alone.logprob_bits, other.logprob_bits)
    found = [
        at
        for at in (
            first_difference(alone.tokens, other.tokens),
            first_difference(alone.token_ids, other.token_ids),
        )
        if at is not None
    ]
    if found:
        return _divergence("token", min(found), logprob_at, alone, other)
    text_at = first_difference(alone.text, other.text)
    if text_at is not None:
        return _divergence("text", text_at, logprob_at, alone, other)
    if alone.finish_reason != other.finish_reason:
        end = len(alone.text if alone.tokens is None else alone.tokens)
        return _divergence("finish_reason", end, logprob_at, alone, other)
    if logprob_at is not None:
        return _divergence("logprob", logprob_at, logprob_at, alone, other)
    return None


def _divergence(
    kind: Literal["token", "text", "finish_reason", "logprob"],
    position: int,
    logprob_at: int | None,
    alone: Completion,
    other: Completion,
) -> Divergence:
    by_character = kind == "text" or (kind == "finish_reason" and alone.tokens is None)
    return Divergence(
        kind=kind,
        unit="character" if by_character else "token",
        position=position,
        logprob_position=logprob_at,
        before=_slice(alone, max(0, position - BEFORE), position, by_character),
        alone=_side(alone, position, by_character),
        other=_side(other, position, by_character),
    )


def _side(completion: Completion, position: int, by_character: bool) -> Side:
    logprobs = () if by_character or completion.logprobs is None else completion.logprobs
    return Side(
        continuation=_slice(completion, position, position + AFTER, by_character),
        logprob=logprobs[position] if position < len(logprobs) else None,
        finish_reason=completion.finish_reason,
    )


def _slice(completion: Completion, start: int, stop: int, by_character: bool) -> tuple[str, ...]:
    if by_character:
        piece = completion.text[start:stop]
        return (piece,) if piece else ()
    if completion.tokens is not None:
        return completion.tokens[start:stop]
    return tuple(f"<{token_id}>" for token_id in (completion.token_ids or ())[start:stop])


@dataclass(frozen=True, slots=True)
class Finding:
    """A divergence: of which prompt, and among how many requests (itself included) it showed."""

    prompt: int
    burst: int
    divergence: Divergence

    @property
    def rank(self) -> tuple[bool, int]:
        """What the user should see first is least: an output that differs, as early as possible."""
        return self.divergence.kind == "logprob", self.divergence.position


@dataclass(slots=True)
class Record:
    """What became of one prompt. ``alone`` is its first completion, which had no neighbour."""

    alone: Completion
    completions: int = 0
    outputs: set[bytes] = field(default_factory=set)
    logprob_sequences: set[bytes] = field(default_factory=set)
    unique: set[tuple[bytes, bytes]] = field(default_factory=set)
    finding: Finding | None = None


class Ledger:
    """All completions of a check, by prompt (its index)."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def add(self, prompt: int, completion: Completion, *, burst: int) -> None:
        """Count a completion; the first of a prompt is what its later ones are compared with."""
        record = self.records.setdefault(prompt, Record(alone=completion))
        output, logprobs = completion.output_digest(), completion.logprob_digest()
        record.completions += 1
        record.outputs.add(output)
        record.logprob_sequences.add(logprobs)
        record.unique.add((output, logprobs))
        divergence = compare(record.alone, completion)
        if divergence is not None:
            finding = Finding(prompt, burst, divergence)
            if record.finding is None or finding.rank < record.finding.rank:
                record.finding = finding

    @property
    def completions(self) -> int:
        return sum(record.completions for record in self.records.values())

    @property
    def unique_max(self) -> int:
        """Most distinct completions (output and logprobs) of a prompt: 1 if all is well, 0 if none."""
        return max((len(record.unique) for record in self.records.values()), default=0)

    @property
    def findings(self) -> list[Finding]:
        """One per prompt that diverged, by prompt."""
        found = [record.finding for record in self.records.values() if record.finding is not None]
        return sorted(found, key=lambda finding: finding.prompt)

    @property
    def first_divergence(self) -> Finding | None:
        """Of the first prompt whose output diverged, or else of the first whose logprobs did."""
        return min(self.findings, key=lambda finding: (finding.rank[0], finding.prompt), default=None)
