"""A Ray Serve request router that can pin a call to one replica.

Relies on Ray Serve 2.60.0: the alpha API ``ray.serve.request_router`` (``RequestRouter``, ``PendingRequest``,
``RunningReplica``), ``ReplicaID.unique_id``, and ``PendingRequest.routing_context.should_backoff``, without
which Serve retries in a loop that never sleeps.

It must not mix in ``FIFOMixin``: that gives a chosen replica to the *oldest* waiting request, not to the one
it was chosen for. The price is a trap in Serve: without it, waiting requests are told apart by the internal
id of the HTTP request they descend from, so concurrent calls made from one request's context wait for each
other for ever. Make every call on such a handle from a task with a context of its own
(:mod:`llm42.router.background`).
"""

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

PIN = "replica_id"
"""Keyword argument of a call that names the replica it must reach."""
AVOID = "avoid"
"""Keyword argument of a call that names the replicas it should not reach while there are others."""


class PinnedRouter(RequestRouter):  # type: ignore[misc]
    """To the replica that the call names, if it is there; else the shorter queue of two picked at random.

    A call that names a replica which is gone reaches another one, which must refuse it: that is faster and
    clearer than a call that waits for a replica that never returns.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            if pin := pending_request.kwargs.get(PIN):
                pinned = [replica for replica in candidate_replicas if replica.replica_id.unique_id == pin]
                if pinned:
                    return [pinned]
            if avoided := pending_request.kwargs.get(AVOID):
                others = [replica for replica in candidate_replicas if replica.replica_id.unique_id not in avoided]
                candidate_replicas = others or candidate_replicas
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]
