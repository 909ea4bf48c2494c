"""When candidates are worth a replay, and how many of them. Decides speed, never output."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm42.protocol.doubt import Doubt
from llm42.protocol.grid import ReplayGrid


@dataclass(frozen=True, slots=True)
class VerifyCadence:
    """Verify at window boundaries and at the end; earlier only while a verifier has rows to spare.

    ``eager`` is the fewest candidates worth an early pass, or None never to verify early for their number. ``doubt``
    says when they are for their margins; None: never.
    """

    grid: ReplayGrid
    eager: int | None
    doubt: Doubt | None = None

    def take(self, length: int, margins: Sequence[float], *, settled: bool, idle: bool) -> int:
        """How many of the candidates that follow ``t[0..length)`` to verify now; 0 is to wait.

        ``margins`` has one for each. ``settled``: no further candidate will come. ``idle``: a verifier has rows to
        spare.
        """
        candidates = len(margins)
        if settled:
            return candidates
        end, boundary = length + candidates, self.grid.next_boundary(length)
        full = max(0, self.grid.start(self.grid.complete(end)) - length)
        # What does not fill a window costs a row now, and again later.
        spill = candidates - full
        if idle and self.eager is not None and spill >= self.eager:
            return candidates
        presses = idle and end < boundary and self.doubt is not None and self.doubt.presses(margins, boundary - end)
        return candidates if presses else full
