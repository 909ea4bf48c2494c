"""How long a piece of work takes the processor."""

import statistics
import time
from collections.abc import Callable


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Median of this thread's CPU time, after one run that does not count."""
    work()
    spent = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return round(statistics.median(spent) * 1e3, 2)
