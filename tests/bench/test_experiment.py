from itertools import groupby, pairwise

import pytest
import yaml

from llm42.bench.experiment import Line, experiments
from llm42.bench.server import Place, serve_config
from llm42.bench.suite import SUITES
from llm42.cli.target import Target
from tests.bench.records import SUITE


@pytest.mark.parametrize("suite", SUITES.values(), ids=list(SUITES))
def test_every_suite_makes_cells_that_differ_and_fit(suite) -> None:
    for subject in suite.subjects:
        cells = [cell for made in experiments(suite, subject, 2) for cell in made.cells]
        assert {cell.experiment for cell in cells} <= set(subject.experiments)
        assert len(set(cells)) == len(cells)
        # What a deterministic token costs is compared with bare passes and steps of the same sizes.
        assert (suite.window_size, suite.verify_batch_size) in suite.passes
        assert {suite.lanes, suite.limit_lanes} <= {*suite.batches}
        assert all(cell.mix.longest <= suite.max_model_len for cell in cells)
        assert all(bool(cell.lanes) != bool(cell.load) for cell in cells)


def test_repeats_take_turns() -> None:
    """ABBA: whatever drifts meets all conditions alike."""
    for made in experiments(SUITE, SUITE.subjects[0], 2):
        runs = [list(cells) for _, cells in groupby(made.cells, key=lambda cell: cell.repeat)]
        orders = [[(cell.system, cell.mix, cell.share, cell.beside, cell.beside_share) for cell in run] for run in runs]
        assert all(one == other[::-1] for one, other in pairwise(orders)), made.name
        assert all(len(run) > 1 for run in runs)


@pytest.mark.parametrize("cores", [2, 3, 8])
def test_verifier_cores_are_counted(cores: int) -> None:
    line = Line.of(SUITE, cores)
    assert line.ours.threads + line.ours.verifier_threads == cores
    assert {system.threads for system in (line.plain, line.serial, line.invariant)} == {cores}
    assert line.half.threads == line.ours.threads


@pytest.mark.parametrize("gpu", [False, True])
def test_our_configuration_is_one_that_serve_takes(tmp_path, gpu: bool) -> None:
    place = Place("tiny", "bfloat16", 1024, gpu, tmp_path)
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(serve_config(Line.of(SUITE, 2).ours, place, 8123)))
    target = Target.read(path)
    (config,) = target.configs
    assert target.port == 8123
    assert (config.window_size, config.verify_batch_size) == (SUITE.window_size, SUITE.verify_batch_size)
    assert (config.fast_path.threads, config.verifier.threads) == (1, 1)
