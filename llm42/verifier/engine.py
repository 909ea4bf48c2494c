"""The asyncio face of a verifier: replay requests in, canonical tokens out, one pass after another.

Packing, the cache and the scheduler live on the event loop, where the next pass is prepared while one runs.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from llm42.config import Config
from llm42.logs import printable
from llm42.protocol.errors import FingerprintMismatch, ReplayError, ReplayFailed, ReplayRefused
from llm42.protocol.messages import Haste, ReplayReply, ReplayRequest
from llm42.verifier.audit.report import AuditReport
from llm42.verifier.company import Company
from llm42.verifier.fingerprint import fingerprint, text_digest
from llm42.verifier.grammars import Grammars
from llm42.verifier.jobs import Job
from llm42.verifier.model import PASS_S, ReplayModel
from llm42.verifier.pages import PageCache
from llm42.verifier.passes import Pass, PassOutput
from llm42.verifier.scheduler import Scheduler
from llm42.verifier.usage import PassUse, use_of

logger = logging.getLogger("ray.serve")

MAX_FAILURES = 3
"""Passes in a row that may fail. What is wrong with one row alone fails that row, so it is the engine's fault."""


class ReplayObserver(Protocol):
    """Hears what happens; pages are counts since the last call, times are seconds."""

    def on_pass(self, use: PassUse, seconds: float, parts: list[float]) -> None: ...
    def on_wait(self, seconds: float, *, urgent: bool) -> None: ...
    def on_cache(self, hits: int, misses: int, evictions: int) -> None: ...
    def on_audit(self, report: AuditReport) -> None: ...


