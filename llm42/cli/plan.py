"""``llm42 plan``: how many machines would a load need? Predictions from a simulation; nothing is served."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from llm42.plan.advice import Advice
    from llm42.plan.plan import Plan
    from llm42.plan.report import Quantiles, Report
    from llm42.plan.sweep import Point

INTERRUPTED = 130

plan = typer.Typer(help="Predict throughput, latency and the machines that a load needs.", no_args_is_help=True)

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", exists=True, dir_okay=False, help="YAML or JSON; docs/plan.md has the fields.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Instead of what the file says; e.g. workload.rate=20."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@plan.callback()
def group() -> None:
    """Predict throughput, latency and the machines that a load needs.

    The real sessions, cadence, scheduler and window cache run; the model, the wires and the clock are simulated.
    """


@plan.command()
def predict(file: PlanFile, changes: Changes = None, as_json: AsJson = False) -> None:
    """Predict how the fleet of PLAN serves its workload."""
    with _told() as say:
        chosen = _read(file, changes)
        report = chosen.predict(lambda share: say(f"{share:.0%} of the time simulated"))
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        _print(chosen, _traffic(report), _pools(report))


@plan.command()
def verifiers(file: PlanFile, changes: Changes = None, as_json: AsJson = False) -> None:
    """Find the fewest verifiers that meet the target of PLAN, whatever number its fleet has.

    Exit status: 0 if there is such a number, 1 if more verifiers do not help.
    """
    from llm42.plan.advice import advise

    with _told() as say:
        chosen = _read(file, changes)
        advice = advise(chosen, lambda number: say(f"trying {number} verifiers"))
    if as_json:
        typer.echo(advice.model_dump_json())
    else:
        _print(chosen, _trials(advice))
        typer.echo(_advice(chosen, advice))
    raise typer.Exit(0 if advice.verifiers is not None else 1)


@plan.command()
def sweep(file: PlanFile, changes: Changes = None, as_json: AsJson = False) -> None:
    """Try PLAN with other windows and cadences: tokens drafted again, against the replay slots that this takes."""
    from llm42.plan.sweep import variations

    points = []
    with _told() as say:
        chosen = _read(file, changes)
        for point in variations(chosen):
            points.append(point)
            say(f"{len(points)} combinations simulated")
    if as_json:
        typer.echo(json.dumps([point.model_dump() for point in points]))
    else:
        _print(chosen, _points(points))


@contextmanager
def _told() -> "Iterator[Any]":
    """Say on a terminal how far it is; end with one line for what is wrong with the plan."""
    from rich.console import Console

    console = Console(stderr=True)
    try:
        with console.status("reading the plan") as status:
            yield status.update
    except ValueError as error:
        typer.echo(f"There is no prediction: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _read(file: Path, changes: list[str] | None) -> "Plan":
    """Raises ValueError."""
    import yaml

    from llm42.plan.plan import read_plan

    chosen = read_plan(file)
    sections: dict[str, dict[str, Any]] = {}
    for change in changes or ():
        name, equals, value = change.partition("=")
        section, dot, field = name.strip().partition(".")
        if not (equals and dot and section in ("workload", "fleet", "drift", "target")):
            raise ValueError(f"--set {change}: name a field of workload, fleet, drift or target, like workload.rate=20")
        try:
            sections.setdefault(section, {})[field] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {change}: {error}") from None
    return chosen.with_fields(**sections)


def _print(chosen: "Plan", *tables: "Table") -> None:
    from rich.console import Console

    console = Console()
    times = chosen.step_times
    console.print(f"{chosen.title or 'A plan'}: a prediction, nothing was served.", markup=False, highlight=False)
    console.print(f"Step times {times.source}: {times.model} on {times.hardware}.", markup=False, highlight=False)
    for table in tables:
        console.print(table)


def _traffic(report: "Report") -> "Table":
    from rich.table import Table

    table = Table("", "requests", "tokens/s", "TTFT", "per token", "end to end", caption="P50 / P95 / P99")
    for name, traffic in (("ordinary", report.ordinary), ("deterministic", report.deterministic)):
        if traffic.requests:
            times = (_seconds(traffic.ttft_s), _seconds(traffic.tpot_s), _seconds(traffic.e2e_s))
            table.add_row(name, str(traffic.requests), f"{traffic.tokens_per_s:.1f}", *times)
    return table


def _pools(report: "Report") -> "Table":
    from rich.table import Table

    table = Table("", "", show_header=False)
    table.add_row("requests answered", f"{report.requests_per_s:.2f} / s")
    table.add_row("in flight, first and last", f"{report.backlog[0]} / {report.backlog[1]}")
    table.add_row("fast path busy", f"{report.fast_path_busy:.0%}, {report.decode_batch:.1f} sequences in a step")
    if report.deterministic.requests:
        rows = ", ".join(f"{share:.0%} {kind}" for kind, share in report.rows.items())
        table.add_row("verifiers busy", f"{report.verifier_busy:.0%}, with {report.verifier_load:.0%} of their rows")
        table.add_row("rows of a pass", rows)
        table.add_row("recomputed", f"{report.recomputed:.2%} of committed tokens")
        table.add_row("replays", f"{report.replays:.1f} for each request")
        table.add_row("slots that answer", f"{report.answering_slots:.2f} for each committed token")
        table.add_row("slots in all", f"{report.slots:.2f} for each committed token")
    return table


def _trials(advice: "Advice") -> "Table":
    from rich.table import Table

    table = Table("verifiers", "rows in use", "P95 TTFT, times the baseline's", "")
    for trial in advice.trials:
        multiple = "" if trial.ttft_multiple is None else f"{trial.ttft_multiple:.2f}"
        enough = "enough" if trial.enough else "too few"
        table.add_row(str(trial.verifiers), f"{trial.verifier_load:.0%}", multiple, enough)
    return table


def _advice(chosen: "Plan", advice: "Advice") -> str:
    load, multiple = chosen.target.verifier_load, chosen.target.ttft_multiple
    target = f"at most {load:.0%} of the rows in use, P95 TTFT at most {multiple:g} times the baseline's"
    if advice.verifiers is None:
        return f"No number of verifiers meets the target ({target}): it is not for want of them."
    each = f"{advice.for_each_fast_path:.3g} for each fast path engine"
    return f"Verifiers needed: {advice.verifiers}, {each} ({target})."


def _points(points: "list[Point]") -> "Table":
    from rich.table import Table

    table = Table("W", "cadence", "recomputed", "answering slots / token", "rows in use", "P95 TTFT", "P95 end to end")
    for point in points:
        report, cadence = point.report, point.cadence
        ttft, e2e = report.deterministic.ttft_s, report.deterministic.e2e_s
        table.add_row(
            str(point.window_size),
            cadence.label,
            f"{report.recomputed:.2%}",
            f"{report.answering_slots:.2f}",
            f"{report.verifier_load:.0%}",
            "" if ttft is None else _time(ttft.p95),
            "" if e2e is None else _time(e2e.p95),
        )
    return table


def _seconds(quantiles: "Quantiles | None") -> str:
    return "" if quantiles is None else " / ".join(map(_time, (quantiles.p50, quantiles.p95, quantiles.p99)))


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
