"""Hands a part's numbers over to Ray, once a second."""

import threading
from collections.abc import Callable, Sequence

from llm42.metrics.metric import Counter, Metric

INTERVAL_S = 1.0
"""Ray exports every few seconds anyway."""


class Reporter:
    """Reports ``metrics`` from a thread of its own, for as long as the process lives.

    ``sample`` is called in that thread before each report, to set gauges: it may only read what is safe to read
    beside the thread that writes it.
    """

    def __init__(self, metrics: Sequence[Metric], sample: Callable[[], None]) -> None:
        self._counters = [metric for metric in metrics if isinstance(metric, Counter)]
        self._sample = sample
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llm42-metrics", daemon=True)

    def start(self) -> None:
        for counter in self._counters:
            counter.start()
        self._thread.start()

    def check_health(self) -> None:
        """Raises RuntimeError once nothing is reported any more: whoever is on call would see a calm that is none."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stopped.is_set():
            raise RuntimeError("the metrics thread has died")

    def close(self) -> None:
        """Report what is left."""
        self._stopped.set()
        self._thread.join(INTERVAL_S)

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            self._report()
        self._report()

    def _report(self) -> None:
        self._sample()
        for counter in self._counters:
            counter.report()
