"""A router: the real sessions, between simulated pools.

Placing follows :class:`llm42.router.hub.DraftHub` (the engine with the fewest requests, or the one that had this one
before unless that is much busier) and :class:`llm42.internals.pinned_router.PinnedRouter` (the verifier that answered
last, or the shorter queue of two drawn at random).
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

import simpy

from llm42.fastpath.placing import stays
from llm42.plan.core import Host
from llm42.plan.drift import Pen, Script
from llm42.plan.fast_path import FastPathEngine, Generation, after
from llm42.plan.fleet import Fleet
from llm42.plan.ledger import Ledger, Served
from llm42.plan.step_times import StepTimes
from llm42.plan.verifier import VerifierEngine
from llm42.protocol import (
    Action,
    Commit,
    ReplayReply,
    Session,
    StartDraft,
    StopDraft,
    StopRules,
    Verify,
    pack_tokens,
)
from llm42.protocol.errors import VerifierBusy

BACKOFF_S = 0.05


class Router:
    def __init__(
        self,
        env: simpy.Environment,
        fleet: Fleet,
        times: StepTimes,
        host: Host,
        fast_paths: Sequence[FastPathEngine],
        verifiers: Sequence[VerifierEngine],
        ledger: Ledger,
        rng: random.Random,
    ) -> None:
        self.env = env
        self.fleet = fleet
        self.cadence = fleet.cadence.policy(fleet.window_size)
        self.wire = times.wire
        self.ledger = ledger
        self._host = host
        self._fast_paths = fast_paths
        self._verifiers = verifiers
        self._rng = rng

    def serve(self, number: int, script: Script, request: Served, done: Callable[[], None]) -> None:
        """One request, from its arrival on."""

        def ended() -> None:
            request.ended = self.env.now
            for engine in self._fast_paths:
                engine.forget(number)
            done()

        begin = self._deterministic if request.deterministic else self._ordinary
        after(self.env, self._host.admit() + self.wire.request_s, lambda: begin(number, script, request, ended))

    def deliver(self, request: Served, tokens: int) -> None:
        """To the client."""
        self.ledger.deliver(request, tokens, self.env.now)
        self._host.deliver(tokens, deterministic=request.deterministic)

    def place(self, generation: Generation, prefer: FastPathEngine | None) -> FastPathEngine:
        engine = min(self._fast_paths, key=lambda engine: engine.load)
        if prefer is not None and stays(prefer.load, engine.load):
            engine = prefer
        engine.load += 1
        after(self.env, self.wire.draft_s, lambda: engine.submit(generation))
        return engine

    def ask(
        self,
        number: int,
        order: Verify,
        canonical: bytes,
        prefer: VerifierEngine | None,
        answer: Callable[[VerifierEngine, ReplayReply], None],
    ) -> None:
        two = self._rng.sample(self._verifiers, min(2, len(self._verifiers)))
        engine = prefer or min(two, key=lambda engine: engine.load)
        engine.load += 1

        def answered(reply: ReplayReply) -> None:
            engine.load -= 1
            after(self.env, self.wire.replay_s / 2, lambda: answer(engine, reply))

        def arrive() -> None:
            try:
                engine.submit(number, order, canonical, answered)
            except VerifierBusy:
                engine.load -= 1
                self.ledger.turned_away += 1
                after(self.env, BACKOFF_S, lambda: self.ask(number, order, canonical, None, answer))

        after(self.env, self.wire.replay_s / 2, arrive)

    def _ordinary(self, number: int, script: Script, request: Served, ended: Callable[[], None]) -> None:
        def deliver(last: bool) -> None:
            self.deliver(request, 1)
            if last:
                engine.load -= 1
                ended()

        output = len(script.tokens) - script.prompt
        engine = self.place(Generation(number, script.prompt, output, deliver), None)

    def _deterministic(self, number: int, script: Script, request: Served, ended: Callable[[], None]) -> None:
        DeterministicRun(self, number, script, request, ended).start()


class DeterministicRun:
    """Carries out what a session asks for, as :class:`llm42.router.deterministic.DeterministicRequest` does."""

    def __init__(self, router: Router, number: int, script: Script, request: Served, ended: Callable[[], None]) -> None:
        self._router = router
        self._number = number
        self._script = script
        self._request = request
        self._ended = ended
        self._canonical = pack_tokens(script.tokens)
        prompt = list(script.tokens[: script.prompt])
        fleet = router.fleet
        stop = StopRules(len(script.tokens) - script.prompt)
        self._session = Session(prompt, stop, router.cadence, fleet.max_run_ahead)
        self._committed = list(prompt)
        self._drafted = self._furthest = script.prompt
        """Absolute positions: of the live stream's next token, and of the furthest that any has reached."""
        self._engine: FastPathEngine | None = None
        self._generation: Generation | None = None
        self._verifier: VerifierEngine | None = None

    def start(self) -> None:
        self._apply(self._session.start())

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Commit(scores=scores, finish=finish):
                    self._committed += scores.tokens
                    self._router.deliver(self._request, len(scores))
                    if finish is not None:
                        self._finish()
                case StopDraft():
                    self._stop()
                case StartDraft():
                    self._draft(action)
                case Verify(call=call):
                    self._router.ask(
                        self._number, action, self._canonical, self._verifier, partial(self._answered, call)
                    )

    def _answered(self, call: int, engine: VerifierEngine, reply: ReplayReply) -> None:
        self._verifier = engine
        self._apply(self._session.verified(call, reply))

    def _draft(self, order: StartDraft) -> None:
        pen = Pen(self._script, order.tokens)
        self._drafted = len(order.tokens)

        def deliver(last: bool) -> None:
            if self._generation is not generation:
                return
            if last:
                self._leave()
            self._drafted += 1
            self._router.ledger.session["recomputed"] += self._drafted <= self._furthest
            self._furthest = max(self._furthest, self._drafted)
            token, margin = pen.write()
            self._apply(self._session.drafted(order.stream, [token], [margin], ended=last))

        self._generation = generation = Generation(self._number, len(order.tokens), order.max_tokens, deliver)
        self._engine = self._router.place(generation, self._engine)

    def _stop(self) -> None:
        if (generation := self._generation) is not None:
            assert self._engine is not None
            engine = self._engine
            self._leave()
            after(self._router.env, self._router.wire.draft_s, lambda: engine.abort(generation))

    def _leave(self) -> None:
        """The generation is over, as far as this side is concerned."""
        assert self._engine is not None
        self._engine.load -= 1
        self._generation = None

    def _finish(self) -> None:
        """Raises RuntimeError if what was committed is not the script: the protocol itself would be wrong."""
        if self._committed != list(self._script.tokens):
            raise RuntimeError(f"request {self._number} has committed other tokens than the canonical ones")
        stats = self._session.stats
        names = ("drafted", "verified", "committed", "accepted", "rolled_back", "replays", "rollbacks")
        self._router.ledger.session.update({name: getattr(stats, name) for name in names})
        self._ended()
