"""What can go wrong between a router and the fast path.

Plain exceptions with one message: they cross process borders, and unpickling one must not import vLLM.
"""


class FastPathError(RuntimeError):
    """Base of the errors below."""


class WrongReplica(FastPathError):
    """The call reached another replica than the one it names: that one is gone, or about to go."""


class UnknownStream(FastPathError):
    """No open stream has this id: it ended while the call was on its way."""


class StreamEnded(FastPathError):
    """The replica ended a stream: its router stopped reading, or stopped renewing it."""


class Overloaded(FastPathError):
    """So many commands wait for the engine's next step that this one was refused."""


class EngineDead(FastPathError):
    """The engine failed or hangs; Serve replaces the replica."""


class NoReplica(FastPathError):
    """No fast path replica became available in time."""
