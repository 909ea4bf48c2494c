"""How many engines the policies want, without Serve around them."""

import logging
import math

import pytest

from llm42.autoscaling.policy import SILENCE_S, FastPathPolicy, PoolPolicy, VerifierPolicy
from tests.autoscaling.contexts import NOW, Points, context, steady

VERIFIERS = VerifierPolicy(target_wait_s=0.25)
LOADED = FastPathPolicy(target_requests=None)
COUNTED = FastPathPolicy(target_requests=10)
POLICIES = [VERIFIERS, LOADED, COUNTED]


def verifier(wait_s: float, work: float, pass_s: float = 0.02) -> dict[str, Points]:
    return {"wait_s": steady(wait_s), "work": steady(work), "pass_s": steady(pass_s)}


def fast_path(requests: float, load: float) -> dict[str, Points]:
    return {"requests": steady(requests), "load": steady(load)}


IDLE = {**verifier(0, 0, 0), **fast_path(0, 0)}
BUSY = {**verifier(2, 0.9), **fast_path(1000, 2)}


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_pool_shrinks_one_by_one_to_the_least_and_never_to_none(policy: PoolPolicy) -> None:
    assert policy(context(dict.fromkeys("abcd", IDLE)))[0] == 3
    assert policy(context(dict.fromkeys("abcd", IDLE), bounds=(4, 8)))[0] == 4
    assert policy(context({"a": IDLE}))[0] == 1
    assert policy(context({"a": IDLE}, bounds=(0, 8)))[0] == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_busy_pool_grows_within_its_bounds(policy: PoolPolicy) -> None:
    assert policy(context({"a": BUSY}))[0] >= 2
    assert policy(context(dict.fromkeys("abc", BUSY), bounds=(1, 4)))[0] == 4
    assert policy(context(dict.fromkeys("abcd", BUSY), bounds=(1, 4)))[0] == 4


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("known", [IDLE, BUSY])
@pytest.mark.parametrize(
    "unknown",
    [
        {},
        {name: [(ago, math.nan) for ago, _ in points] for name, points in IDLE.items()},
        {name: [(ago, math.inf) for ago, _ in points] for name, points in IDLE.items()},
        {name: [(90.0, 0.0), (40.0, 0.0)] for name in IDLE},
        {name: IDLE[name] for name in ("wait_s", "requests")},
    ],
    ids=["nothing", "nan", "infinite", "old", "some"],
)
def test_without_figures_of_all_it_stays_as_it_is(
    policy: PoolPolicy, known: dict[str, Points], unknown: dict[str, Points]
) -> None:
    assert policy(context({"a": known, "b": unknown}))[0] == 2
    assert policy(context({"a": unknown}, target=3))[0] == 3
    assert policy(context({}, target=3))[0] == 3


def test_a_stray_value_that_is_no_number_is_not_counted() -> None:
    spoilt = {name: [*points, (4.0, math.nan)] for name, points in BUSY.items()}
    assert [policy(context({"a": spoilt}))[0] for policy in POLICIES] == [
        policy(context({"a": BUSY}))[0] for policy in POLICIES
    ]


def test_silence_is_told_when_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    silent = {"a": IDLE, "b": {}}
    with caplog.at_level(logging.WARNING, logger="ray.serve"):
        _, state = VERIFIERS(context(silent))
        _, state = VERIFIERS(context(silent, state=state, now=NOW + SILENCE_S - 40))
        assert not caplog.messages
        _, state = VERIFIERS(context(silent, state=state, now=NOW + SILENCE_S + 1))
        VERIFIERS(context(silent, state=state, now=NOW + SILENCE_S + 2))
    assert caplog.messages == ["Verifier stays at 2: not all replicas say how busy they are"]


# -- verifiers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wait_s", "wanted"), [(0.2, 4), (0.26, 5), (0.4, 7), (0.5, 8), (60, 8)])
def test_verifiers_grow_with_the_wait_to_twice_their_number_at_most(wait_s: float, wanted: int) -> None:
    assert VERIFIERS(context({name: verifier(wait_s, 0.9) for name in "abcd"}, bounds=(1, 99)))[0] == wanted


def test_a_wait_that_only_the_pass_makes_is_none() -> None:
    assert VERIFIERS(context({"a": verifier(0.9, 0.9, pass_s=0.6)}))[0] == 1
    assert VERIFIERS(context({"a": verifier(1.3, 0.9, pass_s=0.6)}))[0] == 2


def test_verifiers_that_still_load_are_not_asked_for_again() -> None:
    assert VERIFIERS(context({"a": verifier(9, 0.9)}, target=2))[0] == 2
    assert VERIFIERS(context({"a": verifier(0.01, 0)}, target=2))[0] == 1  # nor waited for when they are not needed


def test_a_newcomer_counts_from_its_first_figures_on() -> None:
    before = {"wait_s": [(28.0, 9.0), (22.0, 9.0), (16.0, 9.0)], "work": steady(0.9)[:3], "pass_s": steady(0.02)[:3]}
    since = {
        name: [*points, (6.0, {"wait_s": 0.1, "work": 0.5, "pass_s": 0.02}[name])] for name, points in before.items()
    }
    newcomer = {name: points[3:] for name, points in since.items()}
    newcomer = {name: [(8.0, value) for _, value in points] for name, points in newcomer.items()}
    assert VERIFIERS(context({"a": before, "b": newcomer}))[0] == 2  # the old one has not reported since
    assert VERIFIERS(context({"a": since, "b": newcomer}))[0] == 2
    assert VERIFIERS(context({"a": since}))[0] == 2  # alone, its waits would ask for another


def test_verifiers_go_only_if_the_others_can_do_their_work() -> None:
    """What a full one does is what one did when replays had to wait."""
    two = [("a", 0.3), ("b", 0.3)]
    assert VERIFIERS(context({name: verifier(0, work) for name, work in two}))[0] == 2
    _, state = VERIFIERS(context({"a": verifier(9, 0.95)}))
    assert VERIFIERS(context({name: verifier(0, work) for name, work in two}, state=state))[0] == 1
    _, state = VERIFIERS(context({"a": verifier(9, 0.1)}))
    assert VERIFIERS(context({"a": verifier(0, 0.04), "b": verifier(0, 0.04)}, state=state))[0] == 2


def test_the_work_of_a_pool_that_has_grown_does_not_shrink_it_again() -> None:
    """The same work on more verifiers, with no wait any more: without a memory of the load it would flap."""
    for full in (0.1, 0.5, 0.9):
        grown, state = VERIFIERS(context({"a": verifier(0.4, full)}))
        assert grown == 2
        pool = {name: verifier(0, full / grown) for name in "ab"}
        assert VERIFIERS(context(pool, state=state))[0] == 2


# -- fast paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requests", "wanted"), [(9, 1), (10, 1), (11, 2), (45, 5), (500, 8)])
def test_fast_paths_are_as_many_as_their_requests_need(requests: int, wanted: int) -> None:
    assert COUNTED(context({"a": fast_path(requests, 0)}))[0] == wanted


@pytest.mark.parametrize(("load", "wanted"), [(0.7, 1), (0.8, 2), (2.9, 4), (99, 8)])
def test_by_default_that_is_what_engines_hold(load: float, wanted: int) -> None:
    assert LOADED(context({"a": fast_path(0, load)}))[0] == wanted


def test_the_same_requests_want_the_same_engines_whatever_there_is() -> None:
    for pool in ("a", "ab", "abc"):
        assert LOADED(context({name: fast_path(0, 1.5 / len(pool)) for name in pool}))[0] == 2
