"""One request as its client sees it: when its tokens leave, and how it ends. The same for both modes."""

import time

from llm42.metrics import router as metrics
from llm42.metrics.router import Mode, Outcome
from llm42.protocol import SessionStats


class Watch:
    """``arrived`` is the time (``time.time``) at which the request came."""

    def __init__(self, mode: Mode, arrived: float) -> None:
        self.mode = mode
        self.stats: SessionStats | None = None
        """Of its session, if it has one."""
        self._arrived = arrived
        self._first: float | None = None
        self._last = arrived
        self._first_tokens = 0
        self._tokens = 0
        self._unverified = 0

    def output(self, tokens: int) -> None:
        """So many more are on their way to the client."""
        if not tokens:
            return
        self._last = time.time()
        if self._first is None:
            self._first, self._first_tokens = self._last, tokens
            metrics.FIRST_TOKEN.observe(max(0.0, self._first - self._arrived), mode=self.mode)
        self._tokens += tokens
        metrics.OUTPUT.add(tokens, mode=self.mode)
        if self.mode == "deterministic":
            committed = self.stats.committed if self.stats is not None else 0
            beyond = max(self._unverified, self._tokens - committed)
            metrics.UNVERIFIED.add(beyond - self._unverified)
            self._unverified = beyond

    def end(self, outcome: Outcome) -> None:
        metrics.REQUESTS.add(mode=self.mode, outcome=outcome)
        if outcome not in ("finished", "stopped") or self._first is None:
            return
        metrics.REQUEST.observe(max(0.0, self._last - self._arrived), mode=self.mode)
        if later := self._tokens - self._first_tokens:
            metrics.OUTPUT_TOKEN.observe(max(0.0, self._last - self._first) / later, mode=self.mode)


class Watched:
    """The requests in a router, by id. Belongs to its event loop, except for :meth:`running`."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}

    def begin(self, request_id: str, mode: Mode, arrived: float) -> None:
        self._watches[request_id] = Watch(mode, arrived)

    def verify(self, request_id: str, stats: SessionStats) -> None:
        """What leaves is from now on held against what its session has committed."""
        if watch := self._watches.get(request_id):
            watch.stats = stats

    def output(self, request_id: str, tokens: int) -> None:
        if watch := self._watches.get(request_id):
            watch.output(tokens)

    def end(self, request_id: str, outcome: Outcome) -> None:
        """Whoever says first how it ended is right; later words change nothing."""
        if watch := self._watches.pop(request_id, None):
            watch.end(outcome)

    def running(self, mode: Mode) -> int:
        """How many there are now. From any thread."""
        return sum(watch.mode == mode for watch in list(self._watches.values()))
