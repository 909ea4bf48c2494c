import numpy as np
import pytest

from llm42.bench.workload import FIRST_ID, LAST_ID, Length, Mix, arrivals, make_requests

MIX = Mix("sharegpt", Length(48, 1.0, 4, 384), Length(32, 0.8, 4, 128))


def test_one_seed_makes_one_workload() -> None:
    assert make_requests(MIX, 20, 0.5, 7) == make_requests(MIX, 20, 0.5, 7)
    assert make_requests(MIX, 20, 0.5, 7) != make_requests(MIX, 20, 0.5, 8)


def test_sizes_are_exact_or_within_their_bounds() -> None:
    fixed = make_requests(Mix("fixed", Length(64), Length(32)), 5, 0.0, 0)
    assert {(len(request.prompt), request.tokens) for request in fixed} == {(64, 32)}
    mixed = make_requests(MIX, 2000, 0.0, 0)
    prompts = [len(request.prompt) for request in mixed]
    assert min(prompts) >= 4
    assert max(prompts) <= 384
    assert 42 < np.median(prompts) < 55
    assert len(set(prompts)) > 100
    assert MIX.longest == 384 + 128
    assert all(FIRST_ID <= token < LAST_ID for token in mixed[0].prompt)


def test_shares_are_nested_and_change_nothing_else() -> None:
    """Else ordinary requests of one share could not be compared with the same ones of another."""
    few, many = make_requests(MIX, 40, 0.1, 3), make_requests(MIX, 40, 0.5, 3)
    flagged = [{number for number, one in enumerate(some) if one.deterministic} for some in (few, many)]
    assert [len(some) for some in flagged] == [4, 20]
    assert flagged[0] < flagged[1]
    assert [(one.prompt, one.tokens) for one in few] == [(one.prompt, one.tokens) for one in many]


@pytest.mark.parametrize(("share", "flagged"), [(0.0, 0), (0.02, 1), (1.0, 10)])
def test_a_share_that_is_not_zero_has_someone(share: float, flagged: int) -> None:
    assert sum(request.deterministic for request in make_requests(MIX, 10, share, 0)) == flagged


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    times = arrivals(4000, 20.0, 5)
    gaps = np.diff([0.0, *times])
    assert times == arrivals(4000, 20.0, 5)
    assert times != arrivals(4000, 20.0, 6)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.06)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # an even stream would have 0 here


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        arrivals(3, 0.0, 0)
