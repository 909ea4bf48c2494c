"""What is asked, and when: sizes, prompts and arrivals, all from a seed.

Prompts are token ids without sense, so that sizes are exact and no two prompts share a prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FIRST_ID, LAST_ID = 1000, 30_000
"""Ordinary tokens in every vocabulary that we serve."""


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens: log-normal about ``median``, cut to ``least`` and ``most``. With ``sigma`` 0 it is always the median."""

    median: int
    sigma: float = 0.0
    least: int = 1
    most: int = 1 << 20

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        drawn = self.median * np.exp(self.sigma * rng.standard_normal(count))
        return [int(tokens) for tokens in np.clip(np.rint(drawn), self.least, self.most)]


@dataclass(frozen=True, slots=True)
class Mix:
    """Sizes of a workload."""

    name: str
    prompt: Length
    output: Length

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that it may have."""
        return sum(part.most if part.sigma else part.median for part in (self.prompt, self.output))

    def __str__(self) -> str:
        sizes = (f"{part.median}" if not part.sigma else f"~{part.median}" for part in (self.prompt, self.output))
        return f"{self.name} ({' in, '.join(sizes)} out)"


@dataclass(frozen=True, slots=True)
class Request:
    """``prompt`` are token ids; ``tokens`` are wanted, no more and no less."""

    prompt: tuple[int, ...]
    tokens: int
    deterministic: bool


def make_requests(mix: Mix, count: int, share: float, seed: int) -> list[Request]:
    """``count`` requests, of which ``share`` (0 to 1; at least one if it is not 0) are deterministic.

    Of one seed, sizes and prompts are the same whatever the share, and a smaller share's deterministic requests are
    among those of a larger one: what is ordinary at both can be compared.
    """
    rng = np.random.default_rng(seed)
    prompts, outputs = mix.prompt.draw(rng, count), mix.output.draw(rng, count)
    flagged = set(rng.permutation(count)[: max(round(share * count), share > 0)].tolist())
    return [
        Request(tuple(rng.integers(FIRST_ID, LAST_ID, length).tolist()), tokens, number in flagged)
        for number, (length, tokens) in enumerate(zip(prompts, outputs, strict=True))
    ]


def arrivals(count: int, rate: float, seed: int) -> Sequence[float]:
    """Seconds from the start at which ``count`` requests arrive: a Poisson process of ``rate`` a second."""
    if not rate > 0:
        raise ValueError(f"a rate of arrivals must be positive, got {rate}")
    times: list[float] = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()
    return times
