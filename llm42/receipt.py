"""Receipts: what was answered, in a form that a verifier can check again. Pure.

A receipt holds the token ids, the parameters and a chain of digests, one link for each replay window that has
output in it. A link covers the one before, the window's output tokens and the fp32 bits of their logprobs; the first
covers the fingerprint, the adapter, the parameters, the prompt and the length of the output. To check it, the tokens
are replayed once at prefill speed: any token, parameter or digest that was changed afterwards breaks the chain at the
first window that it touches.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from llm42.protocol.grid import ReplayGrid
from llm42.protocol.messages import WORD, ReplayReply, pack_tokens
from llm42.protocol.selection import Selection

Tokens = Annotated[list[int], Field(min_length=1, max_length=1 << 20), FailFast()]


class Receipt(BaseModel):
    """One choice of one answer. ``windows`` are SHA-256 digests in base64 (44 characters)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1] = 1
    fingerprint: str
    window_size: int = Field(ge=1)
    adapter: str = ""
    """Name of the LoRA adapter that the model had on, if any."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    """Unsigned 64-bit."""
    steering: list[Any] | None = None
    """The fields of a :class:`~llm42.protocol.steering.Steering`, if there is one."""
    prompt_token_ids: Tokens
    token_ids: Tokens
    windows: list[str]

    @model_validator(mode="after")
    def _consistent(self) -> "Receipt":
        _ = self.selection
        for name in ("prompt_token_ids", "token_ids"):
            if not all(0 <= token < 2**31 for token in getattr(self, name)):
                raise ValueError(f"{name} must be token ids")
        wanted = len(self.spans)
        if len(self.windows) != wanted:
            raise ValueError(f"there are {len(self.windows)} windows, but the tokens lie in {wanted}")
        return self

    @property
    def selection(self) -> Selection:
        """Raises ValueError if it is none."""
        steering = [] if self.steering is None else [self.steering]
        try:
            return Selection.of_fields([self.temperature, self.top_p, self.top_k, self.min_p, self.seed, *steering])
        except TypeError as error:
            raise ValueError(str(error)) from None

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return self.prompt_token_ids + self.token_ids

    @property
    def spans(self) -> list[range]:
        """For each window with output, the absolute positions of its output tokens."""
        return list(_spans(ReplayGrid(self.window_size), len(self.prompt_token_ids), len(self.tokens)))

    def first_difference(self, reply: ReplayReply) -> int | None:
        """The first window (absolute index) that ``reply``, the replay of all output, does not confirm, if any.

        ``reply`` answers for the positions from the last one of the prompt to the last but one of :attr:`tokens`.
        """
        prompt, count = self.prompt_token_ids, len(self.token_ids)
        root = _root(self.fingerprint, self.window_size, self.adapter, self.selection, prompt, count)
        found = reply.scores
        replayed = _links(root, len(prompt), self.spans, found.tokens, found.logprobs)
        for positions, link, said in zip(self.spans, replayed, self.windows, strict=True):
            first, end = positions.start - len(prompt), positions.stop - len(prompt)
            if link != said or list(found.tokens[first:end]) != self.token_ids[first:end]:
                return positions[0] // self.window_size
        return None


def issue(
    fingerprint: str,
    window_size: int,
    selection: Selection,
    prompt: Sequence[int],
    tokens: Sequence[int],
    logprobs: bytes,
    adapter: str = "",
) -> Receipt:
    """The receipt for output ``tokens`` after ``prompt``; ``logprobs`` are their fp32 bits."""
    spans = _spans(ReplayGrid(window_size), len(prompt), len(prompt) + len(tokens))
    root = _root(fingerprint, window_size, adapter, selection, prompt, len(tokens))
    links = _links(root, len(prompt), spans, tokens, logprobs)
    return Receipt(
        fingerprint=fingerprint,
        window_size=window_size,
        adapter=adapter,
        temperature=selection.temperature,
        top_p=selection.top_p,
        top_k=selection.top_k,
        min_p=selection.min_p,
        seed=selection.seed,
        steering=None if selection.steering is None else selection.steering.fields,
        prompt_token_ids=list(prompt),
        token_ids=list(tokens),
        windows=list(links),
    )


def _spans(grid: ReplayGrid, prompt: int, end: int) -> Iterator[range]:
    position = prompt
    while position < end:
        after = min(grid.next_boundary(position), end)
        yield range(position, after)
        position = after


def _root(
    fingerprint: str, window_size: int, adapter: str, selection: Selection, prompt: Sequence[int], count: int
) -> bytes:
    head = [1, fingerprint, window_size, adapter, selection.fields, list(prompt), count]
    return hashlib.sha256(json.dumps(head, separators=(",", ":")).encode()).digest()


def _links(root: bytes, prompt: int, spans: Iterable[range], tokens: Sequence[int], logprobs: bytes) -> Iterator[str]:
    """``prompt`` is its length."""
    link = root
    for positions in spans:
        first, end = positions.start - prompt, positions.stop - prompt
        link = hashlib.sha256(link + pack_tokens(tokens[first:end]) + logprobs[WORD * first : WORD * end]).digest()
        yield base64.b64encode(link).decode()
