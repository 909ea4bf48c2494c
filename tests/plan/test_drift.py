import math
import statistics

import pytest

from llm42.plan.drift import Drift, Pen, Script

PAPER = Drift(median_span=188, intact_tokens=512, intact_share=0.21)


def first_flips(drift: Drift, output: int, count: int = 1200) -> list[int]:
    """Tokens that are right before the first flip; ``output`` where there is none."""
    scripts = [Script.of(10, output, drift, str(number)) for number in range(count)]
    return [min(script.flips, default=10 + output) - 10 for script in scripts]


def test_first_spans_are_as_the_two_points_say() -> None:
    spans = first_flips(PAPER, 600)
    assert statistics.median(spans) == pytest.approx(188, rel=0.08)
    assert sum(span >= 512 for span in spans) / len(spans) == pytest.approx(0.21, abs=0.03)


def test_with_one_point_all_outputs_are_alike() -> None:
    spans = first_flips(Drift(median_span=188), 600)
    assert statistics.median(spans) == pytest.approx(188, rel=0.08)
    assert sum(span >= 512 for span in spans) / len(spans) == pytest.approx(2 ** (-512 / 188), abs=0.03)


def test_the_mean_rate_is_that_of_all_flips() -> None:
    flips = sum(len(Script.of(1, 1000, PAPER, str(number)).flips) for number in range(800))
    assert flips / 800_000 == pytest.approx(PAPER.mean_rate, rel=0.1)


def test_without_drift_nothing_flips() -> None:
    assert Drift().mean_rate == 0
    assert set(first_flips(Drift(), 100, 50)) == {100}


def test_prompts_never_flip() -> None:
    assert all(min(Script.of(50, 50, Drift(median_span=2), str(n)).flips) >= 50 for n in range(100))


def test_one_seed_makes_one_script() -> None:
    assert Script.of(10, 100, PAPER, "a") == Script.of(10, 100, PAPER, "a")
    assert Script.of(10, 100, PAPER, "a") != Script.of(10, 100, PAPER, "b")


@pytest.mark.parametrize(
    "fields",
    [
        {"median_span": 188, "intact_share": 0.2},
        {"intact_tokens": 512, "intact_share": 0.2},
        {"median_span": 188, "intact_tokens": 512, "intact_share": 0.6},  # more than at the median
        {"median_span": 188, "intact_tokens": 512, "intact_share": 0.1},  # fewer than if all were alike
        {"median_span": 188, "intact_tokens": 100, "intact_share": 0.4},
        {"median_span": 0},
    ],
)
def test_points_that_no_distribution_has_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"intact_share|median_span"):
        Drift.model_validate(fields)


def test_behind_a_flip_everything_is_wrong_until_one_begins_anew() -> None:
    script = Script([5, 6, 7, 8, 9, 10], 2, frozenset({3}), [4.0, 0.1, 3.0, 2.0])
    pen = Pen(script, [5, 6])
    drafted, margins = zip(*(pen.write() for _ in range(4)), strict=True)
    assert margins == (4.0, 0.1, 3.0, 2.0)
    assert drafted[0] == 7
    assert all(token != right for token, right in zip(drafted[1:], [8, 9, 10], strict=True))
    again = Pen(script, [5, 6, 7, 8])
    assert [again.write(), again.write()] == [(9, 3.0), (10, 2.0)]
    astray = Pen(script, [5, 6, 7, drafted[1]])
    assert astray.write()[0] != 9


def test_margins_say_how_likely_a_choice_is_to_flip() -> None:
    """Q of them, in deviations of the drift; and they move no flip."""
    bands: dict[tuple[float, float], list[bool]] = {(0, 0.5): [], (0.5, 1): [], (1, 2): []}
    for number in range(100):
        script = Script.of(1, 1000, Drift(median_span=30), str(number))
        for position, margin in enumerate(script.margins, start=1):
            for low, high in bands:
                if low <= margin < high:
                    bands[low, high].append(position in script.flips)
    for (low, high), flipped in bands.items():
        least, most = (math.erfc(margin / math.sqrt(2)) / 2 for margin in (high, low))
        assert least < statistics.fmean(flipped) < most


def test_without_drift_every_choice_is_clear() -> None:
    assert set(Script.of(5, 20, Drift(), "a").margins) == {math.inf}
