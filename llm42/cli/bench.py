"""``llm42 bench``: what determinism costs on this machine, beside plain vLLM."""

import importlib.util
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm42.bench import NEEDED
from llm42.cli.check import INTERRUPTED

if TYPE_CHECKING:
    from llm42.bench.store import Store
    from llm42.bench.suite import Suite

SUITE = "suite"
"""The name under which a results directory keeps that of its suite."""

bench = typer.Typer(help="Measure throughput, latency and CPU time beside plain vLLM, and draw the report.")

Out = Annotated[Path, typer.Option("--out", file_okay=False, help="Results directory: made, or gone on with.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of sentences.")]


@bench.command()
def run(
    out: Out,
    suite: Annotated[str, typer.Option(help="quick: an hour and a half on two cores; full: hours.")] = "quick",
    only: Annotated[
        list[str] | None, typer.Option(help="Only this experiment (repeatable): saturation, offline, neighbours, …")
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=2, help="CPU threads that each system gets in all; by default the machine's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what is not in OUT yet, then draw plots and report. Interrupted? Run the same command again.

    Systems are started and stopped as needed: our deployment through `llm42 serve`, the baselines through `vllm serve`.

    Exit status: 0 if all is measured, 1 if it could not go on (the message says why), 130 after Ctrl-C.
    """
    _require_extra()
    from llm42.bench.suite import SUITES

    if suite not in SUITES:
        raise typer.BadParameter(f"there is no suite {suite!r}; there are {', '.join(SUITES)}", param_hint="--suite")
    # A shell starts background jobs with SIGINT ignored; and both signals are to stop what was started.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    _report(_run(SUITES[suite], out, only, cores), out, as_json)


@bench.command()
def plot(out: Out, as_json: AsJson = False) -> None:
    """Draw plots and report again from what is in OUT."""
    _require_extra()
    from llm42.bench.store import Store

    if not (out / "cells").is_dir():
        raise typer.BadParameter(f"{out} holds no results: llm42 bench run --out {out}", param_hint="--out")
    _report(_draw(Store(out)), out, as_json)


@bench.command()
def calibrate(
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="JSON file of step times, for `llm42 plan`.")],
    model: Annotated[str, typer.Option(help="`demo`, `tiny`, a local directory, or a hub id.")] = "demo",
    dtype: Annotated[str, typer.Option(help="As in a configuration.")] = "auto",
    max_model_len: Annotated[int, typer.Option(min=64, help="Context, in tokens.")] = 1024,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of an engine.")] = 1,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="WxG", help="Shape of a replay pass (repeatable); by default 32x4.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequences in a decode step (repeatable); by default 1 to 16.")
    ] = None,
) -> None:
    """Measure what a decode step, a prompt token and a replay pass take on this machine, one engine at a time."""
    _require_extra()
    import tempfile

    from llm42.bench.calibrate import calibrate as measure
    from llm42.bench.errors import BenchError
    from llm42.bench.machine import facts, gpus, hardware
    from llm42.bench.server import Place

    shapes = [_shape(text) for text in shape or ["32x4"]]
    with tempfile.TemporaryDirectory(prefix="llm42-calibrate-") as logs:
        place = Place(model, dtype, max_model_len, bool(gpus()), Path(logs))
        try:
            found = measure(place, (threads, threads), shapes, batch or [1, 2, 4, 8, 16], hardware(facts()), _say)
        except (BenchError, ValueError) as error:
            _say(f"error: {error}")
            raise typer.Exit(1) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(found.times.model_dump_json(indent=1) + "\n")
    _say(f"step times are in {out}")


def _run(suite: "Suite", out: Path, only: list[str] | None, cores: int | None) -> dict[str, Any]:
    """What ``--json`` prints."""
    from llm42.bench.errors import BenchError
    from llm42.bench.machine import facts
    from llm42.bench.measure import measure_suite
    from llm42.bench.store import Store

    error: str | None = None
    try:
        store = Store(out)
        with store.locked():
            measure_suite(suite, store, facts(), cores, only, _say)
    except (BenchError, ValueError) as failure:
        error = str(failure)
        _say(f"error: {error}")
    except KeyboardInterrupt:
        _say("interrupted; run the same command to go on")
        raise typer.Exit(INTERRUPTED) from None
    return {**(_draw(store) if out.is_dir() else {}), "error": error}


def _draw(store: "Store") -> dict[str, Any]:
    from llm42.bench.report import write

    return write(store)


def _report(said: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(said))
    elif said.get("report"):
        missed = said["missed"]
        typer.echo(f"{said['cells']} cells, report in {said['report']}; targets missed: {len(missed)}")
        for name in missed:
            typer.echo(f"  {name}")
    if said.get("error"):
        raise typer.Exit(1)


def _shape(text: str) -> tuple[int, int]:
    window, _, rows = text.partition("x")
    if not (window.isdigit() and rows.isdigit() and int(window) and int(rows)):
        raise typer.BadParameter(f"{text!r} is no shape; give one like 32x4 (W x G)", param_hint="--shape")
    return int(window), int(rows)


def _require_extra() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _say(f"error: {', '.join(missing)} not installed: pip install 'llm42[bench]'")
        raise typer.Exit(1)


def _say(text: str) -> None:
    typer.echo(text, err=True)
