"""What a margin is worth is learnt from contradictions, and nothing that a drafter says can upset it."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm42.protocol import Doubt, ReplayGrid, VerifyCadence

SIGMA = 0.05


def choices(count: int) -> list[tuple[float, bool]]:
    """Margins as a drafter sees them, and whether the choice is wrong: true ones are exponential, drift is normal."""
    rng = random.Random(1)
    pairs = [(rng.expovariate(0.5), rng.gauss(0, SIGMA)) for _ in range(count)]
    return [(abs(true - drift), drift > true) for true, drift in pairs]


def taught(price: float = 1.0) -> Doubt:
    doubt = Doubt(price)
    for margin, wrong in choices(20_000):
        if wrong:
            doubt.contradicted(margin)
    return doubt


def test_sigma_is_learnt_from_contradictions() -> None:
    assert taught().sigma == pytest.approx(SIGMA, rel=0.25)


def test_risk_is_the_share_of_wrong_choices() -> None:
    doubt = Doubt(1)
    doubt.contradicted(SIGMA * math.sqrt(2 * math.pi) / 4)
    assert doubt.sigma == pytest.approx(SIGMA)
    for low, high in ((0.0, 0.5), (0.5, 1.0), (1.0, 2.0)):
        inside = [(m, wrong) for m, wrong in choices(200_000) if low * SIGMA <= m < high * SIGMA]
        expected = sum(doubt.risk([margin]) for margin, _ in inside) / len(inside)
        assert sum(wrong for _, wrong in inside) / len(inside) == pytest.approx(expected, rel=0.1)


def test_nothing_is_in_doubt_until_something_was_contradicted() -> None:
    doubt = Doubt(1e-9)
    assert doubt.risk([0.0, 1e-9, 3.0]) == 0
    assert not doubt.presses([0.0], 100)
    doubt.contradicted(math.inf)
    doubt.contradicted(math.nan)
    doubt.contradicted(-1.0)
    assert doubt.sigma == 0


def test_where_ties_alone_flip_ties_alone_are_in_doubt() -> None:
    """As with coarse logits, whose drift is less than their spacing."""
    doubt = Doubt(1)
    for _ in range(5):
        doubt.contradicted(0.0)
    assert doubt.sigma == 0
    assert doubt.risk([0.0]) == 0.5
    assert doubt.risk([1e-6, 3.0]) == 0


def test_risks_add_up_and_press_the_more_the_more_is_still_to_be_drafted() -> None:
    doubt = taught(price=2)
    assert doubt.risk([]) == 0
    assert doubt.risk([0.0]) == pytest.approx(0.5)
    assert doubt.risk([0.0, 9.0, 0.0]) == pytest.approx(0.75)
    assert doubt.presses([0.0], 4)
    assert not doubt.presses([0.0], 3)
    assert not doubt.presses([9.0] * 100, 1000)


def test_one_outlier_does_not_make_everything_doubtful() -> None:
    doubt = taught()
    before = doubt.sigma
    doubt.contradicted(1e9)
    assert doubt.sigma < 1.2 * before


@given(st.lists(st.floats(), max_size=20), st.lists(st.floats(), max_size=20))
def test_any_margins_give_a_probability(contradicted: list[float], margins: list[float]) -> None:
    doubt = Doubt(1)
    for margin in contradicted:
        doubt.contradicted(margin)
    assert 0 <= doubt.risk(margins) <= 1


def test_doubt_takes_idle_rows_only_and_all_candidates() -> None:
    cadence = VerifyCadence(ReplayGrid(16), None, taught())
    close, clear = [9.0, 0.0, 9.0], [9.0, 9.0, 9.0]
    assert cadence.take(32, close, settled=False, idle=True) == 3
    assert cadence.take(32, close, settled=False, idle=False) == 0
    assert cadence.take(32, clear, settled=False, idle=True) == 0
    assert cadence.take(32, clear * 6, settled=False, idle=False) == 16


@given(
    st.integers(1, 100),
    st.lists(st.floats(), max_size=70),
    st.none() | st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_without_doubt_margins_mean_nothing(
    length: int, margins: list[float], eager: int | None, settled: bool, idle: bool
) -> None:
    cadence = VerifyCadence(ReplayGrid(16), eager)
    plain = [math.inf] * len(margins)
    assert cadence.take(length, margins, settled=settled, idle=idle) == cadence.take(
        length, plain, settled=settled, idle=idle
    )
