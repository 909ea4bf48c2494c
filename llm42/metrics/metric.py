"""The kinds of metric, on top of ``ray.serve.metrics``.

Ray takes some 15 µs for a record, so counters add up in this process and hand over once a second
(:mod:`llm42.metrics.reporter`). Ray's own objects are made on first use, in the process that reports.
"""

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

Labels = tuple[str, ...]

OPEN: Labels = ()
"""The values of a label that only the running system knows; there must be few all the same."""


@dataclass(frozen=True, eq=False)
class Metric:
    """A declaration. ``labels`` has each label's values: nothing of a request is among them, ever."""

    name: str
    unit: str
    help: str
    labels: Mapping[str, Labels] = field(default_factory=dict)

    kind: ClassVar[str]

    @property
    def samples(self) -> tuple[str, ...]:
        """What Prometheus knows of it."""
        return (f"ray_{self.name}",)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.labels)


@dataclass(frozen=True, eq=False)
class Counter(Metric):
    """Only grows."""

    kind: ClassVar[str] = "counter"
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _pending: dict[Labels, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def samples(self) -> tuple[str, ...]:
        return (f"ray_{self.name}_total",)

    @cached_property
    def _instrument(self) -> Any:
        from ray.serve import metrics

        return metrics.Counter(self.name, description=self.help, tag_keys=self._names)

    def add(self, amount: float = 1, **labels: str) -> None:
        """From any thread."""
        if amount:
            values = tuple(labels[name] for name in self.labels)
            with self._lock:
                self._pending[values] = self._pending.get(values, 0) + amount

    def start(self) -> None:
        """Export 0 for each combination of labels: without that, nobody sees the step from nothing to 1."""
        from llm42.internals.zero_counter import start_at_zero

        for values in itertools.product(*self.labels.values()):
            start_at_zero(self._instrument, dict(zip(self.labels, values, strict=True)))

    def report(self) -> None:
        with self._lock:
            pending = dict(self._pending)
            self._pending.clear()
        for values, amount in pending.items():
            self._instrument.inc(amount, tags=dict(zip(self.labels, values, strict=True)))


@dataclass(frozen=True, eq=False)
class Gauge(Metric):
    """The last value holds."""

    kind: ClassVar[str] = "gauge"

    @cached_property
    def _instrument(self) -> Any:
        from ray.serve import metrics

        return metrics.Gauge(self.name, description=self.help, tag_keys=self._names)

    def set(self, value: float, **labels: str) -> None:
        self._instrument.set(value, tags=labels)


@dataclass(frozen=True, eq=False)
class Histogram(Metric):
    """Counts values by size. ``buckets`` are upper bounds."""

    buckets: tuple[float, ...] = ()
    kind: ClassVar[str] = "histogram"

    @property
    def samples(self) -> tuple[str, ...]:
        return tuple(f"ray_{self.name}_{end}" for end in ("bucket", "count", "sum"))

    @cached_property
    def _instrument(self) -> Any:
        from ray.serve import metrics

        return metrics.Histogram(self.name, description=self.help, boundaries=list(self.buckets), tag_keys=self._names)

    def observe(self, value: float, **labels: str) -> None:
        self._instrument.observe(value, tags=labels)


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKENS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
