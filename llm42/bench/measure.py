"""A whole suite: calibration, then all experiments, for each model; with progress, from where it was interrupted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from llm42.bench.calibrate import calibrate
from llm42.bench.errors import BenchError
from llm42.bench.experiment import Line, experiments
from llm42.bench.machine import hardware
from llm42.bench.report import MACHINE, calibration_name
from llm42.bench.runner import Runner
from llm42.bench.server import Place
from llm42.bench.store import Store
from llm42.bench.suite import ALL, Subject, Suite

CALIBRATED = "saturation"
"""The experiment that is compared with bare step times."""


def measure_suite(
    suite: Suite,
    store: Store,
    machine: dict[str, Any],
    cores: int | None,
    only: Sequence[str] | None,
    say: Callable[[str], None],
) -> None:
    """Measure what ``store`` lacks; ``only`` experiments of these names, if any. Raises BenchError."""
    unknown = set(only or ()) - set(ALL)
    if unknown:
        raise BenchError(f"there is no experiment {min(unknown)!r}; there are {', '.join(ALL)}")
    line = Line.of(suite, max(2, cores or machine["cores"]))
    split = {"cores": line.plain.threads, "drafting": line.ours.threads, "verifying": line.ours.verifier_threads}
    _settle(store, {**machine, "suite": suite.name, "split": split})
    for subject in suite.subjects:
        made = experiments(suite, subject, line.plain.threads)
        wanted = [experiment for experiment in made if not only or experiment.name in only]
        if all(cell in store for experiment in wanted for cell in experiment.cells):
            continue
        logs = store.path / "logs" / f"{Path(subject.model).name}-{subject.dtype}"
        logs.mkdir(parents=True, exist_ok=True)
        place = Place(subject.model, subject.dtype, suite.max_model_len, bool(machine["gpus"]), logs)
        with _progress() as progress:
            task = progress.add_task(subject.model, total=sum(len(experiment.cells) for experiment in wanted))

            def on_step(what: str) -> None:
                done = sum(cell in store for experiment in wanted for cell in experiment.cells)  # noqa: B023  called at once
                progress.update(task, completed=done, description=what)  # noqa: B023

            if CALIBRATED in subject.experiments:
                _calibrate(suite, subject, store, place, line, hardware(machine), on_step)
            with Runner(store, place, say) as runner:
                runner.run(wanted, lambda cell: on_step(f"{cell.experiment}: {cell.system.name}"))


def _calibrate(
    suite: Suite, subject: Subject, store: Store, place: Place, line: Line, machine: str, on_step: Callable[[str], None]
) -> None:
    name = calibration_name(subject.model, subject.dtype)
    if store.noted(name) is None:
        threads = (line.ours.threads, line.ours.verifier_threads)
        found = calibrate(
            place, threads, suite.passes, suite.batches, machine, lambda step: on_step(f"calibrating: {step}")
        )
        store.note(name, found.as_json())


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


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
