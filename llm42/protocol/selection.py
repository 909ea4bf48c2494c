"""How a token is chosen from logits."""

from dataclasses import dataclass
from typing import Any

from llm42.protocol.steering import Grammar, Steering

SEEDS = 2**64
"""Seeds are unsigned 64-bit; an API's signed ones are taken modulo this."""
EXTRA_ARG = "llm42_selection"
"""Name under which a draft's engine request carries its selection."""
MARGINS = "llm42_margins"
"""Likewise, in a draft that is to tell by how much its tokens were chosen; it holds the name the engine knows it by."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Canonical inputs of :func:`llm42.sampling.select`, in vLLM's terms. Equal selections choose alike.

    ``temperature`` 0 is greedy; ``top_p`` 1, ``top_k`` 0 and ``min_p`` 0 cut nothing off.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    steering: Steering | None = None
    """What the tokens so far do to the choice, if anything."""

    def __post_init__(self) -> None:
        if type(self.top_k) is not int or type(self.seed) is not int:
            raise ValueError(f"top_k and seed are whole numbers, not {self.top_k!r} and {self.seed!r}")
        if not (
            0 <= self.temperature < float("inf")
            and 0 < self.top_p <= 1
            and self.top_k >= 0
            and 0 <= self.min_p <= 1
            and 0 <= self.seed < SEEDS
        ):
            raise ValueError(f"not a selection: {self}")

    @classmethod
    def of(
        cls,
        temperature: float,
        top_p: float,
        top_k: int,
        min_p: float,
        seed: int | None,
        steering: Steering | None = None,
    ) -> "Selection":
        """From a request's parameters. What means the same becomes the same; a random choice needs a seed."""
        if temperature == 0:
            return cls(steering=steering)
        if seed is None:
            raise ValueError(f"temperature is {temperature}, and there is no seed")
        return cls(float(temperature), float(top_p), max(top_k, 0), float(min_p), seed % SEEDS, steering)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def grammar(self) -> Grammar | None:
        """That of its steering, if any."""
        return None if self.steering is None else self.steering.grammar

    def names_within(self, vocabulary: int) -> bool:
        """Whether all tokens that its steering names are in [0, ``vocabulary``)."""
        return self.steering is None or all(0 <= token < vocabulary for token in self.steering.token_ids)

    @property
    def fields(self) -> list[Any]:
        """What travels where objects do not (JSON, msgpack): the input of :meth:`of_fields`."""
        plain = [self.temperature, self.top_p, self.top_k, self.min_p, self.seed]
        return plain if self.steering is None else [*plain, self.steering.fields]

    @classmethod
    def of_fields(cls, fields: list[Any]) -> "Selection":
        """Raises ValueError or TypeError if these are none."""
        temperature, top_p, top_k, min_p, seed, *steering = fields
        return cls(temperature, top_p, top_k, min_p, seed, *map(Steering.of_fields, steering))


GREEDY = Selection()
