"""The model: vLLM's engine core, driven one pass at a time from one worker thread."""

import asyncio
import hashlib
import logging
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

from llm42.adapters import Adapter, adapters_of
from llm42.config import Config
from llm42.internals.engine_core import EngineCore, make_engine_core
from llm42.protocol.errors import ReplayError, ReplayFailed, ReplayImpossible
from llm42.protocol.messages import Question, pack_tokens
from llm42.protocol.selection import GREEDY, Selection
from llm42.protocol.steering import Grammar
from llm42.verifier.fingerprint import engine_parts, fingerprint_parts, text_parts
from llm42.verifier.jobs import Job
from llm42.verifier.pages import PageTable
from llm42.verifier.passes import Pass, PassInput, PassOutput, PassShape, Row, RowOutput
from llm42.verifier.settings import require_environment, verifier_engine_args, verifier_env

logger = logging.getLogger("ray.serve")

PASS_S = 300.0
"""A pass that takes longer hangs (vLLM's own limit for an executor)."""
_ROW_ERRORS: dict[str, type[ReplayError]] = {error.__name__: error for error in (ReplayFailed, ReplayImpossible)}
_PROBED = Selection(temperature=0.8, top_p=0.95, top_k=100, min_p=0.001, seed=42)


class ReplayModel:
    """A loaded model that runs passes of one shape. The constructor loads it, and blocks.

    ``multiprocess`` puts it into a process of its own. Raises if the environment is not the pinned one
    (:func:`~llm42.verifier.settings.require_environment`), or if the model or a setting is not served.
    """

    def __init__(self, config: Config, model_path: str, *, multiprocess: bool = False) -> None:
        from vllm.platforms import current_platform

        self.on_cpu = bool(current_platform.is_cpu())
        env = verifier_env(config, gpu=not self.on_cpu)
        require_environment(env)
        adapters = adapters_of(config)
        self.adapters = ("", *(adapter.name for adapter in adapters))
        """What a row may have on; "" is none."""
        args = verifier_engine_args(config, model_path, adapters, on_cpu=self.on_cpu)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm42-replay")
        # As long as it takes: weights may be large, and Serve watches the start of a replica.
        self._core = self._thread.submit(_load, args, multiprocess).result()
        self.shape = _shape(config, self._core)
        model, parallel = self._core.vllm_config.model_config, self._core.vllm_config.parallel_config
        self.vocabulary = int(model.get_vocab_size())
        facts = self._thread.submit(self._setup, adapters).result()
        if facts["threads"] != config.verifier.threads:
            raise RuntimeError(f"torch computes on {facts['threads']} threads, not {config.verifier.threads}")
        facts["engine"] = engine_parts(config.verifier.engine)
        if adapters:
            facts["adapters"] = {adapter.name: adapter.digest for adapter in adapters}
        facts |= text_parts(model_path, config.verifier.engine.get("revision"), config.router.arguments)
        self.parts = fingerprint_parts(self.shape, model.hf_config.to_dict(), env, facts, parallel.tensor_parallel_size)
        """What the fingerprint is made of."""

    @property
    def num_blocks(self) -> int:
        """KV blocks, vLLM's null block 0 included."""
        return self._core.num_blocks

    @property
    def vllm_config(self) -> Any:
        return self._core.vllm_config

    @property
    def dead(self) -> bool:
        return self._core.dead

    async def run(self, given: PassInput) -> PassOutput:
        """One pass. Raises TimeoutError if it hangs, and whatever vLLM raises."""
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.run_in_executor(self._thread, self._pass, given), PASS_S)

    async def prepare(self, grammar: Grammar) -> list[str]:
        """How far a grammar is: see ``llm42_prepare_grammar``."""
        call = asyncio.get_running_loop().run_in_executor(
            self._thread, self._call, "llm42_prepare_grammar", grammar.fields
        )
        found: list[str] = await asyncio.wait_for(call, PASS_S)
        return found

    def run_now(self, given: PassInput) -> PassOutput:
        """One pass, blocking: for the audit, before there is an event loop to serve."""
        return self._thread.submit(self._pass, given).result(PASS_S)

    def digests(self, given: PassInput, asked: list[list[int]], lead: int) -> list[bytes]:
        """One pass, blocking: see ``llm42_digest_pass``."""
        arguments = (given.tokens, given.starts, given.tables, given.adapters, asked, lead)
        digests: list[bytes] = self._thread.submit(self._call, "llm42_digest_pass", *arguments).result(PASS_S)
        return digests

    async def close(self) -> None:
        """Stop the engine once the running pass has ended."""
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.run_in_executor(self._thread, self._core.client.shutdown), PASS_S)
        self._thread.shutdown(wait=False)

    def _setup(self, adapters: Sequence[Adapter]) -> dict[str, Any]:
        shape = self.shape
        paths = {adapter.name: str(adapter.path) for adapter in adapters}
        facts: dict[str, Any] = self._call("llm42_setup", shape.rows, shape.window, shape.context, paths)
        # What a kernel does on its first call, it does here and not for the first request.
        facts["probe"] = self._probe()
        return facts

    def _probe(self) -> str:
        """Digest of passes over a fixed sequence, every position asked: catches what no version number tells.

        With each adapter, one is greedy and one samples. Uses the first pages of the pool, before anybody else does.
        """
        shape = self.shape
        blocks = min(-(-shape.rows * shape.window // shape.block), shape.blocks, self.num_blocks - 1)
        length = min(shape.rows * shape.window, shape.context, blocks * shape.block)
        tokens = pack_tokens(filler(range(length), self.vocabulary))
        digest = hashlib.sha256()
        for adapter, selection in product(self.adapters, (GREEDY, _PROBED)):
            job = Job(shape, Question(tokens, 0, selection, adapter=adapter), keys=[])
            job.table = PageTable(pages=[], ids=array("i", range(1, blocks + 1)), shared=0)
            output = self._pass(Pass(shape, tuple(Row(job, window) for window in job.pending)).input)
            digest.update(b"".join(part for row in output.rows for part in _chosen(row)))
        return digest.hexdigest()

    def _pass(self, given: PassInput) -> PassOutput:
        arrays = (given.tokens, given.starts, given.tables)
        rows, seconds = self._call("llm42_replay_pass", *arrays, given.adapters, given.asked, given.lead, given.orders)
        return PassOutput([_ROW_ERRORS[row[0]](row[1]) if len(row) == 2 else RowOutput(*row) for row in rows], seconds)

    def _call(self, method: str, *args: object) -> Any:
        """What rank 0 returns."""
        replies = self._core.client.collective_rpc(method, PASS_S, args)
        return next(reply for reply in replies if reply is not None)


def _chosen(row: RowOutput | ReplayError) -> RowOutput:
    if isinstance(row, ReplayError):
        raise row
    return row


def filler(positions: Iterable[int], vocabulary: int) -> list[int]:
    """Tokens that stand for text, one for each position."""
    return [(7919 * position + 42) % vocabulary for position in positions]


def _load(args: dict[str, Any], multiprocess: bool) -> EngineCore:
    import llm42.internals.weights  # noqa: F401  registers the load format in this process

    return make_engine_core(args, multiprocess=multiprocess)


def _shape(config: Config, core: EngineCore) -> PassShape:
    window = config.window_size
    context = core.max_model_len // window * window
    if context == 0:
        raise ValueError(f"max_model_len is {core.max_model_len}, less than window_size {window}: no window fits")
    if context != core.max_model_len:
        logger.warning("max_model_len %d rounded down to %d: whole windows of %d", core.max_model_len, context, window)
    return PassShape(config.verify_batch_size, window, core.block_size, context)
