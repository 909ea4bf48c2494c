"""What a verifier measures: how its passes are used, what they cost, and what they wait for."""

import logging
from typing import TYPE_CHECKING

from llm42.metrics.metric import OPEN, SECONDS, Counter, Gauge, Histogram
from llm42.metrics.reporter import Reporter
from llm42.verifier.demand import Demand

if TYPE_CHECKING:
    from llm42.verifier.audit.report import AuditReport
    from llm42.verifier.engine import ReplayEngine
    from llm42.verifier.usage import PassUse

PASS_SECONDS = Histogram(
    "llm42_verify_pass_seconds",
    "seconds",
    "Time of one replay pass. Its rows answer (decode), only fill the cache (prefill), or some do this and some that.",
    {"kind": ("decode", "prefill", "mixed")},
    buckets=SECONDS,
)
PART_SECONDS = Counter(
    "llm42_verify_seconds",
    "seconds",
    "Time spent in replay passes. rest: what Python and vLLM add around model, LM head and choice.",
    {"part": ("model", "head", "choice", "rest")},
)
ROWS = Counter(
    "llm42_verify_rows",
    "rows",
    "Rows of replay passes. prefill: whole windows for the cache; full and partial: windows that answer, with all or "
    "some of their tokens there; padding: nothing to do.",
    {"kind": ("prefill", "full", "partial", "padding")},
)
SLOTS = Counter(
    "llm42_verify_slots",
    "slots",
    "Slots of replay passes. prefill: tokens for the cache; answered: positions asked for; again: tokens of the same "
    "window that had been replayed before; padding: nothing there.",
    {"kind": ("prefill", "answered", "again", "padding")},
)
WAIT_SECONDS = Histogram(
    "llm42_verify_wait_seconds",
    "seconds",
    "Time a replay request waited for its first row, but for company.",
    buckets=SECONDS,
)
REPLAYS = Gauge("llm42_replays", "requests", "Replay requests in a verifier now.", {"state": ("running", "waiting")})
PAGE_EVENTS = Counter(
    "llm42_window_cache_pages",
    "pages",
    "Window cache pages that a replay could share and found (hit) or had to compute (miss), and published ones that "
    "were given to something else (eviction).",
    {"event": ("hit", "miss", "eviction")},
)
PAGES = Gauge(
    "llm42_verifier_kv_pages",
    "pages",
    "Pages of a verifier's KV memory: held by replays, or free (published ones stay findable while they are).",
    {"state": ("held", "free")},
)
AUDIT_SECONDS = Histogram(
    "llm42_start_audit_seconds",
    "seconds",
    "Time of a start-up audit that passed.",
    buckets=(1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
REFUSED = Counter(
    "llm42_verifiers_refused",
    "verifiers",
    "Verifiers refused before they served: their kernels failed the audit, or their fingerprint is not the pool's.",
    {"reason": ("audit", "fingerprint")},
)
FINGERPRINT = Gauge(
    "llm42_fingerprint_info",
    "1",
    "Always 1: what a verifier computes as. More than one fingerprint for an application is a deploy under way.",
    {"fingerprint": OPEN, "model": OPEN, "window_size": OPEN, "verify_batch_size": OPEN},
)

METRICS = tuple(value for value in vars().values() if isinstance(value, Counter | Gauge | Histogram))

logger = logging.getLogger("ray.serve")


class VerifierMetrics:
    """The observer of a replay engine, and what its deployment reports to."""

    def __init__(self) -> None:
        self._reporter = Reporter(METRICS, self._sample)
        self._found = self._looked_up = 0

    def start(self, engine: "ReplayEngine", model: str) -> None:
        """``model`` is its name in the API."""
        from llm42.internals.engine_stats import EngineStats

        self._engine, self._model = engine, model
        self.demand = Demand()
        self._stats = EngineStats(engine.vllm_config, model)
        self._reporter.start()

    def check_health(self) -> None:
        self._reporter.check_health()

    def _sample(self) -> None:
        engine, shape = self._engine, self._engine.shape
        waiting, (pages, free) = engine.waiting, engine.pages
        running = max(engine.in_flight - waiting, 0)
        REPLAYS.set(running, state="running")
        REPLAYS.set(waiting, state="waiting")
        PAGES.set(pages - free, state="held")
        PAGES.set(free, state="free")
        FINGERPRINT.set(
            1,
            fingerprint=engine.fingerprint,
            model=self._model,
            window_size=str(shape.window),
            verify_batch_size=str(shape.rows),
        )
        looked_up, found, self._looked_up, self._found = self._looked_up, self._found, 0, 0
        self._stats.replayed(running, waiting, 1 - free / pages, looked_up * shape.block, found * shape.block)
        self._stats.report()

    def on_pass(self, use: "PassUse", seconds: float, parts: list[float]) -> None:
        self.demand.on_pass(use, seconds)
        PASS_SECONDS.observe(seconds, kind=use.kind)
        for part, spent in zip(("model", "head", "choice"), parts, strict=True):
            PART_SECONDS.add(spent, part=part)
        PART_SECONDS.add(max(0.0, seconds - sum(parts)), part="rest")
        for kind, rows in use.rows.items():
            ROWS.add(rows, kind=kind)
        for kind, slots in use.slots.items():
            SLOTS.add(slots, kind=kind)

    def on_wait(self, seconds: float, *, urgent: bool) -> None:
        WAIT_SECONDS.observe(seconds)
        if urgent:  # the others wait for rows that nobody else wants
            self.demand.on_wait(seconds)

    def on_cache(self, hits: int, misses: int, evictions: int) -> None:
        PAGE_EVENTS.add(hits, event="hit")
        PAGE_EVENTS.add(misses, event="miss")
        PAGE_EVENTS.add(evictions, event="eviction")
        self._found += hits
        self._looked_up += hits + misses

    def on_audit(self, report: "AuditReport") -> None:
        AUDIT_SECONDS.observe(report.seconds)
        logger.info("%s", report)

    def refused(self, reason: str) -> None:
        REFUSED.add(reason=reason)
        REFUSED.report()  # this process has not long to live
