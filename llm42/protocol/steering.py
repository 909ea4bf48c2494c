"""What changes logits before a token is chosen from them: parameters whose effect depends on the tokens so far."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from operator import lt
from typing import Any, Literal, get_args

GrammarKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the output has to be, as vLLM's ``structured_outputs`` says it.

    ``text`` is a JSON schema, a regular expression, a JSON list of choices, an EBNF grammar or a structural tag in
    JSON, by ``kind``; empty for "json_object".
    """

    kind: GrammarKind
    text: str
    any_whitespace: bool = True
    stops: tuple[int, ...] = ()
    """Rising token ids that may end the output, and stand nowhere else in it; empty: the tokenizer's own."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise ValueError(f"not a kind of grammar: {self.kind!r}")
        if type(self.text) is not str or type(self.any_whitespace) is not bool or not _rising(self.stops):
            raise ValueError(f"not a grammar: {self}")

    @property
    def fields(self) -> list[Any]:
        """See :attr:`Steering.fields`."""
        return list(astuple(self))

    @classmethod
    def of_fields(cls, fields: list[Any]) -> "Grammar":
        """Raises ValueError or TypeError if these are none."""
        return cls(*map(_tupled, fields))


@dataclass(frozen=True, slots=True)
class Steering:
    """Canonical inputs of :func:`llm42.sampling.steer`, in vLLM's terms. Equal ones steer alike.

    Output begins at position ``prompt_tokens``: where a text is split into prompt and output matters here.
    """

    prompt_tokens: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Rising token ids, each with what is added to its logit."""
    min_tokens: int = 0
    """Until there are so many output tokens, none of ``stops`` may be chosen."""
    stops: tuple[int, ...] = ()
    """Rising token ids that end a request; empty if ``min_tokens`` is 0."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens whose last one may not be chosen after the others."""
    allowed: tuple[int, ...] | None = None
    """Rising token ids, of which the choice must be one."""
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        if not (
            # What crosses processes, or is in a receipt, may be anything: wrong types would fail in a pass, and with
            # it whoever shares that.
            type(self.prompt_tokens) is type(self.min_tokens) is int
            and all(map(_number, chain(penalties, (bias for _, bias in self.logit_bias))))
            and self.prompt_tokens >= 1
            and -2 <= self.presence_penalty <= 2
            and -2 <= self.frequency_penalty <= 2
            and self.repetition_penalty > 0
            and self.min_tokens >= 0
            and all(word and all(map(_whole, word)) for word in self.bad_words)
            and self.allowed != ()
            and all(map(_rising, ([token for token, _ in self.logit_bias], self.stops, self.allowed or ())))
        ):
            raise ValueError(f"not a steering: {self}")

    @property
    def token_ids(self) -> Iterator[int]:
        """All that it names."""
        biased = (token for token, _ in self.logit_bias)
        ends = self.grammar.stops if self.grammar is not None else ()
        return chain(biased, self.stops, chain.from_iterable(self.bad_words), self.allowed or (), ends)

    @property
    def fields(self) -> list[Any]:
        """What travels where objects do not (JSON, msgpack): the input of :meth:`of_fields`."""
        return list(astuple(self))

    @classmethod
    def of_fields(cls, fields: list[Any]) -> "Steering":
        """Raises ValueError or TypeError if these are none."""
        *plain, grammar = fields
        values = [*map(_tupled, plain), None if grammar is None else Grammar.of_fields(grammar)]
        return cls(*values)


def _rising(ids: Sequence[int]) -> bool:
    return all(map(_whole, ids)) and all(map(lt, ids, ids[1:]))


def _whole(value: Any) -> bool:
    return type(value) is int  # a bool is none, nor is what is equal to one


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value
