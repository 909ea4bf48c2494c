"""The engine's own thread: it takes commands between two steps and never waits for anybody.

Knows vLLM only through :mod:`llm42.internals`; knows neither Ray nor asyncio.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from llm42.adapters import Adapter
from llm42.fastpath.errors import EngineDead, Overloaded
from llm42.fastpath.mailbox import Mailbox
from llm42.internals.core_steps import (
    EngineCoreOutput,
    EngineCoreRequest,
    SchedulerStats,
    failed_output,
    has_work,
    step,
    vocab_size,
)
from llm42.internals.engine_core import EngineCore
from llm42.logs import printable

logger = logging.getLogger("ray.serve")

MAX_COMMANDS = 4096
"""Commands that may wait for the next step."""
MAX_STEP_S = 300.0
"""A step that takes longer hangs (vLLM's own limit for an executor)."""
STALLED_S = 0.001
"""Pause after a step that could not run the model, for what it waits for (a grammar, say) to arrive."""


class StepObserver:
    """Hears of every engine step, in the engine's thread: its seconds, its scheduler's word, its outputs."""

    def on_step(self, seconds: float, scheduler: SchedulerStats | None, outputs: list[EngineCoreOutput]) -> None:
        """Must be quick."""


class DraftEngine:
    """Steps one vLLM core; delivers each step's outputs to each mailbox as one batch.

    The core is made, stepped and shut down in one thread: CUDA devices and OpenMP settings belong to threads.
    """

    def __init__(
        self,
        make_core: Callable[[], EngineCore],
        observer: StepObserver | None = None,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        """Blocks until the core is there; raises what ``make_core`` raises. ``adapters`` are those it has loaded."""
        self._observer = observer or StepObserver()
        self._adapters = {adapter.number: adapter.name for adapter in adapters}
        self._inbox: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._mailboxes: set[Mailbox] = set()
        self._error: EngineDead | None = None
        self._stopping = False
        self._step_began: float | None = None
        self._owners: dict[str, Mailbox] = {}  # by the engine's request id; the thread's own
        self._told: dict[str, int] = {}
        """Tokens so far of the drafts whose margins are wanted; likewise."""
        started: Future[EngineCore] = Future()
        self._thread = threading.Thread(target=self._run, args=(make_core, started), name="draft-engine", daemon=True)
        self._thread.start()
        self.core = started.result()
        self._vocab_size = vocab_size(self.core)

    @property
    def in_flight(self) -> int:
        """Requests in the engine."""
        return len(self._owners)

    def open(self, mailbox: Mailbox) -> None:
        """Let a stream in. Raises :class:`EngineDead`."""
        with self._changed:
            self._require_alive()
            self._mailboxes.add(mailbox)

    def close(self, mailbox: Mailbox) -> None:
        """Forget a stream and abort all its requests. Never raises."""
        with self._changed:
            self._mailboxes.discard(mailbox)
            # Not bounded by MAX_COMMANDS: there is one of these for each stream, and it must not be lost.
            self._inbox.append(partial(self._drop, mailbox))
            self._changed.notify()

    def submit(self, mailbox: Mailbox, requests: Sequence[EngineCoreRequest]) -> None:
        """Add requests at the next step. Raises :class:`EngineDead`, :class:`Overloaded`."""
        self._post(partial(self._add, mailbox, requests))

    def abort(self, mailbox: Mailbox, request_ids: Sequence[str]) -> None:
        """Abort requests at the next step; unknown ids are nothing to do. Raises like :meth:`submit`."""
        self._post(partial(self._abort, mailbox, request_ids))

    def check(self) -> None:
        """Raise :class:`EngineDead` unless the engine is well."""
        with self._changed:
            self._require_alive()
        began = self._step_began
        if began is not None and time.monotonic() - began > MAX_STEP_S:
            raise EngineDead(f"an engine step has been running for more than {MAX_STEP_S:.0f} s")

    def shutdown(self, timeout_s: float) -> None:
        """End all streams and the thread, after the step that is running."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _require_alive(self) -> None:
        if self._error is not None:
            raise self._error

    def _post(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._require_alive()
            if len(self._inbox) >= MAX_COMMANDS:
                raise Overloaded(f"{MAX_COMMANDS} commands wait for the engine's next step")
            self._inbox.append(command)
            self._changed.notify()

    # The engine's thread, from here on.

    def _run(self, make_core: Callable[[], EngineCore], started: "Future[EngineCore]") -> None:
        try:
            core = make_core()
        except BaseException as error:  # raised again in the constructor, which waits for it
            started.set_exception(error)
            return
        started.set_result(core)
        try:
            while self._take_commands(core):
                self._step(core)
        except Exception as error:  # told to every stream, and to Serve by check()
            logger.exception("The engine died")
            self._end(EngineDead(f"the engine died: {type(error).__name__}: {error}"))
        else:
            self._end(EngineDead("the engine was shut down"))
        core.client.shutdown()

    def _take_commands(self, core: EngineCore) -> bool:
        """Wait for something to do and run the commands that came; False at the end."""
        with self._changed:
            busy = has_work(core)
            self._changed.wait_for(lambda: busy or self._inbox or self._stopping)
            commands = list(self._inbox)
            self._inbox.clear()
        for command in commands:
            command()
        return not self._stopping

    def _step(self, core: EngineCore) -> None:
        if not has_work(core):
            return
        self._step_began = time.monotonic()
        outputs, stats, executed = step(core)
        self._observer.on_step(time.monotonic() - self._step_began, stats, outputs)
        self._step_began = None
        batches: dict[Mailbox, list[EngineCoreOutput]] = {}
        for output in outputs:
            mailbox = self._owners.get(output.request_id)
            if mailbox is None:  # aborted while its batch was running
                continue
            output = self._with_margins(core, output)
            if output.finished:
                self._told.pop(output.request_id, None)
                del self._owners[output.request_id]
                mailbox.in_flight.discard(output.request_id)
            output.request_id = output.request_id.removeprefix(mailbox.prefix)
            batches.setdefault(mailbox, []).append(output)
        for mailbox, batch in batches.items():
            self._deliver(mailbox, batch)
        if not executed and not outputs:
            time.sleep(STALLED_S)

    def _with_margins(self, core: EngineCore, output: EngineCoreOutput) -> EngineCoreOutput:
        told = self._told.get(output.request_id)
        if told is None or core.margins is None:
            return output
        from llm42.internals.draft_margins import with_margins

        count = len(output.new_token_ids)
        self._told[output.request_id] = told + count
        return with_margins(output, core.margins.of(output.request_id, told, count))

    def _add(self, mailbox: Mailbox, requests: Sequence[EngineCoreRequest]) -> None:
        if mailbox not in self._mailboxes:
            return
        from llm42.internals.draft_margins import name_margins

        rejected = []
        for request in requests:
            request_id = request.request_id
            try:
                self._require_sound(request)
                request.request_id = mailbox.prefix + request_id
                request.client_index = 0
                if name_margins(request.sampling_params, request.request_id):
                    self._told[request.request_id] = 0
                self.core.client.add_request(request)
            except Exception as error:  # one bad request is its own end, and nobody else's
                logger.warning("Refused request %s: %s: %s", printable(request_id), type(error).__name__, error)
                self._told.pop(request.request_id, None)
                rejected.append(failed_output(request_id))
            else:
                self._owners[request.request_id] = mailbox
                mailbox.in_flight.add(request.request_id)
        if rejected:
            self._deliver(mailbox, rejected)

    def _require_sound(self, request: EngineCoreRequest) -> None:
        """What vLLM's frontend checks and its core takes on trust: these would end the engine."""
        from llm42.internals.draft_sampler import draft_selection

        prompt = request.prompt_token_ids
        if not prompt:
            raise ValueError("the prompt has no token ids")
        if len(prompt) >= self.core.max_model_len:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; with max_model_len {self.core.max_model_len} "
                "there is no room for another"
            )
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            raise ValueError(f"a token id is outside [0, {self._vocab_size})")
        adapter = request.lora_request
        if adapter is not None and self._adapters.get(adapter.lora_int_id) != adapter.lora_name:
            # By its number alone, vLLM would take another for it, or load it where there is no room for it.
            raise ValueError(f"adapter {adapter.lora_name!r} is not number {adapter.lora_int_id} here")
        selection = draft_selection(request.sampling_params)
        if selection is not None and not selection.names_within(self._vocab_size):
            raise ValueError(f"a parameter names a token that is not in [0, {self._vocab_size})")

    def _abort(self, mailbox: Mailbox, request_ids: Sequence[str]) -> None:
        self._forget(mailbox, {mailbox.prefix + request_id for request_id in request_ids} & mailbox.in_flight)

    def _drop(self, mailbox: Mailbox) -> None:
        self._forget(mailbox, set(mailbox.in_flight))

    def _forget(self, mailbox: Mailbox, engine_ids: set[str]) -> None:
        for engine_id in engine_ids:
            del self._owners[engine_id]
            self._told.pop(engine_id, None)
        mailbox.in_flight -= engine_ids
        self.core.client.abort_requests(list(engine_ids))

    def _deliver(self, mailbox: Mailbox, outputs: list[EngineCoreOutput]) -> None:
        if not mailbox.deliver(outputs):
            with self._changed:
                self._mailboxes.discard(mailbox)
            self._drop(mailbox)

    def _end(self, error: EngineDead) -> None:
        with self._changed:
            self._error = error
            mailboxes, self._mailboxes = self._mailboxes, set()
        for mailbox in mailboxes:
            mailbox.fail(error)
