"""The router's one place that speaks to the fast path: finds replicas, spreads requests, reports losses."""

import asyncio
import copy
import itertools
import logging
from typing import TYPE_CHECKING, Any

from ray.serve.exceptions import DeploymentUnavailableError

from llm42.config import Config
from llm42.fastpath.errors import NoReplica
from llm42.fastpath.messages import ReplicaInfo
from llm42.fastpath.placing import stays
from llm42.logs import printable
from llm42.router.background import Background
from llm42.router.calls import CallFailed, bounded
from llm42.router.draft_connection import Draft, DraftConnection, OnLost, Sink

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle
    from vllm.v1.engine import EngineCoreRequest

logger = logging.getLogger("ray.serve")

DISCOVERY_S = 2.0
"""Between two looks at who is there; they also renew the streams' leases."""
SEARCH_S = 0.3
"""The same while nobody is there, and the least after a failure."""


class DraftHub:
    """Places requests on fast path replicas over one stream to each. Belongs to one event loop.

    ``handle`` is that of the ``FastPath`` deployment, with
    :class:`llm42.internals.pinned_router.PinnedRouter` as its request router. ``router_id`` must be unique
    among the routers.
    """

    def __init__(self, handle: "DeploymentHandle[Any]", router_id: str, config: Config) -> None:
        self._handle = handle
        self._router_id = router_id
        self._control_s = config.timeouts.control_s
        self._max_waiting = config.router.max_requests
        self._background = Background(self._crashed)
        self._connections: dict[str, DraftConnection] = {}
        self._drafts: dict[str, Draft] = {}
        self._numbers = itertools.count(1)
        self._waiting = 0
        self._look = asyncio.Event()
        self._somebody = asyncio.Event()
        self._failure: str | None = None
        self._discovery_error: str | None = None

    def start(self) -> None:
        """Begin to look for replicas. Needs the running loop."""
        self._background.spawn(self._discover(), "draft discovery")

    @property
    def in_flight(self) -> int:
        """Requests that have neither finished nor been aborted or lost."""
        return len(self._drafts)

    @property
    def replicas(self) -> list[str]:
        """Ids of the replicas that take requests now."""
        return [connection.replica_id for connection in self._connections.values() if connection.open]

    @property
    def failure(self) -> str | None:
        """Why this hub no longer works; None while it does."""
        return self._failure

    async def submit(self, request: "EngineCoreRequest", sink: Sink, on_lost: OnLost, prefer: str | None = None) -> str:
        """Place a request on the replica with the fewest, or on ``prefer`` unless that is much busier.

        Returns the replica's id as soon as the request is placed. From then on ``sink`` gets its outputs, one
        for each engine step, under the request's own id; or ``on_lost`` is called, once, with the reason.
        Both run in this loop, and neither is called after :meth:`abort`. A request whose ``submit`` has not
        returned cannot be aborted, only its ``submit`` cancelled.

        Raises:
            NoReplica: none was there within ``control_s``, too many requests wait for one already, or this hub
                has failed or is closed.
            ValueError: a request with this id is in flight.
        """
        if self._failure is not None:
            raise NoReplica(self._failure)
        connection = self._choose(prefer) or await self._wait_for_replica(prefer)
        if request.request_id in self._drafts:
            raise ValueError(f"request {request.request_id} is in flight already")
        # An id of its own for each try: late outputs of an aborted request never reach the next of that name.
        wire = copy.copy(request)
        wire.request_id = f"{request.request_id}#{next(self._numbers)}"
        draft = Draft(request.request_id, wire, sink, on_lost)
        self._drafts[draft.request_id] = draft
        connection.place(draft)
        return connection.replica_id

    def abort(self, request_id: str) -> None:
        """Stop a request, if it is in flight. The engine hears of it soon; the sink hears nothing more."""
        draft = self._drafts.pop(request_id, None)
        if draft is not None and draft.connection is not None:
            draft.connection.abort(draft)

    async def close(self) -> None:
        """End all streams; what is in flight is lost."""
        self._failure = self._failure or "the router is shutting down"
        self._end_all(self._failure)
        await self._background.close(self._control_s)

    # ConnectionOwner

    def connected(self, connection: DraftConnection) -> None:
        logger.info("Connected to fast path replica %s", connection.replica_id)
        self._somebody.set()

    def settled(self, draft: Draft) -> None:
        self._drafts.pop(draft.request_id, None)

    def refused(self, draft: Draft) -> None:
        connection = self._choose(None)
        if connection is None:
            self.lost(draft, "its replica is leaving, and there is no other")
        else:
            connection.place(draft)

    def lost(self, draft: Draft, reason: str) -> None:
        self._drafts.pop(draft.request_id, None)
        try:
            draft.on_lost(reason)
        except Exception:  # the caller's own mistake; the other requests must hear of their loss
            logger.exception("on_lost of request %s failed", printable(draft.request_id))

    def disconnected(self, connection: DraftConnection, reason: str) -> None:
        logger.warning("Lost fast path replica %s: %s", connection.replica_id, reason)
        if self._connections.get(connection.replica_id) is connection:
            del self._connections[connection.replica_id]
        self._look.set()

    # Choosing

    def _choose(self, prefer: str | None) -> DraftConnection | None:
        connections = [connection for connection in self._connections.values() if connection.open]
        if not connections:
            return None
        least = min(connections, key=lambda connection: (connection.load, connection.placed))
        preferred = self._connections.get(prefer) if prefer is not None else None
        if preferred is not None and preferred.open and stays(preferred.load, least.load):
            return preferred
        return least

    async def _wait_for_replica(self, prefer: str | None) -> DraftConnection:
        if self._waiting >= self._max_waiting:
            raise NoReplica(f"no fast path replica, and {self._waiting} requests wait for one already")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._control_s):
                while True:
                    if self._failure is not None:
                        raise NoReplica(self._failure)
                    connection = self._choose(prefer)
                    if connection is not None:
                        return connection
                    self._somebody.clear()
                    self._look.set()
                    await self._somebody.wait()
        except TimeoutError:
            raise NoReplica(f"no fast path replica within {self._control_s:g} s") from None
        finally:
            self._waiting -= 1

    # Discovery

    async def _discover(self) -> None:
        while True:
            try:
                answers = await self._describe_all()
            except CallFailed as error:
                if self._discovery_error != str(error):
                    logger.warning("Fast path discovery failed: %s", error)
                self._discovery_error = str(error)
            else:
                self._discovery_error = None
                self._reconcile(answers)
            await asyncio.sleep(SEARCH_S)
            self._look.clear()
            try:
                async with asyncio.timeout(DISCOVERY_S if self.replicas else SEARCH_S):
                    await self._look.wait()
            except TimeoutError:
                pass

    async def _describe_all(self) -> list[ReplicaInfo | BaseException]:
        stream_ids = [connection.stream_id for connection in self._connections.values()]
        response = self._handle.broadcast("describe", stream_ids=stream_ids)
        call = response.results_async(timeout_s=self._control_s, return_exceptions=True)
        try:
            answers: list[ReplicaInfo | BaseException] = await bounded(
                call, 2 * self._control_s, DeploymentUnavailableError
            )
        except DeploymentUnavailableError:  # Serve has no replica to ask, or is taking the last one down
            return []
        return answers

    def _reconcile(self, answers: "list[ReplicaInfo | BaseException]") -> None:
        present = {answer.replica_id for answer in answers if isinstance(answer, ReplicaInfo)}
        for replica_id in present - self._connections.keys():
            self._connections[replica_id] = DraftConnection(
                self._handle,
                replica_id,
                f"{self._router_id}.{next(self._numbers)}",
                self._control_s,
                self._background,
                self,
            )
        everybody_answered = len(present) == len(answers)
        for connection in list(self._connections.values()):
            if connection.replica_id in present:
                connection.draining = False
            elif everybody_answered:
                # Serve has told it to stop, and waits for its calls to end: the stream is one of them.
                connection.draining = True
            if connection.draining and connection.load == 0:
                connection.end("the replica is leaving")

    # Ends

    def _crashed(self, name: str, error: BaseException) -> None:
        """A background task failed in a way that nobody foresaw: fail closed, and say so."""
        logger.error("Task %r failed", name, exc_info=error)
        self._failure = self._failure or f"{name} failed: {type(error).__name__}: {error}"
        self._end_all(self._failure)

    def _end_all(self, reason: str) -> None:
        for connection in list(self._connections.values()):
            connection.end(reason)
        self._somebody.set()
