"""Whether a pass that has rows left begins at once, or waits for company. Decides speed, never output.

A pass costs the same whether its rows are used or not, and most of what a verifier is asked can wait a little: drafting
goes on meanwhile. So a pass for which nobody waits stands back as long as the last one took, if others are about who
may join it: work that can wait has half of a verifier's time at most, unless it fills passes. Pure logic: no clock.
"""

from llm42.verifier.passes import Pass

MOST_S = 1.0
"""Longest wait. What takes longer was no ordinary pass: a kernel was compiled, or the machine stood still."""


class Company:
    def __init__(self) -> None:
        self._seconds = 0.0
        self._requests: frozenset[str] = frozenset()

    def ran(self, last: Pass, seconds: float) -> None:
        """The pass before the next one, and how long it took."""
        self._seconds = min(seconds, MOST_S)
        self._requests = _requests(last)

    def patience_s(self, planned: Pass, *, short_of_pages: bool) -> float:
        """How long ``planned``, which has rows, may wait for more of them from when it could begin, in seconds.

        ``short_of_pages``: nobody can join it before it has run.
        """
        if short_of_pages or not planned.idle_rows or not all(job.patient for job in planned.jobs):
            return 0.0
        alone = self._requests <= _requests(planned)
        return 0.0 if alone else self._seconds


def _requests(of: Pass) -> frozenset[str]:
    return frozenset(job.request_id for job in of.jobs)
