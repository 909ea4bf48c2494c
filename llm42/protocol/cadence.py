"""When candidates are worth a replay, and how many of them. Decides speed, never output."""

from dataclasses import dataclass

from llm42.protocol.grid import ReplayGrid


@dataclass(frozen=True, slots=True)
class VerifyCadence:
    """Verify at window boundaries and at the end; earlier only while a verifier has rows to spare.

    ``eager`` is the fewest candidates worth an early pass, or None never to verify early.
    """

    grid: ReplayGrid
    eager: int | None

    def take(self, length: int, candidates: int, *, settled: bool, idle: bool) -> int:
        """How many of ``candidates`` that follow ``t[0..length)`` to verify now; 0 is to wait.

        ``settled``: no further candidate will come. ``idle``: a verifier has rows to spare.
        """
        if settled or (idle and self.eager is not None and candidates >= self.eager):
            return candidates
        end = length + candidates
        if end < self.grid.next_boundary(length):
            return 0
        # A busy verifier gets full windows only: what spills over would cost a row now and again later.
        full = self.grid.start(self.grid.complete(end)) - length
        return candidates if idle else full
