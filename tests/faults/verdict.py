"""Compares what clients got with what is canonical, bit for bit, and counts."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.e2e.client import Answer
from tests.faults.cases import Canonical
from tests.faults.traffic import Outcome


@dataclass
class Row:
    """What one fault did. All counts; ``failed`` and ``ordinary_failed`` by reason."""

    fault: str
    description: str
    injected: int = 0
    streams: int = 0
    """Deterministic requests."""
    compared: int = 0
    """Of which finished: compared whole."""
    wrong: int = 0
    """Of which differ in a token, a logprob bit, the text or the reason of the end."""
    unfinished: int = 0
    """Deterministic requests that ended in an error after their first token: their beginning is compared."""
    unverified: int = 0
    """Tokens of deterministic answers, finished or not, behind the first that is not the canonical one."""
    failed: dict[str, int] = field(default_factory=dict)
    ordinary: int = 0
    ordinary_differ: int = 0
    """Greedy ordinary answers that are not the canonical ones: what the verifiers keep from the others."""
    ordinary_failed: dict[str, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    """Failures of either kind that this fault has no right to cause."""
    seconds: float = 0.0
    notes: dict[str, float] = field(default_factory=dict)
    """Further figures of this fault."""


def judge(row: Row, outcomes: Iterable[Outcome], canonical: Canonical) -> None:
    """Count ``outcomes`` into ``row``."""
    for outcome in outcomes:
        if outcome.deterministic:
            _judge_deterministic(row, outcome, canonical)
        else:
            _judge_ordinary(row, outcome, canonical)


def _judge_deterministic(row: Row, outcome: Outcome, canonical: Canonical) -> None:
    row.streams += 1
    answer = outcome.said.answer(None)
    name, fingerprint = outcome.case.name, outcome.said.fingerprint
    if outcome.finished:
        row.compared += 1
        # No table for the fingerprint: it is not that of any pool that was there.
        right = canonical.get(fingerprint or "", {}).get(name)
        if answer != right:
            row.wrong += 1
            row.unverified += _behind_difference(answer, right) if right is not None else len(answer.token_ids)
    else:
        _count(row.failed, outcome)
        # A stream names its fingerprint at its end; one without an end has to be the beginning of one pool's answer.
        row.unfinished += bool(answer.token_ids)
        row.unverified += min(_behind_difference(answer, table[name]) for table in canonical.values())


def _judge_ordinary(row: Row, outcome: Outcome, canonical: Canonical) -> None:
    row.ordinary += 1
    if not outcome.finished:
        _count(row.ordinary_failed, outcome)
    elif outcome.case.greedy:
        tokens = outcome.said.answer(None).token_ids
        row.ordinary_differ += all(tokens != table[outcome.case.name].token_ids for table in canonical.values())


def _behind_difference(answer: Answer, right: Answer) -> int:
    """Tokens of ``answer`` from the first on that is not ``right``'s, logprob included."""
    for at, token in enumerate(answer.token_ids):
        bits = slice(4 * at, 4 * at + 4)
        if right.token_ids[at : at + 1] != (token,) or answer.logprobs[bits] != right.logprobs[bits]:
            return len(answer.token_ids) - at
    return 0


def _count(failures: dict[str, int], outcome: Outcome) -> None:
    reason = reason_of(outcome.error or "")
    failures[reason] = failures.get(reason, 0) + 1


def reason_of(error: str) -> str:
    """``error`` without what differs from request to request."""
    error = re.sub(r"[0-9a-f]{16,}", "…", error)
    return error if len(error) <= 160 else error[:159] + "…"


def total(rows: Iterable[Row]) -> Row:
    """All counts together."""
    whole = Row("all", "All faults together.")
    for row in rows:
        for name in ("injected", "streams", "compared", "wrong", "unfinished", "unverified"):
            setattr(whole, name, getattr(whole, name) + getattr(row, name))
        whole.ordinary += row.ordinary
        whole.ordinary_differ += row.ordinary_differ
        whole.seconds += row.seconds
        whole.failed = dict(Counter(whole.failed) + Counter(row.failed))
        whole.ordinary_failed = dict(Counter(whole.ordinary_failed) + Counter(row.ordinary_failed))
    return whole


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| fault | injected | streams | compared | wrong | unverified | failed, and why |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in [*rows, total(rows)]:
        failed = "; ".join(f"{count} of: {reason}" for reason, count in row.failed.items()) or "none"
        counts = (row.injected, row.streams, row.compared, row.wrong, row.unverified)
        lines.append(f"| {row.description} | {' | '.join(map(str, counts))} | {failed.replace('|', '/')} |")
    return "\n".join(lines)


@dataclass
class Report:
    """All rows so far, on disk as well where there is a ``path``."""

    path: Path | None
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self.path is not None:
            whole = {"faults": [asdict(row) for row in self.rows], "total": asdict(total(self.rows))}
            self.path.write_text(json.dumps(whole, indent=1))
