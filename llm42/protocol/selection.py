"""How a token is chosen from logits: the sampling parameters that need no history."""

from dataclasses import dataclass

SEEDS = 2**64
"""Seeds are unsigned 64-bit; an API's signed ones are taken modulo this."""
EXTRA_ARG = "llm42_selection"
"""Name under which a draft's engine request carries its selection."""


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

    def __post_init__(self) -> None:
        if not (
            0 <= self.temperature < float("inf")
            and 0 < self.top_p <= 1
            and self.top_k >= 0
            and 0 <= self.min_p <= 1
            and 0 <= self.seed < SEEDS
        ):
            raise ValueError(f"not a selection: {self}")

    @classmethod
    def of(cls, temperature: float, top_p: float, top_k: int, min_p: float, seed: int | None) -> "Selection":
        """From a request's parameters. What means the same becomes the same; a random choice needs a seed."""
        if temperature == 0:
            return GREEDY
        if seed is None:
            raise ValueError(f"temperature is {temperature}, and there is no seed")
        return cls(float(temperature), float(top_p), max(top_k, 0), float(min_p), seed % SEEDS)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def fields(self) -> list[float]:
        """The arguments that make it again: what travels where objects do not."""
        return [self.temperature, self.top_p, self.top_k, self.min_p, self.seed]


GREEDY = Selection()
