import json
from pathlib import Path
from typing import Any

import pytest

from llm42.plan.step_times import StepTimes, interpolate, read_step_times

ENTERED: dict[str, Any] = {
    "model": "m",
    "hardware": "h",
    "source": "entered",
    "draft": {"decode_s": {"8": 0.02, "1": 0.01}, "prefill_step_s": 0.004, "prefill_token_s": 0.001},
    "replay": [
        {"rows": 4, "window": 32, "pass_s": 0.5, "asked_row_s": 0.02},
        {"rows": 8, "window": 32, "pass_s": 0.9, "asked_row_s": 0.02},
    ],
}


def write(folder: Path, data: object) -> Path:
    path = folder / "times.json"
    path.write_text(json.dumps(data))
    return path


def test_a_file_is_read_with_its_sizes_in_order(tmp_path: Path) -> None:
    times = read_step_times(write(tmp_path, ENTERED))
    assert list(times.draft.decode_s.items()) == [(1, 0.01), (8, 0.02)]
    assert read_step_times(write(tmp_path, times.model_dump(mode="json"))) == times


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 10.0), (2, 20.0), (3, 25.0), (4, 30.0), (6, 40.0), (0, 10.0)],
)
def test_between_two_sizes_times_are_interpolated(size: int, expected: float) -> None:
    assert interpolate({1: 10.0, 2: 20.0, 4: 30.0}, size) == pytest.approx(expected)


def test_past_the_largest_size_no_slope_falls() -> None:
    assert interpolate({1: 10.0, 2: 5.0}, 9) == 5.0


def test_a_mixed_step_pays_for_its_decodes_and_for_each_prompt_token() -> None:
    draft = StepTimes.model_validate(ENTERED).draft
    assert draft.step_s(8, 0, 0) == 0.02
    assert draft.step_s(8, 100, 0) == pytest.approx(0.12)
    assert draft.step_s(0, 100, 0) == pytest.approx(0.104)


def test_a_shape_that_was_not_measured_is_estimated_by_its_slots() -> None:
    times = StepTimes.model_validate(ENTERED)
    assert times.replay_of(4, 32).pass_s == 0.5
    assert times.replay_of(6, 32).pass_s == pytest.approx(0.7)
    assert times.replay_of(8, 16).pass_s == pytest.approx(0.5)
    assert times.replay_of(8, 16).asked_row_s == pytest.approx(0.01)  # half as many slots in a row


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"draft": {"decode_s": {}, "prefill_token_s": 0}}, "draft.decode_s"),
        ({"draft": {"decode_s": {"0": 0.1}, "prefill_token_s": 0}}, "draft.decode_s"),
        ({"draft": {"decode_s": {"1": 0.1}, "prefill_token_s": -1}}, "draft.prefill_token_s"),
        ({"draft": {"decode_s": {"1": "nan"}, "prefill_token_s": 0}}, "draft.decode_s.1"),
        ({"replay": []}, "replay"),
        ({"replay": [{"rows": 4, "window": 32, "pass_s": 0}]}, "replay.0.pass_s"),
        ({"replay": [ENTERED["replay"][0]] * 2}, "twice"),
        ({"source": "guessed"}, "source"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=r"times\.json") as error:
        read_step_times(write(tmp_path, ENTERED | change))
    assert named in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        read_step_times(tmp_path / "nowhere.json")
