import re
from dataclasses import replace
from pathlib import Path

import pytest

from llm42.bench.errors import BenchError
from llm42.bench.experiment import experiments
from llm42.bench.measure import measure_suite
from llm42.bench.runner import Runner
from llm42.bench.server import Place
from llm42.bench.store import Store
from tests.bench.records import CALIBRATION, MACHINE, SUITE, measured

EXPERIMENTS = experiments(SUITE, SUITE.subjects[0], 2)
CELL = EXPERIMENTS[0].cells[0]
PLACE = Place("tiny", "float32", 256, False, Path("/nowhere"))


def test_a_cell_comes_back_as_it_was_put(tmp_path: Path) -> None:
    kept = measured(CELL, 1.2)
    Store(tmp_path).add(CELL, kept)
    again = Store(tmp_path)
    assert CELL in again
    assert again.get(CELL) == kept
    assert list(again) == [(CELL, kept)]
    assert again.get(replace(CELL, repeat=7)) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(CELL, requests=CELL.requests + 1),
        replace(CELL, share=0.25),
        replace(CELL, system=replace(CELL.system, threads=3)),
        replace(CELL, mix=replace(CELL.mix, output=replace(CELL.mix.output, median=9))),
    ],
)
def test_whatever_was_done_otherwise_is_another_cell(tmp_path: Path, other: object) -> None:
    store = Store(tmp_path)
    store.add(CELL, measured(CELL, 1.0))
    assert other not in store


def test_what_is_half_written_is_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(CELL, measured(CELL, 1.0))
    (path,) = (tmp_path / "cells").glob("*.json")
    path.rename(path.with_name(f".{path.name}.partial"))
    assert CELL not in store
    assert not list(store)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(CELL, measured(CELL, 1.0))
    (path,) = (tmp_path / "cells").glob("*.json")
    path.write_text("{")
    with pytest.raises(BenchError, match=rf"{re.escape(path.name)} cannot be read .*: remove it"):
        list(store)


def test_two_runs_never_write_to_one_directory(tmp_path: Path) -> None:
    with (
        Store(tmp_path).locked(),
        pytest.raises(BenchError, match="another run is writing"),
        Store(tmp_path).locked(),
    ):
        pass
    with Store(tmp_path).locked():
        pass


def test_what_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(system: object, place: object) -> None:
        started.append(system)
        raise BenchError("must not start")

    monkeypatch.setattr("llm42.bench.runner.Server.start", start)
    store = Store(tmp_path)
    for experiment in EXPERIMENTS:
        for cell in experiment.cells:
            store.add(cell, measured(cell, 1.0))
    with Runner(store, PLACE, print) as runner:
        runner.run(EXPERIMENTS, lambda cell: pytest.fail(f"{cell} is measured again"))
        (gone,) = (tmp_path / "cells").glob("recompute-*-W16-G4-0-*")
        gone.unlink()
        with pytest.raises(BenchError, match="must not start"):
            runner.run(EXPERIMENTS, lambda cell: None)
    assert [(system.window_size, system.verify_batch_size) for system in started] == [(16, 4)]


def test_figures_of_two_machines_are_never_put_together(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.note("calibration-tiny-float32", CALIBRATION)
    facts = {name: value for name, value in MACHINE.items() if name not in ("suite", "split")}
    for experiment in experiments(SUITE, SUITE.subjects[0], 2):
        for cell in experiment.cells:
            store.add(cell, measured(cell, 1.0))
    measure_suite(SUITE, store, facts, None, None, print)
    measure_suite(SUITE, store, {**facts, "when": "later"}, None, None, print)
    with pytest.raises(BenchError, match=r"cpu was Some CPU and is Another\. Name another --out"):
        measure_suite(SUITE, store, {**facts, "cpu": "Another"}, None, None, print)
    with pytest.raises(BenchError, match="split was"):
        measure_suite(SUITE, store, facts, 4, None, print)


def test_an_experiment_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no experiment 'ofline'; there are limit, saturation, offline"):
        measure_suite(SUITE, Store(tmp_path), MACHINE, None, ["ofline"], print)
