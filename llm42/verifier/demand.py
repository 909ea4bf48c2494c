"""How busy a verifier is, as its pool's policy wants to know (:mod:`llm42.autoscaling.policy`)."""

import math
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm42.verifier.usage import PassUse

SHARE = 0.9
"""Of the replays: so many have to wait no longer than the target."""
_REMEMBERED = 4096


class Demand:
    """Adds up what happens from one :meth:`take` to the next. Belongs to one event loop."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._clear()

    def on_pass(self, use: "PassUse", seconds: float) -> None:
        self._passes.append(seconds)
        self._useful_s += seconds * (use.slots["prefill"] + use.slots["answered"]) / sum(use.slots.values())

    def on_wait(self, seconds: float) -> None:
        self._waits.append(seconds)

    def take(self) -> dict[str, float]:
        """``wait_s``: what nine in ten replays have waited for their first row, at most; ``pass_s``: mean of the
        passes; ``work``: passes of which every slot is of use would have taken this share of the time."""
        now = time.monotonic()
        figures = {
            # Of each prompt one replay has to wait for others' prefill, the many after it hardly do.
            "wait_s": sorted(self._waits)[math.ceil(SHARE * len(self._waits)) - 1] if self._waits else 0.0,
            "pass_s": sum(self._passes) / len(self._passes) if self._passes else 0.0,
            "work": self._useful_s / max(now - self._since, 1e-3),
        }
        self._since = now
        self._clear()
        return figures

    def _clear(self) -> None:
        self._waits: deque[float] = deque(maxlen=_REMEMBERED)
        self._passes: deque[float] = deque(maxlen=_REMEMBERED)
        self._useful_s = 0.0
