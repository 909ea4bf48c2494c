"""What a fast path replica says to a router, besides vLLM's ``EngineCoreOutput``. Plain data."""

from dataclasses import dataclass

HEARTBEAT_S = 2.0
"""A stream with nothing to say sends an empty list this often."""
PATIENCE = 3
"""Each side takes the other for dead when it has not heard of it for this many ``timeouts.control_s``.

Long on purpose: a process that dies is noticed at once, so this is for machines that hang or are cut off, and
a busy one may well stand still for some seconds.
"""


@dataclass(frozen=True, slots=True)
class Hello:
    """First item of every stream: it is open, and requests may be submitted on it."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """Who a replica is, and what its engine takes."""

    replica_id: str
    max_model_len: int
    max_num_seqs: int
    """Sequences in one engine step."""
    in_flight: int
    """Requests in the engine, of all routers."""
    streams: int
    """Open streams: one for each router, unless one died a short while ago."""
