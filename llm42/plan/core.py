"""The CPU core that a fast path engine computes on, where it has to share it with all that is no engine."""

from collections.abc import Sequence

import simpy

from llm42.plan.step_times import HostTimes

INSTANT_S = 1e-9
"""What is owed less has been paid, but for rounding."""


class Core:
    """Owes the time that others want, and pays it before the engine's next step: they are many, and it is one.

    The engine takes turns of :meth:`pay` and :meth:`step`, and lets what it is told pass first.
    """

    def __init__(self, env: simpy.Environment, background: float) -> None:
        self._env = env
        self._left = 1 - background
        self._owed = 0.0
        self._idle_since = 0.0
        """When the engine's step ends, or until when it is settled what others have done on the idle core."""

    def owe(self, seconds: float) -> float:
        """Seconds from now until that is done."""
        if not seconds:
            return 0.0
        self._settle()
        self._owed += seconds
        return max(0.0, self._idle_since - self._env.now) + self._owed / self._left

    def pay(self) -> float:
        """Seconds for which the engine has to stand back now."""
        self._settle()
        return self._owed / self._left if self._owed > INSTANT_S else 0.0

    def step(self, seconds: float) -> float:
        """How long a step takes that begins now, and took ``seconds`` if the core were the engine's own."""
        taken = seconds / self._left
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
