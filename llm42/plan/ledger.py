"""What a simulation writes down while it runs."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from llm42.verifier.usage import PassUse


@dataclass(slots=True)
class Served:
    """One request, in seconds of the simulation."""

    deterministic: bool
    arrived: float
    first: float | None = None
    """When its first token was out."""
    ended: float | None = None
    tokens: int = 0
    """That the client has got."""

    @property
    def ttft_s(self) -> float:
        assert self.first is not None
        return self.first - self.arrived

    @property
    def e2e_s(self) -> float:
        assert self.ended is not None
        return self.ended - self.arrived

    @property
    def tpot_s(self) -> float | None:
        """For each token after the first, if there is any."""
        return (self.e2e_s - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(slots=True)
class Ledger:
    """Rates and busy times are of the moments from ``begin`` to ``end``; counts of the whole run."""

    begin: float
    end: float
    requests: list[Served] = field(default_factory=list)
    in_flight: int = 0
    backlog: dict[str, int] = field(default_factory=dict)
    """Requests in flight, at ``begin`` and at ``end``."""
    out: Counter[bool] = field(default_factory=Counter)
    """Tokens that clients got in the time that counts, by whether deterministic."""
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds in that time, by pool; and those in which a row of a pass was used (``rows``)."""
    steps: Counter[str] = field(default_factory=Counter)
    """Of fast path engines: steps that decode, and the sequences in them."""
    passes: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)
    session: Counter[str] = field(default_factory=Counter)
    """Sums of the fields of SessionStats, and ``recomputed``."""
    turned_away: int = 0
    """Replays that found a full queue."""

    def deliver(self, request: Served, tokens: int, now: float) -> None:
        request.first = request.first if request.first is not None else now
        request.tokens += tokens
        if self.begin <= now < self.end:
            self.out[request.deterministic] += tokens

    def work(self, kind: str, began: float, ended: float, share: float = 1.0) -> None:
        self.busy[kind] += share * max(0.0, min(ended, self.end) - max(began, self.begin))

    def used(self, use: PassUse) -> None:
        self.passes += 1
        self.rows.update(use.rows)
        self.slots.update(use.slots)
