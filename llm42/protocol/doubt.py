"""How likely candidates are to be contradicted, by the margins of their choices. Decides speed, never output.

A *margin* is by how much a choice beat the second best, in logits. Drift shifts it by an amount that is about normal,
of some deviation sigma. Where small margins are about equally frequent, a choice by a margin m is then wrong with
probability Q(m / sigma), and the margins of wrong choices have a mean of sqrt(2 pi) / 4 * sigma.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

MEMORY = 64
"""Contradictions that the estimate is made of, the latest ones most of all."""
OUTLIER = 8.0
"""No margin counts for more than so many times the mean."""
_MEAN_OF_WRONG = math.sqrt(2 * math.pi) / 4
_CERTAIN = 4.0  # sigmas


@dataclass(slots=True)
class Doubt:
    """``price``: recomputed tokens, on average, that are worth a replay row of their own.

    Sigma is learnt from the candidates that were contradicted, whoever drafted them; until the first of them nothing
    is in doubt. Sessions may share one.
    """

    price: float
    _mean: float = field(default=0.0, init=False)
    _count: int = field(default=0, init=False)

    @property
    def sigma(self) -> float:
        """In logits."""
        return self._mean / _MEAN_OF_WRONG

    def contradicted(self, margin: float) -> None:
        """A candidate that was chosen by ``margin`` is not the canonical one. Negative, or not finite: not known."""
        if not 0 <= margin < math.inf:
            return
        self._count = min(self._count + 1, MEMORY)
        limit = OUTLIER * self._mean if self._mean > 0 else margin
        self._mean += (min(margin, limit) - self._mean) / self._count

    def risk(self, margins: Iterable[float]) -> float:
        """Probability that one of the choices by ``margins`` is wrong."""
        if not self._count:
            return 0.0
        scale = self.sigma
        certain = _CERTAIN * scale
        right = 1.0
        for margin in margins:
            if margin == 0:  # a tie, of which bf16 logits have many: any drift decides it
                right *= 0.5
            elif 0 < margin < certain:
                right *= 1 - math.erfc(margin / scale / math.sqrt(2)) / 2
        return 1 - right

    def presses(self, margins: Iterable[float], left: int) -> bool:
        """Whether it would cost too much to go on drafting for ``left`` tokens before these are verified."""
        return self.risk(margins) * left >= self.price
