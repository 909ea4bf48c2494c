"""Who asks, how often, and for how much."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from llm42.config import Frozen

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1)]


class LogNormal(Frozen):
    """Lengths whose logarithm is normal, as those of chats are: many short ones, a long tail."""

    mean: Positive = Field(description="In tokens, before it is cut off at `longest`.")
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(1.0, description="Of the logarithm.")
    longest: Tokens = Field(description="In tokens; what would be longer is as long as this.")


Lengths = Tokens | LogNormal | Annotated[tuple[Tokens, ...], Field(min_length=1)]
"""One length for all, a distribution, or a list to draw from."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. ``after_s`` is the time since the arrival before it, in an open loop."""

    number: int
    after_s: float
    prompt: int
    output: int
    deterministic: bool


class Workload(Frozen):
    """Independent requests: at random moments (an open loop), or from clients who ask again once answered (a closed
    one). What arrives while it warms up is served, and not counted."""

    rate: Positive | None = Field(None, description="Open loop: requests in a second, a Poisson process.")
    concurrency: Tokens | None = Field(None, description="Closed loop: clients, each with one request at a time.")
    prompt: Lengths = Field(description="Prompt tokens: a number, {mean, sigma, longest}, or a list to draw from.")
    output: Lengths = Field(description="Output tokens, likewise.")
    deterministic: float = Field(ge=0, le=1, description="Share of the requests that ask for determinism.")
    duration_s: Positive = Field(description="Seconds in which requests arrive.")
    warm_up_s: Annotated[float, Field(ge=0)] = Field(0, description="The first of these, which are not counted.")
    seed: int = Field(0, description="Equal seeds give equal requests, and equal reports.")

    @model_validator(mode="after")
    def _one_loop(self) -> "Workload":
        if (self.rate is None) == (self.concurrency is None):
            raise ValueError("give either rate (an open loop) or concurrency (a closed one), and not both")
        if self.warm_up_s >= self.duration_s:
            raise ValueError(f"warm_up_s is {self.warm_up_s}, and nothing is left of duration_s {self.duration_s}")
        return self

    @property
    def counted_s(self) -> float:
        return self.duration_s - self.warm_up_s

    def arrivals(self) -> Iterator[Arrival]:
        """Without end. The requests of one seed are the same whatever the rate and the share are, and whoever is
        deterministic at one share is so at any larger one."""
        number = 0
        while True:
            rng = random.Random(f"{self.seed}/{number}")
            waiting, share = rng.expovariate(1.0), rng.random()
            yield Arrival(
                number,
                waiting / self.rate if self.rate is not None else 0.0,
                _draw(self.prompt, rng),
                _draw(self.output, rng),
                share < self.deterministic,
            )
            number += 1


def _draw(lengths: Lengths, rng: random.Random) -> int:
    if isinstance(lengths, int):
        return lengths
    if isinstance(lengths, tuple):
        return rng.choice(lengths)
    mu = math.log(lengths.mean) - lengths.sigma**2 / 2
    return min(max(1, round(rng.lognormvariate(mu, lengths.sigma))), lengths.longest)
