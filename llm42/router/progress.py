"""How the drafts of one deterministic request fare: how far they run ahead, how long they wait, what they cost."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from llm42.metrics import router as metrics
from llm42.protocol import Action, Commit, SessionStats, StartDraft, Verify

_COUNTED = {
    "drafted": metrics.DRAFTED,
    "verified": metrics.VERIFIED,
    "accepted": metrics.ACCEPTED,
    "committed": metrics.COMMITTED,
    "rolled_back": metrics.ROLLED_BACK,
    "rollbacks": metrics.ROLLBACKS,
}
"""Fields of :class:`SessionStats`."""


class Progress:
    """Watches a session from outside: what it asks for, and what is drafted for it. Positions are absolute."""

    def __init__(self, prompt_tokens: int, stats: SessionStats) -> None:
        self._stats = stats
        self._seen = replace(stats)
        self._verifier: str | None = None
        self._committed = self._drafted = self._furthest = prompt_tokens
        self._span = 0
        self._waiting: deque[tuple[int, float]] = deque()
        """Of what was drafted and is not committed: each piece's end, and when it came."""
        self._asked: float | None = None
        """When the replay began that is open, if one is."""

    def drafted(self, tokens: int) -> None:
        """The live stream has brought so many more. To be called before the session hears of them."""
        begin, self._drafted = self._drafted, self._drafted + tokens
        metrics.RECOMPUTED.add(max(0, min(self._furthest, self._drafted) - begin))
        self._furthest = max(self._furthest, self._drafted)
        if self._drafted > self._committed:
            self._waiting.append((self._drafted, time.monotonic()))

    def acting(self, actions: Sequence[Action]) -> None:
        """The session asks for these; for nothing, after most drafted tokens."""
        if not actions:
            return
        for action in actions:
            if isinstance(action, Commit):
                self._commit(len(action.scores))
        if self._stats.rollbacks > self._seen.rollbacks:
            metrics.SPAN.observe(self._span, end="rollback")
            self._span = 0
            self._waiting.clear()
            self._drafted = self._committed
        for action in actions:
            if isinstance(action, StartDraft):
                self._drafted = len(action.tokens)
            elif isinstance(action, Verify):
                self._asked = time.monotonic()
                metrics.RUN_AHEAD.observe(max(0, self._drafted - self._committed))
        self._count()

    def replayed_by(self, replica_id: str) -> None:
        """That verifier has answered ("": it has not said who it is)."""
        if self._verifier and replica_id and replica_id != self._verifier:
            metrics.REBUILDS.add()
        self._verifier = replica_id or self._verifier

    def draft_lost(self) -> None:
        metrics.DRAFTS_LOST.add()

    def ended(self) -> None:
        """The request has ended, whatever the reason."""
        self._count()
        self._waiting.clear()
        self._asked = None
        if self._span:
            metrics.SPAN.observe(self._span, end="request")

    def oldest(self, now: float) -> float:
        """Age in seconds, at monotonic time ``now``, of what has waited longest for its commit, a drafted token or an
        open replay; 0 if nothing does. From any thread."""
        asked = self._asked
        try:
            began = self._waiting[0][1]
        except IndexError:
            began = now
        return now - min(began, now if asked is None else asked)

    def _count(self) -> None:
        for name, counter in _COUNTED.items():
            now = getattr(self._stats, name)
            counter.add(now - getattr(self._seen, name))
            setattr(self._seen, name, now)

    def _commit(self, tokens: int) -> None:
        self._committed += tokens
        self._asked = None
        self._span += tokens
        if self._waiting:
            metrics.AGE.observe(time.monotonic() - self._waiting[0][1])
        while self._waiting and self._waiting[0][0] <= self._committed:
            self._waiting.popleft()


class Ages:
    """Of all requests of a router."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: set[Progress] = set()

    def add(self, progress: Progress) -> None:
        self._requests.add(progress)

    def discard(self, progress: Progress) -> None:
        self._requests.discard(progress)

    def oldest(self) -> float:
        """From any thread."""
        now = self._clock()
        return max((progress.oldest(now) for progress in list(self._requests)), default=0.0)
