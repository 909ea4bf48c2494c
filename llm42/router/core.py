"""The engine core that vLLM's frontend talks to: ordinary requests pass through, deterministic ones are verified.

Only what is put into ``_outputs`` reaches a client. For a deterministic request that is committed tokens and
nothing else.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Protocol

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason

from llm42.config import Config
from llm42.fastpath.errors import FastPathError
from llm42.internals.core_client import (
    TextCore,
    adapter_of,
    choice_of,
    commit_output,
    scores_wanted,
    selection,
    stop_rules,
)
from llm42.internals.structured import PARAM as GRAMMAR
from llm42.metrics import RouterMetrics
from llm42.metrics.router import Mode, Outcome
from llm42.protocol import Commit, Selection, Session
from llm42.protocol.errors import GrammarRefused, NotVerified, ReplayImpossible, ReplayRefused
from llm42.protocol.messages import prompt_digest
from llm42.router.admission import FLAG
from llm42.router.answer import ANSWER, Answer
from llm42.router.audit import Auditor
from llm42.router.background import Background
from llm42.router.deterministic import DeterministicRequest
from llm42.router.hub import DraftHub
from llm42.router.progress import Ages
from llm42.router.transcript import Transcript
from llm42.router.verifiers import Unverifiable, VerifierPool
from llm42.router.watch import Watched, Work
from llm42.tracing import Tracing


class Fail(Protocol):
    """Ends a request with an HTTP error; ``param`` names the parameter that is at fault."""

    def __call__(self, request_id: str, status: HTTPStatus, message: str, param: str | None = None) -> None: ...


_FAILED = (FinishReason.ERROR, FinishReason.ABORT)
_OUTCOME: dict[HTTPStatus, Outcome] = {
    HTTPStatus.SERVICE_UNAVAILABLE: "unverifiable",
    HTTPStatus.BAD_REQUEST: "refused",
    HTTPStatus.INTERNAL_SERVER_ERROR: "error",
}


class RouterCore(TextCore):
    """``fail`` ends one request with an HTTP error, ``structured_outputs`` is vLLM's configuration of these; both are
    set once the frontend exists."""

    fail: Fail
    structured_outputs: Any

    def __init__(self, config: Config, hub: DraftHub, verifiers: VerifierPool, metrics: RouterMetrics) -> None:
        super().__init__(config.adapter_numbers)
        self._config = config
        self._hub = hub
        self._verifiers = verifiers
        self._metrics = metrics
        self._cadence = config.cadence.policy(config.window_size)
        self._background = Background(self._crashed)
        self._auditor = Auditor(verifiers, config.audit.share, self._background, metrics)
        self._outputs: asyncio.Queue[EngineCoreOutput] = asyncio.Queue()  # bounded by run-ahead and admission
        self.watched, self.ages = Watched(), Ages()
        self.tracing = Tracing()
        self._sessions: dict[str, asyncio.Task[None]] = {}
        self._placing: dict[str, asyncio.Task[None]] = {}
        """Ordinary requests that wait for a fast path replica."""

    # -- what AsyncLLM calls ---------------------------------------------------------------------------

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        flagged = bool((request.sampling_params.extra_args or {}).get(FLAG))
        try:
            answer = ANSWER.get()
        except LookupError:
            self.fail(request.request_id, HTTPStatus.INTERNAL_SERVER_ERROR, "nobody has decided on its determinism")
            return
        if flagged != (answer is not None):  # one of the two was lost on its way: what would be said were not true
            self.fail(request.request_id, HTTPStatus.INTERNAL_SERVER_ERROR, "the request has lost its context")
            return
        if answer is not None:
            try:
                chosen = selection(request, self.structured_outputs)
            except ValueError as error:
                param = error.param if isinstance(error, NotVerified) else None
                self.fail(request.request_id, HTTPStatus.BAD_REQUEST, f"this cannot be verified: {error}", param)
                return
            tasks, work = self._sessions, self._verified(request, chosen, answer)
        else:
            tasks, work = self._placing, self._ordinary(request)
        mode: Mode = "ordinary" if answer is None else "deterministic"
        prompt_tokens = len(request.prompt_token_ids or ())
        self.watched.begin(request.request_id, mode, request.arrival_time, prompt_tokens)
        tasks[request.request_id] = self._background.spawn(work, name=request.request_id)

    async def get_output_async(self) -> EngineCoreOutputs:
        outputs = [await self._outputs.get()]
        while not self._outputs.empty():  # one round of the frontend for all that came meanwhile
            outputs.append(self._outputs.get_nowait())
        return EngineCoreOutputs(outputs=outputs)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.abort(request_ids)

    def abort(self, request_ids: list[str]) -> None:
        """Stop requests wherever they are. Unknown ids have ended already."""
        for request_id in request_ids:
            self.watched.end(request_id, "stopped")
            task = self._sessions.pop(request_id, None) or self._placing.pop(request_id, None)
            if task is not None:
                task.cancel()
            else:
                self._hub.abort(request_id)

    def shutdown(self, timeout: float | None = None) -> None:
        """The deployment closes the hub; requests end with the process."""

    async def close(self) -> None:
        await self._background.close(self._config.timeouts.control_s)

    @property
    def in_flight(self) -> int:
        """Deterministic requests that run."""
        return len(self._sessions)

    # -- requests --------------------------------------------------------------------------------------

    async def _ordinary(self, request: EngineCoreRequest) -> None:
        """Straight from the fast path; no verifier is involved."""

        def lost(reason: str) -> None:
            self.watched.end(request.request_id, "error", HTTPStatus.SERVICE_UNAVAILABLE)
            self.fail(request.request_id, HTTPStatus.SERVICE_UNAVAILABLE, f"the engine was lost: {reason}; retry")

        try:
            await self._hub.submit(request, self._put, lost)
        except FastPathError as error:
            lost(str(error))
        finally:
            self._placing.pop(request.request_id, None)

    async def _verified(self, request: EngineCoreRequest, chosen: Selection, answer: Answer) -> None:
        choice = choice_of(request)
        answer.seed = None if chosen.greedy else request.sampling_params.seed - choice[1]
        told, adapter = scores_wanted(request), adapter_of(request)
        rules, run_ahead = stop_rules(request), self._config.max_run_ahead
        session = Session(request.prompt_token_ids, rules, self._cadence, run_ahead, chosen, *told, adapter)
        transcript = Transcript(request.request_id, request.prompt_token_ids, chosen, self._config.window_size, adapter)
        audited = self._auditor.picks()
        if answer.with_receipts:
            answer.transcripts[choice] = transcript
        answer.stats.append(session.stats)
        if choice[1] == 0:  # the samples of a prompt share it, and `usage` counts it once
            answer.prompts[choice[0]] = prompt_digest(request.prompt_token_ids)
            answer.spend(len(request.prompt_token_ids))

        def commit(commit: Commit) -> None:
            answer.spend(len(commit.scores))
            if audited or answer.with_receipts:
                transcript.add(commit)
            for part in commit.singly() if answer.singly else (commit,):
                self._put(commit_output(request, part))

        trace = self.tracing.request(request.request_id, session.stats, answer.trace_headers, request.arrival_time)
        driver = DeterministicRequest(
            request, session, answer.pin, self._hub, self._verifiers, self._config.timeouts, commit, trace
        )
        work = Work(session.stats, answer.pin, driver.verifiers, driver.drafters)
        self.watched.verify(request.request_id, work)
        self.ages.add(driver.progress)
        outcome: Outcome = "error"
        try:
            await driver.run()
            outcome = "finished"
        except* Unverifiable as group:
            outcome = self._fail(request, HTTPStatus.SERVICE_UNAVAILABLE, group)
        except* ReplayRefused as group:
            outcome = self._fail(request, HTTPStatus.BAD_REQUEST, group)
        except* ReplayImpossible as group:
            outcome = self._fail(request, HTTPStatus.INTERNAL_SERVER_ERROR, group)
        except* asyncio.CancelledError:
            outcome = "stopped"  # by the frontend: a stop string, or the client has left
        finally:
            self._sessions.pop(request.request_id, None)
            self.watched.end(request.request_id, outcome)
            trace.ended(outcome)
            self.ages.discard(driver.progress)
        if audited and transcript.tokens and answer.pin.fingerprint is not None:
            self._auditor.submit(transcript, driver.verifiers, answer.pin.fingerprint)

    def _put(self, output: EngineCoreOutput) -> None:
        """The only way to the client."""
        self.watched.output(output.request_id, len(output.new_token_ids))
        if output.finish_reason is not None:
            self.watched.end(output.request_id, "error" if output.finish_reason in _FAILED else "finished")
        self._outputs.put_nowait(output)

    def _fail(self, request: EngineCoreRequest, status: HTTPStatus, group: BaseExceptionGroup[Exception]) -> Outcome:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        outcome = _OUTCOME[status]
        self.watched.end(request.request_id, outcome, status)
        param = GRAMMAR if isinstance(error, GrammarRefused) else None
        self.fail(request.request_id, status, f"this deterministic request could not be verified: {error}", param)
        return outcome

    def _crashed(self, request_id: str, error: BaseException) -> None:
        """A bug, not a fault: fail closed, and loudly."""
        self._metrics.crashed(request_id, error)
        self.watched.end(request_id, "error", HTTPStatus.INTERNAL_SERVER_ERROR)
        self.fail(request_id, HTTPStatus.INTERNAL_SERVER_ERROR, f"internal error: {type(error).__name__}: {error}")
