"""Our own counters, read from Ray's metrics port."""

import time
from collections.abc import Mapping
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

from llm42.bench.errors import BenchError

PREFIX = "ray_llm42_"
SPLIT_BY = ("kind", "mode", "part", "end", "outcome")
"""Labels whose values are told apart; what differs in others (a replica) is summed."""
REPORT_MS = 5000
"""How often our processes report while they are measured. Each second would cost as much as a router has to do."""
SLACK_S = 3.0
"""For what lies between a counter and that report, and behind it."""
SETTLED_S = 30.0
POLL_S = 0.5
HTTP_S = 30.0

_open = build_opener(ProxyHandler({})).open  # no proxy has any business on the loopback interface


def read(url: str) -> dict[str, float]:
    """Sums by name, without prefix, as in ``verify_slots_total`` and ``verify_slots_total:padding``.

    Raises BenchError.
    """
    try:
        with _open(url, timeout=HTTP_S) as response:
            return parse(response.read().decode())
    except OSError as error:
        raise BenchError(f"the metrics cannot be read from {url}: {error}") from None


def parse(text: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(PREFIX) and not sample.name.endswith("_bucket"):
                name = sample.name.removeprefix(PREFIX)
                names = (name, *(f"{name}:{sample.labels[label]}" for label in SPLIT_BY if label in sample.labels))
                for key in names:
                    sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name, 0.0)}


def settled(url: str, before: Mapping[str, float], tokens: int) -> dict[str, float]:
    """The counters once every process has told what it had done by now, ``tokens`` more tokens among that.

    Raises BenchError.
    """
    deadline = time.monotonic() + SETTLED_S
    time.sleep(REPORT_MS / 1e3 + SLACK_S)
    while True:
        found = read(url)
        counted = found.get("output_tokens_total", 0.0) - before.get("output_tokens_total", 0.0)
        if counted >= tokens:
            return found
        if time.monotonic() > deadline:
            raise BenchError(
                f"{url} has {counted:.0f} of {tokens} tokens after {SETTLED_S:.0f} s: run the same command again"
            )
        time.sleep(POLL_S)
