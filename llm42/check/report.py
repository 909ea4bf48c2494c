"""The verdict of a check, for people and as JSON."""

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from llm42.check.compare import Divergence, Finding, Side
from llm42.check.runner import Check

PROMPT_CHARACTERS = 100
"""Shown of the prompt that diverged first."""


def as_json(check: Check, error: str | None) -> dict[str, object]:
    """The object of ``--json``. ``error`` is why the check could not be finished, or null."""
    ledger = check.ledger
    first = ledger.first_divergence
    return {
        "completions": ledger.completions,
        "unique_max": ledger.unique_max,
        "diverged_prompts": len(ledger.findings),
        "first_divergence": None if first is None else _finding_json(check, first),
        "fingerprints": sorted(check.fingerprints),
        "logprobs_compared": check.logprobs_compared,
        "seconds": round(check.seconds, 3),
        "error": error,
    }


def _finding_json(check: Check, finding: Finding) -> dict[str, object]:
    divergence = finding.divergence
    return {
        "prompt": finding.prompt,
        "prompt_text": check.plan.prompts[finding.prompt],
        "burst": finding.burst,
        "kind": divergence.kind,
        "unit": divergence.unit,
        "position": divergence.position,
        "logprob_position": divergence.logprob_position,
        "before": list(divergence.before),
        "alone": _side_json(divergence.alone),
        "other": _side_json(divergence.other),
    }


def _side_json(side: Side) -> dict[str, object]:
    return {
        "continuation": list(side.continuation),
        # JSON has no infinities; the bits do.
        "logprob": side.logprob if side.logprob is not None and math.isfinite(side.logprob) else None,
        "logprob_bits": side.bits,
        "finish_reason": side.finish_reason,
    }


def as_table(check: Check) -> Table:
    """One row per prompt that was answered."""
    table = Table("prompt", "words", "completions", "unique outputs", "unique logprobs", "first divergence")
    for column in table.columns[:5]:
        column.justify = "right"
    for prompt, record in sorted(check.ledger.records.items()):
        table.add_row(
            str(prompt),
            str(len(check.plan.prompts[prompt].split())),
            str(record.completions),
            str(len(record.outputs)),
            str(len(record.logprob_sequences)) if record.alone.logprobs is not None else "-",
            "none" if record.finding is None else _where(record.finding.divergence),
            style="red" if record.finding is not None else None,
        )
    return table


def _where(divergence: Divergence) -> str:
    where = {
        "token": f"token {divergence.position}",
        "logprob": f"logprob {divergence.position}",
        "text": f"character {divergence.position}",
        "finish_reason": "finish reason",
    }[divergence.kind]
    if divergence.kind != "logprob" and divergence.logprob_position is not None:
        where += f" (logprob {divergence.logprob_position})"
    return where


def verdict(check: Check) -> RenderableType:
    """One line, and the first divergence in its context if there is one."""
    ledger = check.ledger
    asked = f"{ledger.completions} completions of {len(ledger.records)} prompts in {check.seconds:.1f} s"
    parts: list[RenderableType] = []
    if len(check.fingerprints) > 1:
        parts.append(
            Text(
                f"The server has several fingerprints: {_quoted(tuple(sorted(check.fingerprints)))}. "
                "Outputs may differ between them.",
                style="yellow",
            )
        )
    first = ledger.first_divergence
    if first is None:
        what = "outputs and logprobs equal as bits" if check.logprobs_compared else "outputs equal"
        return Group(*parts, Text(f"Deterministic: {asked}, {what}.", style="green"))
    parts.append(Text(f"Not deterministic: {asked}, diverged prompts: {len(ledger.findings)}.", style="bold red"))
    return Group(*parts, _in_context(check, first))


def _in_context(check: Check, finding: Finding) -> Table:
    divergence = finding.divergence
    text = check.plan.prompts[finding.prompt]
    table = Table.grid(padding=(0, 1))
    for name, value in (
        (
            "prompt",
            f"{finding.prompt}: {text[:PROMPT_CHARACTERS]}{'…' if len(text) > PROMPT_CHARACTERS else ''}",
        ),
        ("first divergence", f"{_where(divergence)}, in a burst of {finding.burst}"),
        ("before", _quoted(divergence.before)),
        ("alone", _side(divergence.alone)),
        ("in the burst", _side(divergence.other)),
    ):
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _side(side: Side) -> str:
    shown = _quoted(side.continuation) or f"(ended: {side.finish_reason})"
    return shown if side.bits is None else f"{shown}\nlogprob {side.logprob!r} = 0x{side.bits}"


def _quoted(pieces: tuple[str, ...]) -> str:
    # repr: what a server sends may hold control characters and lone surrogates.
    return " ".join(map(repr, pieces))
