"""A whole suite: calibration, then all experiments, for each model; with progress, from where it was interrupted."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from llm42.bench.calibrate import calibrate
from llm42.bench.cell import Cell
from llm42.bench.errors import BenchError
from llm42.bench.experiment import Experiment, Line, experiments
from llm42.bench.machine import hardware
from llm42.bench.report import MACHINE, calibration_name
from llm42.bench.runner import Runner
from llm42.bench.server import Place
from llm42.bench.store import Store
from llm42.bench.suite import Suite


def measure_suite(
    suite: Suite,
    store: Store,
    machine: dict[str, Any],
    cores: int | None,
    only: Sequence[str] | None,
    say: Callable[[str], None],
) -> None:
    """Measure what ``store`` lacks; ``only`` experiments of these names, if any. Raises BenchError."""
    line = Line.of(suite, max(2, cores or machine["cores"]))
    split = {"cores": line.plain.threads, "drafting": line.ours.threads, "verifying": line.ours.verifier_threads}
    _settle(store, {**machine, "suite": suite.name, "split": split})
    logs = store.path / "logs"
    logs.mkdir(exist_ok=True)
    for model, dtype in suite.models:
        place = Place(model, dtype, suite.max_model_len, bool(machine["gpus"]), logs)
        wanted = _wanted(experiments(suite, model, dtype, line.plain.threads), only)
        with _progress() as progress:
            task = progress.add_task(model, total=sum(len(experiment.cells) for experiment in wanted))
            name = calibration_name(model, dtype)
            if store.noted(name) is None:
                threads = (line.ours.threads, line.ours.verifier_threads)
                found = calibrate(
                    place,
                    threads,
                    suite.passes,
                    suite.batches,
                    hardware(machine),
                    lambda step: progress.update(task, description=f"calibrating: {step}"),  # noqa: B023  called at once
                )
                store.note(name, found.as_json())
            done = sum(cell in store for experiment in wanted for cell in experiment.cells)
            progress.update(task, completed=done)

            def on_cell(cell: Cell) -> None:
                done = sum(cell in store for experiment in wanted for cell in experiment.cells)  # noqa: B023  as above
                progress.update(task, completed=done, description=f"{cell.experiment}: {cell.system.name}")  # noqa: B023

            with Runner(store, place, say) as runner:
                runner.run(wanted, on_cell)


def _settle(store: Store, now: dict[str, Any]) -> None:
    """Figures of two machines are never put beside each other."""
    before = store.noted(MACHINE)
    if before is None:
        store.note(MACHINE, now)
        return
    differs = [name for name in now if name != "when" and now[name] != before.get(name)]
    if differs:
        found = ", ".join(f"{name} was {before.get(name)} and is {now[name]}" for name in differs)
        raise BenchError(f"{store.path} was begun under other conditions: {found}. Name another --out")


def _wanted(found: list[Experiment], only: Sequence[str] | None) -> list[Experiment]:
    names = [experiment.name for experiment in found]
    unknown = set(only or ()) - set(names)
    if unknown:
        raise BenchError(f"there is no experiment {min(unknown)!r}; there are {', '.join(names)}")
    return [experiment for experiment in found if not only or experiment.name in only]


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
