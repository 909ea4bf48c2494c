"""Where drafts go wrong, and one request's tokens: those that hold, and those that a drafter would write.

What the model says is not simulated, only where the two paths disagree. A request has a rate of its own at which
its drafts flip, gamma-distributed among requests: some outputs flip often, many never do.

Drift is normal, and some requests flip more often because their choices are closer. Margins are in its deviations.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, inf, log, pi, sqrt

from pydantic import Field, model_validator

from llm42.config import Frozen

VOCABULARY = 1 << 15
_STEEPEST = 1e9
_HALVINGS = 80


class Drift(Frozen):
    """Of drafted tokens, how many are right before one is not (a *consistent span*)."""

    median_span: float | None = Field(
        None,
        gt=0,
        description="Tokens that half of all outputs get right before a flip; null: none ever flips.",
    )
    intact_tokens: int | None = Field(None, ge=1, description="Of outputs of this length ...")
    intact_share: float | None = Field(None, gt=0, lt=1, description="... so many have no flip at all.")

    @model_validator(mode="after")
    def _both_points(self) -> "Drift":
        if (self.intact_tokens is None) != (self.intact_share is None):
            raise ValueError("intact_tokens and intact_share belong together: give both, or none")
        if self.intact_share is not None and self.median_span is None:
            raise ValueError("intact_share needs median_span")
        if self.intact_tokens is not None and self.intact_share is not None and self.median_span is not None:
            _fit(self.median_span, self.intact_tokens, self.intact_share)
        return self

    @property
    def rates(self) -> tuple[float, float] | None:
        """Shape, and mean, of the gamma distribution of flips for each token; None: there are none. An infinite shape
        is one rate for all, so that spans are geometric."""
        if self.median_span is None:
            return None
        if self.intact_tokens is None or self.intact_share is None:
            return float("inf"), log(2) / self.median_span
        return _fit(self.median_span, self.intact_tokens, self.intact_share)

    @property
    def mean_rate(self) -> float:
        """Flips for each drafted token, over all requests."""
        return self.rates[1] if self.rates is not None else 0.0


def _fit(median: float, tokens: int, share: float) -> tuple[float, float]:
    """Shape and mean for which P(span > median) = 0.5 and P(span > tokens) = share; ValueError where there are none.

    P(span > n) = (1 + n / b) ** -shape, and the mean is shape / b.
    """
    spread = tokens / median
    ratio = -log(share) / log(2)
    if not (1 < ratio < spread or spread < ratio < 1):
        raise ValueError(
            f"intact_share is {share}, but with median_span {median:g} it lies between {2**-spread:.3g} (all outputs "
            "alike) and 0.5"
        )
    low, high = 1 / _STEEPEST, _STEEPEST
    for _ in range(_HALVINGS):  # with 1 / b growing, the ratio goes from spread to 1
        middle = (low * high) ** 0.5
        here = log(1 + tokens * middle) / log(1 + median * middle)
        low, high = (middle, high) if (here > ratio) == (spread > 1) else (low, middle)
    shape = log(2) / log(1 + median * low)
    return shape, shape * low


@dataclass(frozen=True, slots=True)
class Script:
    """One request's canonical tokens, prompt and output, the positions at which a draft flips, and for each output
    token by how much the drafter prefers its choice to another."""

    tokens: Sequence[int]
    prompt: int
    flips: frozenset[int]
    margins: Sequence[float]

    @classmethod
    def of(cls, prompt: int, output: int, drift: Drift, seed: str) -> "Script":
        rng = random.Random(seed)
        tokens = rng.choices(range(VOCABULARY), k=prompt + output)
        if (rates := drift.rates) is None:
            return cls(tokens, prompt, frozenset(), [inf] * output)
        shape, mean = rates
        rate = mean if shape == float("inf") else rng.gammavariate(shape, mean / shape)
        flips, position = set(), prompt - 1
        while rate > 0 and (position := position + 1 + int(rng.expovariate(rate))) < len(tokens):
            flips.add(position)
        choices = random.Random(f"{seed}/margins")
        margins = [_margin(position in flips, rate, choices) for position in range(prompt, len(tokens))]
        return cls(tokens, prompt, frozenset(flips), margins)


def _margin(flipped: bool, rate: float, rng: random.Random) -> float:
    """Of a choice, given whether it flipped. True margins are exponential, so dense at 0 that drift outweighs one at
    ``rate``; what the drafter sees is how far drift has left it from there."""
    if flipped:
        return rng.random() * sqrt(-2 * log(1 - rng.random()))  # density: Q
    while rate > 0:
        margin = rng.expovariate(rate * sqrt(2 * pi))
        if rng.random() >= erfc(margin / sqrt(2)) / 2:
            return margin
    return inf


class Pen:
    """A drafter's hand: it writes on after ``tokens``. Behind a flip everything is wrong, for it reads other words."""

    def __init__(self, script: Script, tokens: Sequence[int]) -> None:
        self._script = script
        self._position = len(tokens)
        self._astray = list(tokens) != list(script.tokens[: len(tokens)])

    def write(self) -> tuple[int, float]:
        """A token, and its margin."""
        right = self._script.tokens[self._position]
        margin = self._script.margins[self._position - self._script.prompt]
        self._astray = self._astray or self._position in self._script.flips
        self._position += 1
        return right ^ 1 if self._astray else right, margin
