"""What a router measures: requests as their clients see them, and how drafts fare."""

import logging
from collections.abc import Callable
from typing import Literal, get_args

from llm42.logs import printable
from llm42.metrics.metric import SECONDS, TOKENS, Counter, Gauge, Histogram
from llm42.metrics.reporter import Reporter

Mode = Literal["deterministic", "ordinary"]
Outcome = Literal["finished", "stopped", "unverifiable", "refused", "error"]

Audited = Literal["confirmed", "mismatch", "skipped", "unanswered"]
Limit = Literal["requests", "tokens"]

_MODE = {"mode": get_args(Mode)}

REQUESTS = Counter(
    "llm42_requests",
    "requests",
    "Requests that have ended, one for each choice. stopped: by a stop string, or the client left; unverifiable: no "
    "verifier answered (503); refused: a verifier will never answer it (400); error: the engine of an ordinary "
    "one was lost (503), the model computes no usable logits, or a bug (500).",
    {**_MODE, "outcome": get_args(Outcome)},
)
RUNNING = Gauge("llm42_requests_running", "requests", "Requests in the router now.", _MODE)
FIRST_TOKEN = Histogram(
    "llm42_time_to_first_token_seconds",
    "seconds",
    "From the request's arrival in vLLM's frontend to its first tokens on their way to the client.",
    _MODE,
    buckets=SECONDS,
)
OUTPUT_TOKEN = Histogram(
    "llm42_time_per_output_token_seconds",
    "seconds",
    "Of each request: time from its first to its last tokens, for each token after the first ones.",
    _MODE,
    buckets=SECONDS,
)
REQUEST = Histogram(
    "llm42_request_seconds",
    "seconds",
    "From arrival to the last token, of requests that finished or were stopped.",
    _MODE,
    buckets=(*SECONDS[3:], 120.0, 300.0),
)
OUTPUT = Counter("llm42_output_tokens", "tokens", "Tokens on their way to clients.", _MODE)
UNVERIFIED = Counter(
    "llm42_unverified_tokens",
    "tokens",
    "Tokens of deterministic requests on their way to clients beyond what was committed, counted at the exit. Must "
    "stay 0: anything else is a bug.",
)

DRAFTED = Counter("llm42_tokens_drafted", "tokens", "Tokens drafted for deterministic requests.")
VERIFIED = Counter("llm42_tokens_verified", "tokens", "Drafted tokens that were replayed.")
ACCEPTED = Counter("llm42_tokens_accepted", "tokens", "Drafted tokens that the replay confirmed.")
COMMITTED = Counter("llm42_tokens_committed", "tokens", "Canonical tokens of deterministic requests.")
ROLLED_BACK = Counter("llm42_tokens_rolled_back", "tokens", "Drafted tokens thrown away by rollbacks.")
RECOMPUTED = Counter(
    "llm42_tokens_recomputed",
    "tokens",
    "Tokens drafted for a position that had been drafted before: what rollbacks cost.",
)
ROLLBACKS = Counter("llm42_rollbacks", "rollbacks", "Rollbacks: a draft differed from the canonical token.")
SPAN = Histogram(
    "llm42_consistent_span_tokens",
    "tokens",
    "Tokens committed from the start or a rollback up to the next rollback, or to the end of the request.",
    {"end": ("rollback", "request")},
    buckets=TOKENS,
)
RUN_AHEAD = Histogram(
    "llm42_run_ahead_tokens",
    "tokens",
    "How far drafts were ahead of the committed tokens, at each replay sent.",
    buckets=TOKENS[:10],
)
AGE = Histogram(
    "llm42_uncommitted_age_seconds",
    "seconds",
    "How long ago the oldest drafted token of each commit was drafted.",
    buckets=SECONDS,
)
OLDEST = Gauge(
    "llm42_oldest_uncommitted_seconds",
    "seconds",
    "Age of the oldest drafted token or replay that waits for its commit.",
)
REPLAY_SECONDS = Histogram(
    "llm42_replay_seconds", "seconds", "Time of a replay as the router sees it, all tries together.", buckets=SECONDS
)
FAILOVERS = Counter(
    "llm42_failovers",
    "calls",
    "Replay calls that were tried again. died: no answer in time, or no replica; busy: its queue was full; failed: the "
    "pass failed; fingerprint: a verifier of another pool.",
    {"reason": ("died", "busy", "failed", "fingerprint")},
)
REBUILDS = Counter(
    "llm42_window_cache_rebuilds",
    "sequences",
    "Times that a sequence moved to another verifier, which has to compute its windows anew.",
)
DRAFTS_LOST = Counter(
    "llm42_drafts_lost",
    "drafts",
    "Drafts that died or fell silent: the verifier goes on alone until there is a new one.",
)
AUDITS = Counter(
    "llm42_audits",
    "answers",
    "Answers replayed again. mismatch: determinism is broken; skipped: too many at once; unanswered: no verifier did.",
    {"outcome": get_args(Audited)},
)
OVER_QUOTA = Counter(
    "llm42_over_quota",
    "requests",
    "Deterministic requests and receipts refused with a 429. requests: the key had all its answers under way; tokens: "
    "it had used up its tokens.",
    {"limit": get_args(Limit)},
)

METRICS = tuple(value for value in vars().values() if isinstance(value, Counter | Gauge | Histogram))

_REASONS = {"VerifierBusy": "busy", "ReplayFailed": "failed", "FingerprintMismatch": "fingerprint"}
logger = logging.getLogger("ray.serve")


class RouterMetrics:
    """What the parts of a router report to."""

    def __init__(self) -> None:
        self._reporter = Reporter(METRICS, self._sample)

    def start(self, running: Callable[[Mode], int], oldest: Callable[[], float]) -> None:
        """``running`` counts requests, ``oldest`` is the age in seconds of the oldest draft; from any thread."""
        self._running, self._oldest = running, oldest
        self._reporter.start()

    def check_health(self) -> None:
        self._reporter.check_health()

    def close(self) -> None:
        self._reporter.close()

    def _sample(self) -> None:
        for mode in get_args(Mode):
            RUNNING.set(self._running(mode), mode=mode)
        OLDEST.set(self._oldest())

    def replayed(self, seconds: float) -> None:
        REPLAY_SECONDS.observe(seconds)

    def failover(self, request_id: str, error: Exception) -> None:
        FAILOVERS.add(reason=_REASONS.get(type(error).__name__, "died"))
        logger.warning("replay of %s tried again: %s: %s", printable(request_id), type(error).__name__, error)

    def audited(self, outcome: Audited, reason: str = "") -> None:
        AUDITS.add(outcome=outcome)
        if outcome == "mismatch":
            logger.critical("DETERMINISM IS BROKEN: %s", reason)
        elif outcome == "unanswered":
            logger.warning("an audit got no answer: %s", reason)

    def over_quota(self, limit: Limit) -> None:
        OVER_QUOTA.add(limit=limit)

    def uncondemned(self, replica_id: str, reason: str) -> None:
        logger.error("verifier %s could not be told that it is condemned: %s", replica_id, reason)

    def crashed(self, request_id: str, error: BaseException) -> None:
        logger.error("request %s failed on a bug", printable(request_id), exc_info=error)
