"""What changes logits before a token is chosen from them: parameters whose effect depends on the tokens so far."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import lt
from typing import Any, Literal, get_args

MAX_BAD_WORD_TOKENS = 2048
"""vLLM's own limit, twice: it makes two sequences of a word, with a space in front and without."""
MAX_NAMED = 1 << 20
"""More tokens than any vocabulary has."""

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
        if type(self.text) is not str or type(self.any_whitespace) is not bool:
            raise ValueError(f"not a grammar: {str(self)[:200]}")
        if not _is_tuple(self.stops) or not _rising(self.stops):
            raise ValueError(f"not the stops of a grammar: {str(self.stops)[:200]}")

    @property
    def fields(self) -> list[Any]:
        """See :attr:`Steering.fields`."""
        return _values(self)

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
    """Rising sequences of tokens whose last one may not be chosen after the others; few, see
    :data:`MAX_BAD_WORD_TOKENS`: each costs every row of a pass some time."""
    allowed: tuple[int, ...] | None = None
    """Rising token ids, of which the choice must be one."""
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        if not (
            # What crosses processes, or is in a receipt, may be anything: wrong types would fail in a pass, and with
            # it whoever shares that.
            type(self.prompt_tokens) is type(self.min_tokens) is int
            and all(
                map(_is_tuple, chain((self.logit_bias, self.stops, self.bad_words), self.logit_bias, self.bad_words))
            )
            and (self.allowed is None or _is_tuple(self.allowed))
            and all(map(_number, chain(penalties, (bias for _, bias in self.logit_bias))))
            and self.prompt_tokens >= 1
            and -2 <= self.presence_penalty <= 2
            and -2 <= self.frequency_penalty <= 2
            and self.repetition_penalty > 0
            and self.min_tokens >= 0
            and sum(map(len, self.bad_words)) <= MAX_BAD_WORD_TOKENS
            and all(word and all(map(_whole, word)) for word in self.bad_words)
            and all(map(lt, self.bad_words, self.bad_words[1:]))
            and self.allowed != ()
            and all(map(_rising, ([token for token, _ in self.logit_bias], self.stops, self.allowed or ())))
        ):
            raise ValueError(f"not a steering: {str(self)[:200]}")

    @property
    def token_ids(self) -> Iterator[int]:
        """All that it names."""
        biased = (token for token, _ in self.logit_bias)
        ends = self.grammar.stops if self.grammar is not None else ()
        return chain(biased, self.stops, chain.from_iterable(self.bad_words), self.allowed or (), ends)

    @property
    def fields(self) -> list[Any]:
        """What travels where objects do not (JSON, msgpack): the input of :meth:`of_fields`."""
        *plain, grammar = _values(self)
        return [*plain, None if grammar is None else grammar.fields]

    @classmethod
    def of_fields(cls, fields: list[Any]) -> "Steering":
        """Raises ValueError or TypeError if these are none."""
        *plain, grammar = fields
        if any(isinstance(value, list) and len(value) > MAX_NAMED for value in plain):
            raise ValueError(f"not a steering: it names more than {MAX_NAMED} tokens or words in one place")
        values = [*map(_tupled, plain), None if grammar is None else Grammar.of_fields(grammar)]
        return cls(*values)


def _values(it: Grammar | Steering) -> list[Any]:
    """Of all fields, as they are: some have a value for each token of a vocabulary, and are asked for at every pass."""
    return [getattr(it, one.name) for one in fields(it)]


def _rising(ids: Sequence[int]) -> bool:
    return all(map(_whole, ids)) and all(map(lt, ids, ids[1:]))


def _whole(value: Any) -> bool:
    return type(value) is int  # a bool is none, nor is what is equal to one


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple


def _number(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 63)


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value
