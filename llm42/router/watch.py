"""One request as its client sees it: when its tokens leave, and how it ends. The same for both modes."""

import time
from dataclasses import asdict, dataclass
from http import HTTPStatus

from llm42.logs import log_request
from llm42.metrics import router as metrics
from llm42.metrics.router import Mode, Outcome
from llm42.protocol import SessionStats
from llm42.router.verifiers import Pin


@dataclass(frozen=True, slots=True)
class Work:
    """What is done for a deterministic request; all of it grows until the request ends."""

    stats: SessionStats
    pin: Pin
    verifiers: set[str]
    """The replicas that have answered."""
    drafters: set[str]
    """The replicas that were asked for drafts."""


class Watch:
    """``arrived`` is the time (``time.time``) at which the request came."""

    def __init__(self, request_id: str, mode: Mode, arrived: float, prompt_tokens: int) -> None:
        self.mode = mode
        self.work: Work | None = None
        """Of its session, if it has one."""
        self._request_id = request_id
        self._arrived = arrived
        self._prompt_tokens = prompt_tokens
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
            committed = self.work.stats.committed if self.work is not None else 0
            beyond = max(self._unverified, self._tokens - committed)
            metrics.UNVERIFIED.add(beyond - self._unverified)
            self._unverified = beyond

    def end(self, outcome: Outcome, status: HTTPStatus | None = None) -> None:
        """``status`` is the client's, where the request has failed."""
        metrics.REQUESTS.add(mode=self.mode, outcome=outcome)
        self._log(outcome, status)
        if outcome not in ("finished", "stopped") or self._first is None:
            return
        metrics.REQUEST.observe(max(0.0, self._last - self._arrived), mode=self.mode)
        if later := self._tokens - self._first_tokens:
            metrics.OUTPUT_TOKEN.observe(max(0.0, self._last - self._first) / later, mode=self.mode)

    def _log(self, outcome: Outcome, status: HTTPStatus | None) -> None:
        """Nothing of what was asked or answered: neither text nor tokens nor seed."""
        work = self.work
        log_request(
            self._request_id,
            mode=self.mode,
            outcome=outcome,
            status=None if status is None else status.value,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._tokens,
            first_token_s=None if self._first is None else round(max(0.0, self._first - self._arrived), 3),
            total_s=round(max(0.0, time.time() - self._arrived), 3),
            **({} if work is None else _told(work)),
        )


def _told(work: Work) -> dict[str, str | int | None]:
    return {
        **asdict(work.stats),
        "fingerprint": work.pin.fingerprint,
        "verifiers": ",".join(sorted(work.verifiers)) or None,
        "drafters": ",".join(sorted(work.drafters)) or None,
    }


class Watched:
    """The requests in a router, by id. Belongs to its event loop, except for :meth:`running`."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}

    def begin(self, request_id: str, mode: Mode, arrived: float, prompt_tokens: int) -> None:
        self._watches[request_id] = Watch(request_id, mode, arrived, prompt_tokens)

    def verify(self, request_id: str, work: Work) -> None:
        """What leaves is from now on held against what its session has committed."""
        if watch := self._watches.get(request_id):
            watch.work = work

    def output(self, request_id: str, tokens: int) -> None:
        if watch := self._watches.get(request_id):
            watch.output(tokens)

    def end(self, request_id: str, outcome: Outcome, status: HTTPStatus | None = None) -> None:
        """Whoever says first how it ended is right; later words change nothing."""
        if watch := self._watches.pop(request_id, None):
            watch.end(outcome, status)

    def running(self, mode: Mode) -> int:
        """How many there are now. From any thread."""
        return sum(watch.mode == mode for watch in list(self._watches.values()))
