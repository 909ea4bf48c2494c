"""Carries out what one session asks for: drafts from the hub, replays from the pool, commits to the client."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason

from llm42.config import Timeouts
from llm42.fastpath.errors import FastPathError
from llm42.internals.core_client import draft_request
from llm42.internals.draft_margins import draft_margins
from llm42.logs import logger, printable
from llm42.protocol import Action, Commit, ReplayRequest, Session, StartDraft, StopDraft, Verify
from llm42.router.hub import DraftHub
from llm42.router.progress import Progress
from llm42.router.verifiers import Pin, VerifierPool
from llm42.tracing import RequestTrace

RETRY_DRAFT_S = 1.0
"""How long the verifier goes on alone before a lost draft is tried again."""


class DeterministicRequest:
    """Runs ``session`` to its end. All methods run on the router's event loop.

    ``commit`` receives every :class:`Commit`, in order. Nothing else ever reaches the client. ``pin`` may be shared
    with other requests that must not be answered by another pool.
    """

    def __init__(
        self,
        request: EngineCoreRequest,
        session: Session,
        pin: Pin,
        hub: DraftHub,
        verifiers: VerifierPool,
        timeouts: Timeouts,
        commit: Callable[[Commit], None],
        trace: RequestTrace,
    ) -> None:
        self._request = request
        self._session = session
        self._pin = pin
        self._hub = hub
        self._verifiers = verifiers
        self._timeouts = timeouts
        self._commit = commit
        self._trace = trace
        self.progress = Progress(len(request.prompt_token_ids), session.stats)
        self.verifiers: set[str] = set()
        """The replicas that have answered."""
        self.drafters: set[str] = set()
        """The replicas that were asked for drafts."""
        self._verifier: str | None = None
        self._drafter: str | None = None
        self._stream = 0
        self._placing: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._heard = 0.0
        """When the drafter last said something, on the loop's clock."""
        self._retry: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until the request finishes.

        Raises:
            Unverifiable, ReplayRefused, ReplayImpossible: no further token can be verified.
        """
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._apply(self._session.start())
                await self._finished
                raise _Finished  # ends the tasks that still run: their results are of no use any more
        except* _Finished:
            pass
        finally:
            self._watch(None)
            self.progress.ended()
            if self._retry is not None:
                self._retry.cancel()
            for action in self._session.abort():
                assert isinstance(action, StopDraft)
                self._stop_draft(action.stream)

    def _apply(self, actions: list[Action]) -> None:
        self.progress.acting(actions)
        if actions:  # each step of the drafter comes by here
            self._trace.acting(actions)
        for action in actions:
            match action:
                case Commit():
                    self._commit(action)
                    if action.finish is not None and not self._finished.done():
                        self._finished.set_result(None)
                case StopDraft(stream=stream):
                    self._stop_draft(stream)
                case StartDraft(stream=stream):
                    self._stream = stream
                    self._placing = self._tasks.create_task(self._draft(action))
                case Verify():
                    self._tasks.create_task(self._verify(action))

    def _event(self, method: Callable[..., list[Action]], *args: Any, **kwargs: Any) -> None:
        """An event from outside the task group: what it raises fails this request, not the caller."""
        if self._finished.done():
            return
        try:
            self._apply(method(*args, **kwargs))
        except BaseException as error:  # raised again in run()
            self._finished.set_exception(error)

    # -- verifier ------------------------------------------------------------------------------------

    async def _verify(self, verify: Verify) -> None:
        salt = self._request.cache_salt or ""
        with self._trace.verifying(verify) as trace:
            request = ReplayRequest(
                self._request.request_id, verify.question, cache_salt=salt, haste=verify.haste, trace=trace
            )
            reply = await self._verifiers.replay(request, self._verifier, self._pin, retried=self._trace.retried)
            self._trace.replied(reply)
            self._verifier = reply.replica_id or None
            self.progress.replayed_by(reply.replica_id)
            self.verifiers |= {reply.replica_id} - {""}
            self._apply(self._session.verified(verify.call, reply))

    # -- drafter: nothing here can change what is committed -------------------------------------------

    def _draft_id(self, stream: int) -> str:
        return f"{self._request.request_id}.{stream}"

    async def _draft(self, order: StartDraft) -> None:
        stream = order.stream
        request = draft_request(
            self._request,
            self._draft_id(stream),
            order,
            self._session.selection,
            margins=self._session.cadence.doubt is not None,
        )
        self._watch(stream)
        try:
            self._drafter = await self._hub.submit(
                request, partial(self._drafted, stream), partial(self._lost, stream), prefer=self._drafter
            )
            self.drafters.add(self._drafter)
            self._trace.draft_placed(stream, self._drafter)
        except FastPathError:
            self._lost(stream, "no replica")

    def _stop_draft(self, stream: int) -> None:
        self._watch(None)
        if self._placing is not None:  # waiting for a replica, perhaps; harmless where it has found one
            self._placing.cancel()
        self._hub.abort(self._draft_id(stream))

    def _drafted(self, stream: int, output: EngineCoreOutput) -> None:
        if stream != self._stream:
            return
        reason = output.finish_reason
        if reason in (FinishReason.ERROR, FinishReason.ABORT) or (reason is not None and not output.new_token_ids):
            self._lost(stream, f"the draft ended: {reason}")  # a drafter that says nothing is no drafter
            return
        self._watch(None if reason is not None else stream)
        self.progress.drafted(len(output.new_token_ids))
        self._event(
            self._session.drafted, stream, output.new_token_ids, draft_margins(output), ended=reason is not None
        )
        if reason is not None:
            self._trace.draft_ended(stream, "drafted to its end")

    def _lost(self, stream: int, reason: str) -> None:
        if stream != self._stream:
            return
        logger.debug("request %s has lost draft %d: %s", printable(self._request.request_id), stream, reason)
        self._trace.draft_ended(stream, f"lost: {reason}")
        self._watch(None)
        self.progress.draft_lost()
        if self._retry is None and not self._finished.done():
            self._retry = asyncio.get_running_loop().call_later(RETRY_DRAFT_S, self._draft_again)
        self._event(self._session.draft_lost, stream)

    def _draft_again(self) -> None:
        self._retry = None
        self._event(self._session.draft_possible)

    def _watch(self, stream: int | None) -> None:
        """A drafter that stays silent too long counts as lost; ``stream`` is the one that was heard, if any."""
        if stream is None:
            if self._silence is not None:
                self._silence.cancel()
            self._silence = None
            return
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        if self._silence is None:  # one timer for a stream: to move it with every token costs more than the token
            self._silence = loop.call_later(self._timeouts.draft_s, self._silent, stream)

    def _silent(self, stream: int) -> None:
        loop = asyncio.get_running_loop()
        left = self._heard + self._timeouts.draft_s - loop.time()
        if left > 0:
            self._silence = loop.call_later(left, self._silent, stream)
            return
        self._stop_draft(stream)
        self._lost(stream, "silent")


class _Finished(Exception):
    pass
