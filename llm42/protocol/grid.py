"""The replay grid: where in which window a position is always computed.

Absolute positions, prompt and output alike, are cut into windows of ``W`` tokens that start at multiples
of ``W``. Position ``p`` lives in slot ``p mod W`` of window ``p div W``, for ever: no rollback, no fill and
no neighbour moves it. That is what makes a replay a pure function of the tokens.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayGrid:
    """``window_size`` is W, in tokens."""

    window_size: int

    def __post_init__(self) -> None:
        if self.window_size < 1:
            raise ValueError(f"window_size must be at least 1, got {self.window_size}")

    def window(self, position: int) -> int:
        return position // self.window_size

    def start(self, window: int) -> int:
        """Absolute position of the window's slot 0."""
        return window * self.window_size

    def complete(self, length: int) -> int:
        """How many windows ``t[0..length)`` fills completely."""
        return length // self.window_size

    def next_boundary(self, position: int) -> int:
        """The first window start after ``position``."""
        return self.start(self.window(position) + 1)
