"""What a simulation predicts."""

from collections.abc import Iterable, Sequence
from math import ceil

from pydantic import Field

from llm42.config import Frozen
from llm42.plan.fleet import Fleet
from llm42.plan.ledger import Ledger, Served


class Quantiles(Frozen):
    """Seconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Quantiles | None":
        """Nearest rank; None of nothing."""
        ordered = sorted(values)
        return cls(p50=_rank(ordered, 0.5), p95=_rank(ordered, 0.95), p99=_rank(ordered, 0.99)) if ordered else None


class Traffic(Frozen):
    """Ordinary or deterministic requests: those that arrived in the time that counts, and the tokens sent in it."""

    requests: int
    tokens_per_s: float
    ttft_s: Quantiles | None = Field(description="From arrival to the first token.")
    tpot_s: Quantiles | None = Field(description="For each token after the first, by request.")
    e2e_s: Quantiles | None = Field(description="From arrival to the last token.")


class Report(Frozen):
    """A prediction. Shares are of 1."""

    requests_per_s: float = Field(description="That were answered, in the time that counts.")
    tokens_per_s: float
    ordinary: Traffic
    deterministic: Traffic
    fast_path_busy: float = Field(description="Share of the time in which fast path engines ran a step.")
    decode_batch: float = Field(description="Sequences in a decoding step, on average.")
    verifier_busy: float = Field(description="Share of the time in which verifiers ran a pass, however empty.")
    verifier_load: float = Field(description="Share of the rows that verifiers could have run which were used.")
    recomputed: float = Field(description="Tokens drafted again, for each committed one.")
    rollbacks: float = Field(description="For each committed token.")
    replays: float = Field(description="Calls to verifiers, for each deterministic request.")
    answering_slots: float = Field(description="Slots of rows that answer, for each committed token.")
    slots: float = Field(description="All slots of all passes, for each committed token.")
    rows: dict[str, float] = Field(description="Shares of the rows of all passes, by how they were used.")
    backlog: tuple[int, int] = Field(description="Requests in flight when the time that counts began and ended.")
    turned_away: int = Field(description="Replays that found a verifier's queue full, and asked again.")

    @classmethod
    def of(cls, ledger: Ledger, fleet: Fleet) -> "Report":
        seconds = ledger.end - ledger.begin
        counted = [request for request in ledger.requests if ledger.begin <= request.arrived < ledger.end]
        committed = ledger.session["committed"]
        deterministic = sum(request.deterministic for request in ledger.requests)
        answering = ledger.rows["full"] + ledger.rows["partial"]
        rows = ledger.passes * fleet.verify_batch_size
        ended = sum(
            request.ended is not None and ledger.begin <= request.ended < ledger.end for request in ledger.requests
        )
        return cls(
            requests_per_s=ended / seconds,
            tokens_per_s=ledger.out.total() / seconds,
            ordinary=_traffic([one for one in counted if not one.deterministic], ledger.out[False] / seconds),
            deterministic=_traffic([one for one in counted if one.deterministic], ledger.out[True] / seconds),
            fast_path_busy=ledger.busy["fast_path"] / seconds / fleet.fast_paths,
            decode_batch=_ratio(ledger.steps["sequences"], ledger.steps["steps"]),
            verifier_busy=ledger.busy["verifier"] / seconds / fleet.verifiers,
            verifier_load=ledger.busy["rows"] / seconds / fleet.verifiers,
            recomputed=_ratio(ledger.session["recomputed"], committed),
            rollbacks=_ratio(ledger.session["rollbacks"], committed),
            replays=_ratio(ledger.session["replays"], deterministic),
            answering_slots=_ratio(answering * fleet.window_size, committed),
            slots=_ratio(rows * fleet.window_size, committed),
            rows={kind: _ratio(count, rows) for kind, count in sorted(ledger.rows.items())},
            backlog=(ledger.backlog["begin"], ledger.backlog["end"]),
            turned_away=ledger.turned_away,
        )


def _traffic(requests: Sequence[Served], tokens_per_s: float) -> Traffic:
    return Traffic(
        requests=len(requests),
        tokens_per_s=tokens_per_s,
        ttft_s=Quantiles.of(request.ttft_s for request in requests),
        tpot_s=Quantiles.of(request.tpot_s for request in requests if request.tpot_s is not None),
        e2e_s=Quantiles.of(request.e2e_s for request in requests),
    )


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
