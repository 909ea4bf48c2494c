"""A fast path engine: vLLM's continuous batching, with a clock in place of a model.

Each step decodes a token of every running sequence, and computes prompts in what is left of its token budget. KV
memory is not simulated, so nothing is ever preempted, and a request that starts again finds what it had computed.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy

from llm42.plan.core import Core
from llm42.plan.fleet import Fleet
from llm42.plan.ledger import Ledger
from llm42.plan.step_times import StepTimes


@dataclass(slots=True, eq=False)
class Generation:
    """``prompt`` tokens to go on from, for up to ``max_tokens``. ``deliver`` hears of each token, and of the last."""

    owner: int
    """Number of the request: its earlier generations have left their KV."""
    prompt: int
    max_tokens: int
    deliver: Callable[[bool], None]
    computed: int = 0
    written: int = 0
    aborted: bool = False

    @property
    def length(self) -> int:
        return self.prompt + self.written


class FastPathEngine:
    def __init__(self, env: simpy.Environment, fleet: Fleet, times: StepTimes, core: Core, ledger: Ledger) -> None:
        self._env = env
        self._core = core
        self._fleet = fleet
        self._times = times
        self._ledger = ledger
        self._waiting: deque[Generation] = deque()
        self._running: dict[Generation, None] = {}
        self._known: dict[int, int] = {}
        """Tokens that a request has in the cache."""
        self._work = env.event()
        self.load = 0
        """Generations placed here, kept by the router."""
        env.process(self._run())

    def submit(self, generation: Generation) -> None:
        if generation.aborted:
            return
        self._waiting.append(generation)
        if not self._work.triggered:
            self._work.succeed()

    def abort(self, generation: Generation) -> None:
        """Also of one that has ended, or has not come yet."""
        generation.aborted = True
        if generation in self._running:
            self._leave(generation)
        elif generation in self._waiting:
            self._waiting.remove(generation)

    def forget(self, owner: int) -> None:
        """The request has ended."""
        self._known.pop(owner, None)

    def _run(self) -> Generator[simpy.Event, None, None]:
        while True:
            if not self._waiting and not self._running:
                self._work = self._env.event()
                yield self._work
            while owed := self._core.pay():
                yield self._env.timeout(owed)
            if not self._waiting and not self._running:
                continue  # all were aborted meanwhile
            decoding, prefill = self._schedule()
            began = self._env.now
            context = sum(generation.length for generation in decoding)
            seconds = self._times.draft.step_s(len(decoding), sum(prefill.values()), context)
            yield self._env.timeout(self._core.step(seconds))
            self._ledger.work("fast_path", began, self._env.now)
            if decoding:
                self._ledger.steps.update(steps=1, sequences=len(decoding))
            self._core.owe(self._times.host.step_s)
            self._end(decoding, prefill)

    def _schedule(self) -> tuple[list[Generation], dict[Generation, int]]:
        """Who decodes in the next step, and how many prompt tokens are computed for whom: at least one of either."""
        budget = self._fleet.max_num_batched_tokens
        decoding: list[Generation] = []
        prefill: dict[Generation, int] = {}
        for generation in self._running:
            tokens = min(budget, max(1, generation.prompt - generation.computed))
            if tokens and generation.computed < generation.prompt:
                prefill[generation] = tokens
            elif tokens:
                decoding.append(generation)
            budget -= tokens
        while self._waiting and len(self._running) < self._fleet.max_num_seqs and budget:
            generation = self._waiting[0]
            cached = self._cached(generation)
            tokens = min(budget, generation.prompt - cached)
            if not self._fleet.chunked_prefill and tokens < generation.prompt - cached:
                break
            self._waiting.popleft()
            self._running[generation] = None
            generation.computed = cached
            prefill[generation] = tokens
            budget -= tokens
        return decoding, prefill

    def _cached(self, generation: Generation) -> int:
        """Whole blocks only, and never all of it: the last token's logits are wanted."""
        if not self._fleet.prefix_cache:
            return 0
        known = min(self._known.get(generation.owner, 0), generation.prompt - 1)
        return known // self._fleet.block_size * self._fleet.block_size

    def _end(self, decoding: list[Generation], prefill: dict[Generation, int]) -> None:
        said: list[tuple[Generation, bool]] = []
        for generation, tokens in prefill.items():
            generation.computed += tokens
        for generation in [*decoding, *(one for one in prefill if one.computed == one.prompt)]:
            if generation.aborted:
                continue
            generation.written += 1
            last = generation.written == generation.max_tokens
            if last:
                self._leave(generation)
            said.append((generation, last))
        if said:
            after(self._env, self._times.wire.item_s, lambda: _deliver(said))

    def _leave(self, generation: Generation) -> None:
        del self._running[generation]
        self._known[generation.owner] = max(
            self._known.get(generation.owner, 0), generation.computed + max(0, generation.written - 1)
        )


def after(env: simpy.Environment, seconds: float, call: Callable[[], None]) -> None:
    """Call it then; not before what was already to happen at that moment."""
    env.timeout(seconds).callbacks.append(lambda _: call())


def _deliver(said: list[tuple[Generation, bool]]) -> None:
    for generation, last in said:
        generation.deliver(last)
