"""The model behind an asyncio face: replay requests in, canonical tokens out, one pass after another.

All of vLLM runs in one worker thread; packing, the cache and the scheduler live on the event loop, where the next
pass is prepared while one runs.
"""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from llm42.config import Config
from llm42.internals.engine_core import EngineCore, make_engine_core
from llm42.protocol.errors import FingerprintMismatch, ReplayFailed, ReplayRefused
from llm42.protocol.messages import ReplayReply, ReplayRequest, token_digest
from llm42.verifier.fingerprint import fingerprint, fingerprint_parts
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageCache
from llm42.verifier.passes import Pass, PassInput, PassOutput, PassShape
from llm42.verifier.scheduler import Scheduler
from llm42.verifier.settings import require_environment, verifier_engine_args, verifier_env

logger = logging.getLogger(__name__)


class ReplayObserver(Protocol):
    """Hears what happens; rows and pages are counts since the last call, times are seconds."""

    def on_pass(
        self, rows_decode: int, rows_prefill: int, rows_padding: int, seconds: float, seconds_model: float
    ) -> None: ...
    def on_wait(self, seconds: float) -> None: ...
    def on_cache(self, hits: int, misses: int, evictions: int) -> None: ...


class ReplayEngine:
    """One verifier. Loading happens in the constructor, which blocks; everything else belongs to one event loop.

    ``multiprocess`` puts the model into a process of its own. Raises if the environment is not the pinned one
    (:func:`~llm42.verifier.settings.require_environment`), or if the model or a setting is not served.
    """

    def __init__(
        self,
        config: Config,
        model_path: str,
        *,
        multiprocess: bool = False,
        observer: ReplayObserver | None = None,
    ) -> None:
        from vllm.platforms import current_platform

        env = verifier_env(config, gpu=not current_platform.is_cpu())
        require_environment(env)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm42-replay")
        self._observer = observer
        self._timeout_s = config.timeouts.replay_s
        self._core: EngineCore = self._thread.submit(_load, config, model_path, multiprocess).result()
        self.shape = _shape(config, self._core)
        facts = self._thread.submit(self._setup).result()
        if facts["threads"] != config.verifier.threads:
            raise RuntimeError(f"torch computes on {facts['threads']} threads, not {config.verifier.threads}")
        model = self._core.vllm_config.model_config
        ranks = self._core.vllm_config.parallel_config.tensor_parallel_size
        self.parts = fingerprint_parts(
            self.shape, model.hf_config.to_dict(), env, facts, ranks
        )
        self.fingerprint = fingerprint(self.parts)
        self._vocabulary = int(model.get_vocab_size())

        from llm42.internals.block_pool import PagePool

        self._pool = PagePool(self._core.num_blocks)
        self._cache = PageCache(self._pool, self.shape.block, self.fingerprint)
        self._scheduler = Scheduler(self.shape, self._cache, config.verifier.max_queued)
        self._counted = (0, 0, 0)
        self._next = self._scheduler.plan()
        self._work = asyncio.Event()
        self._answers: dict[Job, asyncio.Future[ReplayReply]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._stopped: str | None = None

    async def replay(self, request: ReplayRequest) -> ReplayReply:
        """Answer one request; cancelling the caller cancels the work.

        Raises the errors of :mod:`llm42.protocol.errors`.
        """
        if self._stopped is not None:
            raise ReplayFailed(self._stopped)
        if request.fingerprint not in (None, self.fingerprint):
            raise FingerprintMismatch(f"asked for {request.fingerprint}, this verifier is {self.fingerprint}")
        job = self._job(request)
        self._scheduler.submit(job)
        answer = self._answers[job] = asyncio.get_running_loop().create_future()
        if self._loop is None:
            self._loop = asyncio.create_task(self._run_passes())
        try:
            self._plan()
            async with asyncio.timeout(self._timeout_s):
                reply = await answer
            return reply
        except TimeoutError:
            raise ReplayFailed(f"no answer within {self._timeout_s:g} s") from None
        finally:
            del self._answers[job]
            if self._scheduler.cancel(job):
                self._plan()

    def check_health(self) -> None:
        """Raises RuntimeError if this verifier will never answer again."""
        if self._stopped is None and self._core.dead:
            self._stop("the engine has died")
        if self._stopped is not None:
            raise RuntimeError(self._stopped)

    async def close(self) -> None:
        """Fail what is left, let the running pass end, and stop the engine."""
        self._stop("the verifier has been closed")
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop], timeout=self._timeout_s)
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(
            loop.run_in_executor(self._thread, self._core.client.shutdown), self._timeout_s
        )
        self._thread.shutdown(wait=False)

    def _job(self, request: ReplayRequest) -> Job:
        tokens = np.frombuffer(request.tokens, dtype=np.int32)
        if not 0 <= request.start < len(tokens):
            raise ReplayRefused(f"start is {request.start}, but there are {len(tokens)} tokens")
        if len(tokens) > self.shape.context:
            raise ReplayRefused(f"{len(tokens)} tokens do not fit into a context of {self.shape.context}")
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise ReplayRefused(f"token ids must be in [0, {self._vocabulary})")
        keys = self._cache.keys(request.tokens)
        return Job(self.shape, request.tokens, request.start, keys, submitted=time.perf_counter())

    def _plan(self) -> None:
        """Prepare the next pass anew: something has changed."""
        self._next = self._scheduler.plan()
        if self._next.rows:
            self._work.set()
        else:
            self._work.clear()

    async def _run_passes(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._work.wait()  # unbounded: without work there is nothing to do
                current = self._next
                self._begin(current)
                began = time.perf_counter()
                passing = loop.run_in_executor(self._thread, self._pass, current.input)
                try:
                    output = await asyncio.wait_for(asyncio.shield(passing), self._timeout_s)
                except TimeoutError:
                    return self._stop(f"a replay pass took more than {self._timeout_s:g} s")
                except Exception as error:  # whatever vLLM raises fails the pass's jobs, and only those
                    logger.exception("a replay pass failed")
                    done = self._scheduler.fail(current, ReplayFailed(f"the replay pass failed: {error!r}"))
                    self.check_health()
                else:
                    self._observe(current, output, time.perf_counter() - began)
                    done = self._scheduler.end(current, output)
                self._settle(done)
        except Exception as error:
            self._stop(f"the pass loop has died: {error!r}")
            raise

    def _begin(self, current: Pass) -> None:
        now = time.perf_counter()
        if self._observer is not None:
            for job in current.jobs:
                if not job.begun:
                    self._observer.on_wait(now - job.submitted)
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
            start=job.start,
            digest=token_digest(job.tokens),
            tokens=job.chosen.tolist(),
            logprobs=bytes(job.logprobs),
            ranks=job.ranks.tolist(),
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
        decode = len(current.input.asked)
        prefill = len(current.rows) - decode
        self._observer.on_pass(decode, prefill, current.idle_rows, seconds, sum(output.seconds))
        counted = (self._scheduler.hits, self._scheduler.misses, self._pool.evictions)
        hits, misses, evictions = (now - then for now, then in zip(counted, self._counted, strict=True))
        self._counted = counted
        self._observer.on_cache(hits, misses, evictions)

    # In the worker thread:

    def _setup(self) -> dict[str, Any]:
        shape = self.shape
        facts = self._call("llm42_setup", shape.rows, shape.window, shape.context)
        # One pass of padding: what a kernel does on its first call, it has done before the first request.
        padding = Pass(shape, ()).input
        self._pass(PassInput(padding.tokens, padding.starts, padding.tables, list(range(shape.rows))))
        return dict(facts)

    def _pass(self, given: PassInput) -> PassOutput:
        return PassOutput(*self._call("llm42_replay_pass", given.tokens, given.starts, given.tables, given.asked))

    def _call(self, method: str, *args: object) -> Any:
        """What rank 0 returns."""
        replies = self._core.client.collective_rpc(method, self._timeout_s, args)
        return next(reply for reply in replies if reply is not None)


def _load(config: Config, model_path: str, multiprocess: bool) -> EngineCore:
    from vllm.platforms import current_platform

    import llm42.internals.weights  # noqa: F401  registers the load format in this process

    args = verifier_engine_args(config, model_path, on_cpu=current_platform.is_cpu())
    return make_engine_core(args, multiprocess=multiprocess)


def _shape(config: Config, core: EngineCore) -> PassShape:
    window = config.window_size
    context = core.max_model_len // window * window
    if context == 0:
        raise ValueError(f"max_model_len is {core.max_model_len}, less than window_size {window}: no window fits")
    if context != core.max_model_len:
        logger.warning("max_model_len %d is rounded down to %d, whole windows of %d", core.max_model_len, context, window)
    return PassShape(config.verify_batch_size, window, core.block_size, context)