class ReplayEngine:
    """One verifier. The constructor loads the model (see :class:`ReplayModel`), audits it, and blocks.

    Raises :class:`~llm42.verifier.audit.report.AuditFailed` if the kernels cannot be trusted. Everything else
    belongs to one event loop.
    """

    def __init__(
        self,
        config: Config,
        model_path: str,
        *,
        multiprocess: bool = False,
        observer: ReplayObserver | None = None,
    ) -> None:
        self._model = ReplayModel(config, model_path, multiprocess=multiprocess)
        self.shape, self.parts = self._model.shape, self._model.parts
        self.fingerprint, self._text = fingerprint(self.parts), text_digest(self.parts)

        # These import vLLM, so not before the environment is checked.
        from llm42.internals.block_pool import PagePool
        from llm42.verifier.audit.run import audit

        self.audit = audit(self._model, config.audit.start)
        if observer is not None:
            observer.on_audit(self.audit)
        self._pool = PagePool(self._model.num_blocks)
        self._cache = PageCache(self._pool, self.shape.block, self.fingerprint)
        self._scheduler = Scheduler(self.shape, self._cache, config.verifier.max_queued)
        self._observer = observer
        self._counted = (0, 0, 0)
        self._timeout_s = config.timeouts.verify_s
        self._grammars = Grammars(self._model.prepare, self._timeout_s, config.verifier.max_queued)
        self._next = self._scheduler.plan()
        self._planned = asyncio.Event()
        self._company = Company()
        self._ready_at = 0.0
        """Since when the prepared pass could run."""
        self._answers: dict[Job, asyncio.Future[ReplayReply]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._stopped: str | None = None
        self._failures = 0

    async def replay(self, request: ReplayRequest, on_begin: Callable[[], None] | None = None) -> ReplayReply:
        """Answer one request; cancelling the caller cancels the work. ``on_begin`` is told when its first pass begins.

        Raises the errors of :mod:`llm42.protocol.errors`.
        """
        self._require_running()
        if request.fingerprint not in (None, self.fingerprint):
            raise FingerprintMismatch(f"asked for {request.fingerprint}, this verifier is {self.fingerprint}")
        if request.text not in (None, self._text):
            raise FingerprintMismatch(
                f"the router's tokenizer, chat template, generation config or arguments are not those of the "
                f"verifiers' model (digest {request.text}, not {self._text}): see GET /fingerprint for theirs"
            )
        job = self._job(request)
        job.on_begin = on_begin
        if (grammar := request.question.selection.grammar) is not None:
            await self._grammars.require(grammar)
            self._require_running()
        self._scheduler.submit(job)
        answer: asyncio.Future[ReplayReply] = asyncio.get_running_loop().create_future()
        self._answers[job] = answer
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._run_passes(), context=contextvars.Context())
        try:
            self._plan()
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            raise ReplayFailed(f"no answer within {self._timeout_s:g} s") from None
        finally:
            del self._answers[job]
            if self._scheduler.cancel(job):
                self._plan()

    @property
    def in_flight(self) -> int:
        """Replays that wait or run."""
        return len(self._scheduler)

    @property
    def waiting(self) -> int:
        """Of which wait for pages."""
        return self._scheduler.waiting

    @property
    def vllm_config(self) -> Any:
        return self._model.vllm_config

    @property
    def pages(self) -> tuple[int, int]:
        """Pages of KV in all, and those that no replay holds."""
        return self._pool.capacity, self._pool.free

    def condemn(self, reason: str) -> None:
        """Answer no more: what this verifier computes cannot be trusted."""
        logger.error("condemned: %s", reason)
        self._stop(reason)

    def check_health(self) -> None:
        """Raises RuntimeError if this verifier will never answer again."""
        if self._model.dead:
            self._stop("the engine has died")
        if self._stopped is not None:
            raise RuntimeError(self._stopped)

    async def close(self) -> None:
        """Fail what is left, let the running pass end, and stop the engine."""
        self._stop("the verifier has been closed")
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop], timeout=PASS_S)
        await self._model.close()

    def _job(self, request: ReplayRequest) -> Job:
        question = request.question
        tokens = np.frombuffer(question.tokens, dtype=np.int32)
        if not 0 <= question.start < len(tokens):
            raise ReplayRefused(f"start is {question.start}, but there are {len(tokens)} tokens")
        if not 0 <= question.given < question.count or not 0 <= question.top < self._model.vocabulary:
            raise ReplayRefused(f"given is {question.given} of {question.count}, and top {question.top}")
        if len(tokens) > self.shape.context:
            raise self._not_here(request, f"{len(tokens)} tokens do not fit into a context of {self.shape.context}")
        if tokens.min() < 0 or tokens.max() >= self._model.vocabulary:
            raise ReplayRefused(f"token ids must be in [0, {self._model.vocabulary})")
        if question.adapter not in self._model.adapters:
            raise self._not_here(request, f"there is no adapter {question.adapter!r} here")
        if not question.selection.names_within(self._model.vocabulary):
            raise ReplayRefused(f"a parameter names a token that is not in [0, {self._model.vocabulary})")
        keys = self._cache.keys(question.tokens, request.cache_salt, question.adapter)
        return Job(
            *(self.shape, question, keys, request.fresh, request.haste),
            submitted=time.perf_counter(),
            request_id=request.request_id,
        )

    @staticmethod
    def _not_here(request: ReplayRequest, reason: str) -> ReplayError:
        """Of what differs between the pools of two deploys: who has not settled on one may be served by the other."""
        return FingerprintMismatch(reason) if request.fingerprint is None else ReplayRefused(reason)

    def _require_running(self) -> None:
        if self._stopped is not None:
            raise ReplayFailed(self._stopped)

    def _plan(self) -> None:
        """Prepare the next pass anew: something has changed."""
        self._next = self._scheduler.plan()
        self._planned.set()

    async def _run_passes(self) -> None:
        try:
            while True:
                await self._due()
                current = self._next
                self._begin(current)
                began = time.perf_counter()
                try:
                    output = await self._model.run(current.input)
                except TimeoutError:
                    return self._stop(f"a replay pass took more than {PASS_S:g} s")
                except Exception as error:  # whatever vLLM raises fails the jobs of the pass, and only those
                    logger.exception("a replay pass failed, with rows of %s", _named(current))
                    done = self._scheduler.fail(current, ReplayFailed(f"the replay pass failed: {error!r}"))
                    self._failures += 1
                    if self._failures == MAX_FAILURES:
                        self._stop(f"{MAX_FAILURES} replay passes in a row have failed, the last with {error!r}")
                    self.check_health()
                else:
                    self._failures = 0
                    seconds = time.perf_counter() - began
                    self._company.ran(current, seconds)
                    self._observe(current, output, seconds)
                    done = self._scheduler.end(current, output)
                self._settle(done)
        except Exception as error:
            self._stop(f"the pass loop has died: {error!r}")
            raise

    async def _due(self) -> None:
        """Until there is a pass to run, and it has waited long enough for company."""
        self._ready_at = time.perf_counter()
        while True:
            self._planned.clear()
            if not self._next.rows:
                await self._planned.wait()  # unbounded: without work there is nothing to do
                self._ready_at = time.perf_counter()
                continue
            patience_s = self._company.patience_s(self._next, short_of_pages=self._scheduler.short_of_pages)
            left = self._ready_at + patience_s - time.perf_counter()
            if left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._planned.wait()

    def _begin(self, current: Pass) -> None:
        """Commit to the prepared pass, and prepare the one after it."""
        for job in current.jobs:
            if job.begun:
                continue
            if self._observer is not None:
                waited = max(0.0, self._ready_at - job.submitted)  # for rows, not for company
                self._observer.on_wait(waited, urgent=not job.fresh and job.haste >= Haste.DUE)
            if job.on_begin is not None:
                job.on_begin()
        self._scheduler.begin(current)
        self._plan()

    def _settle(self, done: list[Job]) -> None:
        """Answer the jobs that have ended; plan again where that may change the prepared pass."""
        if self._next.idle_rows or any(job.error for job in done):
            self._plan()
        for job in done:
            answer = self._answers.get(job)
            if answer is None or answer.done():
                continue
            if job.error is not None:
                answer.set_exception(job.error)
            else:
                answer.set_result(self._reply(job))

    def _reply(self, job: Job) -> ReplayReply:
        return ReplayReply(
            fingerprint=self.fingerprint,
            digest=job.question.digest,
            scores=job.scores,
            idle_rows=self._next.idle_rows,
        )

    def _stop(self, reason: str) -> None:
        """Never answer again."""
        self._stopped = self._stopped or reason
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ReplayFailed(reason))

    def _observe(self, current: Pass, output: PassOutput, seconds: float) -> None:
        if self._observer is None:
            return
        self._observer.on_pass(use_of(current), seconds, output.seconds)
        counted = (self._scheduler.hits, self._scheduler.misses, self._pool.evictions)
        hits, misses, evictions = (now - then for now, then in zip(counted, self._counted, strict=True))
        self._counted = counted
        self._observer.on_cache(hits, misses, evictions)


def _named(current: Pass) -> str:
    return ", ".join(printable(job.request_id) for job in current.jobs)
