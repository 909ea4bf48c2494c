"""The catalogue: every metric, declared once; and the objects that the parts report to.

Exported through ``ray.serve.metrics``: on each node's metrics port as ``ray_llm42_…`` with Serve's own labels
(application, deployment, replica). Counters get ``_total`` there. Nothing of a prompt is ever a label.
"""

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from llm42.protocol import SessionStats

if TYPE_CHECKING:
    from llm42.verifier.audit.report import AuditReport

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Metric:
    """A declaration; Ray's own object is made on first use, in the process that reports."""

    name: str
    kind: Literal["counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = _SECONDS

    @cached_property
    def _instrument(self) -> Any:
        from ray.serve import metrics

        if self.kind == "counter":
            return metrics.Counter(self.name, description=self.help, tag_keys=self.labels)
        return metrics.Histogram(self.name, description=self.help, boundaries=list(self.buckets), tag_keys=self.labels)

    def add(self, amount: float, **labels: str) -> None:
        if amount:  # Ray refuses to count nothing
            self._instrument.inc(amount, tags=labels)

    def observe(self, value: float, **labels: str) -> None:
        self._instrument.observe(value, tags=labels)


REQUESTS = Metric("llm42_requests", "counter", "Deterministic requests, by how they ended.", ("outcome",))
DRAFTED = Metric("llm42_tokens_drafted", "counter", "Tokens drafted for deterministic requests.")
VERIFIED = Metric("llm42_tokens_verified", "counter", "Drafted tokens that were replayed.")
ACCEPTED = Metric("llm42_tokens_accepted", "counter", "Drafted tokens that the replay confirmed.")
COMMITTED = Metric("llm42_tokens_committed", "counter", "Canonical tokens sent to clients.")
ROLLED_BACK = Metric("llm42_tokens_rolled_back", "counter", "Drafted tokens thrown away by rollbacks.")
ROLLBACKS = Metric("llm42_rollbacks", "counter", "Rollbacks: a draft differed from the canonical token.")
FAILOVERS = Metric("llm42_failovers", "counter", "Replay calls that were tried again.")
WINDOWS = Metric("llm42_windows_verified", "counter", "Rows of replay passes: decode, prefill or padding.", ("kind",))
PASS_SECONDS = Metric("llm42_verify_pass_seconds", "histogram", "Time of one replay pass.")
MODEL_SECONDS = Metric("llm42_verify_model_seconds", "histogram", "Of which forward, logits and selection.")
WAIT_SECONDS = Metric("llm42_verify_wait_seconds", "histogram", "Time a replay request waited for its first row.")
REPLAY_SECONDS = Metric("llm42_replay_seconds", "histogram", "Time of a replay as the router sees it.")
PAGES = Metric("llm42_window_cache_pages", "counter", "Window cache pages, by event: hit, miss, eviction.", ("event",))
AUDITS = Metric(
    "llm42_audits", "counter", "Answers replayed again, by outcome; any mismatch is an alarm.", ("outcome",)
)
AUDIT_SECONDS = Metric("llm42_start_audit_seconds", "histogram", "Time of a start-up audit that passed.")
REFUSED = Metric("llm42_verifiers_refused", "counter", "Verifiers refused before they served, by why.", ("reason",))

CATALOGUE = tuple(value for value in vars().values() if isinstance(value, Metric))


class RouterMetrics:
    """What a router reports."""

    def request_done(self, stats: SessionStats, outcome: str) -> None:
        REQUESTS.add(1, outcome=outcome)
        DRAFTED.add(stats.drafted)
        VERIFIED.add(stats.verified)
        ACCEPTED.add(stats.accepted)
        COMMITTED.add(stats.committed)
        ROLLED_BACK.add(stats.rolled_back)
        ROLLBACKS.add(stats.rollbacks)

    def replayed(self, seconds: float) -> None:
        REPLAY_SECONDS.observe(seconds)

    def failover(self, reason: str) -> None:
        FAILOVERS.add(1)
        logger.warning("replay tried again: %s", reason)

    def audited(self, outcome: Literal["confirmed", "mismatch", "skipped", "unanswered"], reason: str = "") -> None:
        AUDITS.add(1, outcome=outcome)
        if outcome == "mismatch":
            logger.critical("DETERMINISM IS BROKEN: %s", reason)
        elif outcome == "unanswered":
            logger.warning("an audit got no answer: %s", reason)

    def uncondemned(self, replica_id: str, reason: str) -> None:
        logger.error("verifier %s could not be told that it is condemned: %s", replica_id, reason)

    def crashed(self, request_id: str, error: BaseException) -> None:
        logger.error("request %s failed on a bug", request_id, exc_info=error)


class VerifierMetrics:
    """What a verifier reports: the observer of its replay engine."""

    def on_pass(
        self, rows_decode: int, rows_prefill: int, rows_padding: int, seconds: float, seconds_model: float
    ) -> None:
        WINDOWS.add(rows_decode, kind="decode")
        WINDOWS.add(rows_prefill, kind="prefill")
        WINDOWS.add(rows_padding, kind="padding")
        PASS_SECONDS.observe(seconds)
        MODEL_SECONDS.observe(seconds_model)

    def on_wait(self, seconds: float) -> None:
        WAIT_SECONDS.observe(seconds)

    def on_cache(self, hits: int, misses: int, evictions: int) -> None:
        PAGES.add(hits, event="hit")
        PAGES.add(misses, event="miss")
        PAGES.add(evictions, event="eviction")

    def on_audit(self, report: "AuditReport") -> None:
        AUDIT_SECONDS.observe(report.seconds)
        logger.info("%s", report)

    def refused(self, reason: str) -> None:
        REFUSED.add(1, reason=reason)
