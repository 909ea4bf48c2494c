"""How the rows and slots of a pass were used."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from llm42.verifier.passes import Pass


@dataclass(frozen=True, slots=True)
class PassUse:
    """``rows`` and ``slots`` by kind, as :mod:`llm42.metrics.verifier` names them; all of the pass."""

    rows: dict[str, int]
    slots: dict[str, int]

    @property
    def kind(self) -> Literal["decode", "prefill", "mixed"]:
        """Whether its rows answer, only fill the cache, or some do this and some that."""
        if not self.rows["prefill"]:
            return "decode"
        return "mixed" if self.rows["full"] + self.rows["partial"] else "prefill"


def use_of(given: Pass) -> PassUse:
    """To be called before the pass delivers: that may change its jobs."""
    shape = given.shape
    rows: Counter[str] = Counter(prefill=0, full=0, partial=0)
    slots: Counter[str] = Counter(prefill=0, answered=0, again=0)
    for row in given.rows:
        if row.asked:
            first, last = row.slots
            rows["full" if last == shape.window else "partial"] += 1
            slots["again"] += first
            slots["answered"] += last - first
        else:
            rows["prefill"] += 1
            slots["prefill"] += shape.window  # what is asked for lies behind it
    rows["padding"] = given.idle_rows
    slots["padding"] = shape.rows * shape.window - slots.total()
    return PassUse(dict(rows), dict(slots))
