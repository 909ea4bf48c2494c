"""The Serve deployment of one drafting engine. Bind it with ``PinnedRouter`` as its request router.

Every call names the replica that it is meant for, since Serve may only wish to send it there.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from llm42.adapters import adapters_of
from llm42.config import Config
from llm42.fastpath.errors import StreamEnded, UnknownStream, WrongReplica
from llm42.fastpath.messages import HEARTBEAT_S, PATIENCE, Hello, ReplicaInfo

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest

    from llm42.fastpath.mailbox import Mailbox

SHUTDOWN_S = 10.0


class FastPath:
    """A vLLM engine behind one stream for each router.

    A router opens a stream under an id of its own, submits and aborts requests on it, and reads from it one
    list of ``EngineCoreOutput`` for each engine step. When the stream ends, for whatever reason, its requests
    are aborted.
    """

    def __init__(self, config: Config) -> None:
        """Load the model. Raises what vLLM raises."""
        from ray import serve

        from llm42.fastpath.engine import DraftEngine
        from llm42.fastpath.settings import fastpath_engine_args
        from llm42.internals.core_steps import max_num_seqs
        from llm42.internals.draft_sampler import make_drafting_core
        from llm42.internals.log_files import keep_log_files
        from llm42.metrics.fastpath import FastPathMetrics
        from llm42.models import resolve_model

        keep_log_files()
        self._replica_id: str = serve.get_replica_context().replica_id.unique_id
        self._lease_s = PATIENCE * config.timeouts.control_s
        self._mailboxes: dict[str, Mailbox] = {}
        adapters = adapters_of(config)
        args = fastpath_engine_args(config, resolve_model(config.model), adapters)
        self._metrics = FastPathMetrics()
        self._engine = DraftEngine(partial(make_drafting_core, args, adapters), self._metrics, adapters)
        self._metrics.start(self._engine, config.served_model_name or config.model)
        self._max_num_seqs = max_num_seqs(self._engine.core)

    async def describe(self, stream_ids: Sequence[str] = ()) -> ReplicaInfo:
        """Who this is. Renews those of its streams that are named, so that they are not taken for dead."""
        for stream_id in stream_ids:
            if stream_id in self._mailboxes:
                self._mailboxes[stream_id].renew()
        return ReplicaInfo(
            replica_id=self._replica_id,
            max_model_len=self._engine.core.max_model_len,
            max_num_seqs=self._max_num_seqs,
            in_flight=self._engine.in_flight,
            streams=len(self._mailboxes),
        )

    async def stream(self, *, replica_id: str, stream_id: str) -> "AsyncIterator[Hello | list[EngineCoreOutput]]":
        """:class:`Hello`, then the outputs of each engine step; an empty list when idle for ``HEARTBEAT_S``.

        Raises :class:`WrongReplica`; later :class:`EngineDead` or :class:`StreamEnded`.
        """
        from llm42.fastpath.mailbox import Mailbox

        self._require_me(replica_id)
        if stream_id in self._mailboxes:
            raise StreamEnded(f"stream {stream_id} is open already")
        mailbox = Mailbox(stream_id, asyncio.get_running_loop())
        self._engine.open(mailbox)
        self._mailboxes[stream_id] = mailbox
        try:
            yield Hello(self._replica_id)
            while monotonic() - mailbox.renewed < self._lease_s:
                yield await mailbox.take(HEARTBEAT_S)
            raise StreamEnded(f"stream {stream_id} was not renewed for {self._lease_s:g} s")
        finally:
            del self._mailboxes[stream_id]
            self._engine.close(mailbox)

    async def submit(self, *, replica_id: str, stream_id: str, requests: "Sequence[EngineCoreRequest]") -> None:
        """Add requests, in the order given. What is wrong with one comes back on the stream, as its output.

        Raises :class:`WrongReplica`, :class:`UnknownStream`, :class:`EngineDead`, :class:`Overloaded`.
        """
        self._engine.submit(self._mailbox(replica_id, stream_id), requests)

    async def abort(self, *, replica_id: str, stream_id: str, request_ids: Sequence[str]) -> None:
        """Abort requests; those that have finished are none of its business. Raises like :meth:`submit`."""
        self._engine.abort(self._mailbox(replica_id, stream_id), request_ids)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """How busy this is: requests in the engine, and what they take of it. Serve asks for that every few seconds
        where the pool is autoscaled."""
        return {"requests": self._engine.in_flight, "load": self._metrics.load(self._max_num_seqs)}

    def check_health(self) -> None:
        """Raises :class:`EngineDead`; Serve then replaces this replica."""
        self._engine.check()
        self._metrics.check_health()

    def __del__(self) -> None:
        """Serve calls this when it stops a replica. Nothing is there if loading failed."""
        if hasattr(self, "_engine"):
            self._engine.shutdown(SHUTDOWN_S)

    def _require_me(self, replica_id: str) -> None:
        if replica_id != self._replica_id:
            raise WrongReplica(f"this is {self._replica_id}, not {replica_id}")

    def _mailbox(self, replica_id: str, stream_id: str) -> "Mailbox":
        self._require_me(replica_id)
        mailbox = self._mailboxes.get(stream_id)
        if mailbox is None:
            raise UnknownStream(f"stream {stream_id} has ended")
        return mailbox
