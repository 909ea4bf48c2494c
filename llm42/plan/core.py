"""The CPU core that a fast path engine computes on, where it has to share it with all that is no engine."""

from collections.abc import Sequence

import simpy

from llm42.plan.step_times import HostTimes


class Core:
    """Owes the time that others want. They and the engine take turns: while it computes they get at most as much."""

    def __init__(self, env: simpy.Environment, background: float) -> None:
        self._env = env
        self._background = background
        self._owed = 0.0
        self._idle_since = 0.0
        """When the engine's step ends, or until when it is settled what others have done on the idle core."""

    def owe(self, seconds: float) -> None:
        self._settle()
        self._owed += seconds

    def lengthened(self, seconds: float) -> float:
        """How long a step takes that begins now, and took ``seconds`` if the core were the engine's own."""
        self._settle()
        owed = self._owed + seconds * self._background
        taken = min(owed, seconds)
        self._owed = owed - taken
        self._idle_since = self._env.now + seconds + taken
        return seconds + taken

    def _settle(self) -> None:
        idle = self._env.now - self._idle_since
        if idle > 0:
            self._owed = max(0.0, self._owed - idle * (1 - self._background))
            self._idle_since = self._env.now


class Host:
    """All cores that fast path engines compute on; what is no engine spreads over them evenly."""

    def __init__(self, env: simpy.Environment, times: HostTimes, engines: int) -> None:
        self._times = times
        self.cores: Sequence[Core] = [Core(env, times.background / engines) for _ in range(engines)]

    def deliver(self, tokens: int, *, deterministic: bool) -> None:
        """Somebody has to make them, send them and read them."""
        seconds = tokens * (self._times.deterministic_token_s if deterministic else self._times.ordinary_token_s)
        for core in self.cores:
            core.owe(seconds / len(self.cores))
