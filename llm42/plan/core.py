"""The CPU core that a fast path engine computes on, where it has to share it with all that is no engine."""

from collections.abc import Sequence

import simpy

from llm42.plan.step_times import HostTimes


class Core:
    """Owes the time that others want, and pays it before the engine's next step: they are many, and it is one."""

    def __init__(self, env: simpy.Environment, background: float) -> None:
        self._env = env
        self._left = 1 - background
        self._owed = 0.0
        self._idle_since = 0.0
        """When the engine's step ends, or until when it is settled what others have done on the idle core."""

    def owe(self, seconds: float) -> float:
        """Seconds from now until that is done, unless the engine comes first."""
        if not seconds:
            return 0.0
        self._settle()
        self._owed += seconds
        return max(0.0, self._idle_since - self._env.now) + self._owed / self._left

    def lengthened(self, seconds: float) -> float:
        """How long a step takes that begins now, and took ``seconds`` if the core were the engine's own."""
        self._settle()
        taken = (self._owed + seconds) / self._left
        self._owed = 0.0
        self._idle_since = self._env.now + taken
        return taken

    def _settle(self) -> None:
        idle = self._env.now - self._idle_since
        if idle > 0:
            self._owed = max(0.0, self._owed - idle * self._left)
            self._idle_since = self._env.now


class Host:
    """All cores that fast path engines compute on; what is no engine spreads over them evenly."""

    def __init__(self, env: simpy.Environment, times: HostTimes, engines: int) -> None:
        self._times = times
        self.cores: Sequence[Core] = [Core(env, times.background / engines) for _ in range(engines)]

    def admit(self) -> float:
        """A request: seconds until a router acts."""
        return self._owe(self._times.request_s)

    def deliver(self, tokens: int, *, deterministic: bool) -> None:
        """Somebody has to make them, send them and read them."""
        self._owe(tokens * (self._times.deterministic_token_s if deterministic else self._times.ordinary_token_s))

    def _owe(self, seconds: float) -> float:
        return max(core.owe(seconds / len(self.cores)) for core in self.cores)
