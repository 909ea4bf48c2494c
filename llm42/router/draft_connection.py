"""One router's stream to one fast path replica, and the requests that run on it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from llm42.fastpath.errors import Overloaded, WrongReplica
from llm42.fastpath.messages import PATIENCE, Hello
from llm42.logs import printable
from llm42.router.background import Background
from llm42.router.calls import CallFailed, bounded, read_stream

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest

logger = logging.getLogger("ray.serve")

Sink = Callable[["EngineCoreOutput"], None]
OnLost = Callable[[str], None]


@dataclass(eq=False, slots=True)
class Draft:
    """One request on its way. ``wire`` is the request under an id that is never used again."""

    request_id: str
    wire: "EngineCoreRequest"
    sink: Sink
    on_lost: OnLost
    connection: "DraftConnection | None" = field(default=None, repr=False)
    sent: bool = False
    accepted: bool = False
    aborted: bool = False


class ConnectionOwner(Protocol):
    """Who is told what becomes of a connection and its requests."""

    def connected(self, connection: "DraftConnection") -> None:
        """It is open: requests may be placed."""

    def settled(self, draft: Draft) -> None:
        """The last output of a request came; its sink is called next."""

    def refused(self, draft: Draft) -> None:
        """The replica is leaving and has not taken this request: it may be placed elsewhere."""

    def lost(self, draft: Draft, reason: str) -> None:
        """The request will get no more output."""

    def disconnected(self, connection: "DraftConnection", reason: str) -> None:
        """It has ended; its requests have been reported lost."""


class DraftConnection:
    """Opens a stream, places and aborts requests on it, hands out their outputs.

    Fails as a whole: a call of unknown outcome, or a stream that ends or is silent, ends the connection, and
    with it all its requests on both sides. So no request is ever half there.
    """

    def __init__(
        self,
        handle: Any,
        replica_id: str,
        stream_id: str,
        control_s: float,
        background: Background,
        owner: ConnectionOwner,
    ) -> None:
        self.replica_id = replica_id
        self.stream_id = stream_id
        self.ready = False
        self.draining = False
        """The replica is leaving: it finishes what it has and gets nothing new."""
        self.placed = 0
        """Requests ever placed here."""
        self._handle = handle
        self._control_s = control_s
        self._background = background
        self._owner = owner
        self._drafts: dict[str, Draft] = {}
        self._submits: list[Draft] = []
        self._aborts: list[str] = []
        self._flush_due = False
        self._ended = False
        self._reader = background.spawn(self._read(), f"draft stream {stream_id}")

    @property
    def load(self) -> int:
        """Requests running here."""
        return len(self._drafts)

    @property
    def open(self) -> bool:
        """Whether requests may be placed here."""
        return self.ready and not self.draining and not self._ended

    def place(self, draft: Draft) -> None:
        """Run a request here. It is sent at the end of this loop tick, with what else comes until then."""
        draft.connection = self
        draft.sent = False
        self._drafts[draft.wire.request_id] = draft
        self._submits.append(draft)
        self.placed += 1
        self._schedule_flush()

    def abort(self, draft: Draft) -> None:
        """Stop a request; its sink is not called again."""
        if self._drafts.pop(draft.wire.request_id, None) is None:
            return
        draft.aborted = True
        if not draft.sent:
            self._submits.remove(draft)
        elif draft.accepted:
            self._abort_later([draft.wire.request_id])
        # Else its submit is on its way. Calls may overtake each other, so the abort waits for the answer.

    def end(self, reason: str) -> None:
        """Close the stream and report all requests here lost. Does nothing the second time."""
        if self._ended:
            return
        self._ended = True
        self.ready = False
        if self._reader is not asyncio.current_task():
            self._reader.cancel()
        drafts = list(self._drafts.values())
        self._drafts.clear()
        self._submits.clear()
        self._aborts.clear()
        for draft in drafts:
            self._owner.lost(draft, reason)
        self._owner.disconnected(self, reason)

    async def _read(self) -> None:
        stream = self._handle.options(method_name="stream", stream=True).remote(
            replica_id=self.replica_id, stream_id=self.stream_id
        )
        reason = "the router closed the stream"
        try:
            await read_stream(stream, PATIENCE * self._control_s, self._on_item)
        except CallFailed as error:
            reason = str(error)
        finally:
            self.end(reason)

    def _on_item(self, item: "Hello | list[EngineCoreOutput]") -> None:
        if isinstance(item, Hello):
            self.ready = True
            self._owner.connected(self)
            return
        for output in item:
            draft = self._drafts.get(output.request_id)
            if draft is None:  # aborted while this was on its way
                continue
            if output.finish_reason is not None:
                del self._drafts[output.request_id]
                self._owner.settled(draft)
            output.request_id = draft.request_id
            try:
                draft.sink(output)
            except Exception as error:  # the caller's own mistake ends its request, not its neighbours
                logger.exception("The sink of request %s failed", printable(draft.request_id))
                self.abort(draft)
                self._owner.lost(draft, f"its sink raised {type(error).__name__}: {error}")

    def _schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._ended:
            return
        if self._submits:
            drafts, self._submits = self._submits, []
            for draft in drafts:
                draft.sent = True
            self._background.spawn(self._send_submits(drafts), f"submit to {self.replica_id}")
        if self._aborts:
            wire_ids, self._aborts = self._aborts, []
            self._background.spawn(self._send_aborts(wire_ids), f"abort on {self.replica_id}")

    async def _send_submits(self, drafts: Sequence[Draft]) -> None:
        try:
            await self._call("submit", requests=[draft.wire for draft in drafts])
        except WrongReplica:
            self.draining = True
            for draft in drafts:
                if self._drafts.pop(draft.wire.request_id, None) is not None:
                    self._owner.refused(draft)
        except Overloaded as error:
            for draft in drafts:
                if self._drafts.pop(draft.wire.request_id, None) is not None:
                    self._owner.lost(draft, str(error))
        except CallFailed as error:
            self.end(f"submit failed: {error}")
        else:
            for draft in drafts:
                draft.accepted = True
            self._abort_later([draft.wire.request_id for draft in drafts if draft.aborted])

    async def _send_aborts(self, wire_ids: Sequence[str]) -> None:
        try:
            await self._call("abort", request_ids=wire_ids)
        except WrongReplica:  # out of reach, and about to stop anyway
            self.draining = True
        except (CallFailed, Overloaded) as error:
            self.end(f"abort failed: {error}")

    def _abort_later(self, wire_ids: Sequence[str]) -> None:
        if wire_ids and not self._ended:
            self._aborts.extend(wire_ids)
            self._schedule_flush()

    async def _call(self, method: str, **arguments: Any) -> None:
        call = self._handle.options(method_name=method).remote(
            replica_id=self.replica_id, stream_id=self.stream_id, **arguments
        )
        await bounded(call, self._control_s, WrongReplica, Overloaded)
