"""What must come out of a simulation: all requests to their end, the same each time, and the known laws."""

import statistics
from typing import Any

import pytest

from llm42.plan.fast_path import FastPathEngine
from llm42.plan.ledger import Ledger
from llm42.plan.plan import Plan
from llm42.plan.report import Report
from llm42.plan.simulation import Simulation
from llm42.plan.verifier import VerifierEngine
from tests.plan.conftest import PASS_S, STEP_S, plan


def run(planned: Plan) -> tuple[Report, Ledger]:
    simulation = Simulation(planned.step_times, planned.workload, planned.fleet, planned.drift)
    return simulation.run(), simulation.ledger


VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "as it comes": {},
    "windows only": {"fleet": {"cadence": {"mode": "window"}}},
    "open loop": {"workload": {"concurrency": None, "rate": 3}},
    "many engines": {"fleet": {"fast_paths": 2, "verifiers": 3}},
    "one row": {"fleet": {"verify_batch_size": 1}},
    "short of pages": {"fleet": {"verifier_kv_tokens": 1024}},
    "queue of one": {"fleet": {"max_queued": 1}},
    "few sequences": {"fleet": {"max_num_seqs": 2}},
    "whole prompts": {"fleet": {"chunked_prefill": False, "max_num_batched_tokens": 1024}},
    "small chunks": {"fleet": {"max_num_batched_tokens": 8}},
    "no cache": {"fleet": {"prefix_cache": False}},
    "hardly ever right": {"drift": {"median_span": 1}},
    "long": {"workload": {"prompt": 1000, "output": 1000, "duration_s": 1}},
    "wires": {"step_times": {"wire": {"request_s": 0.1, "draft_s": 0.05, "item_s": 0.05, "replay_s": 0.1}}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_request_gets_all_its_tokens(name: str) -> None:
    planned = plan(**VARIANTS[name])
    report, ledger = run(planned)
    assert len(ledger.requests) > 5
    load = planned.workload
    assert isinstance(load.prompt, int)
    assert isinstance(load.output, int)
    output = min(load.output, 1024 - load.prompt)
    assert all(request.ended is not None and request.tokens == output for request in ledger.requests)
    deterministic = [request for request in ledger.requests if request.deterministic]
    assert deterministic
    assert ledger.session["committed"] == len(deterministic) * output
    assert sum(report.rows.values()) == pytest.approx(1)
    assert 0 < report.verifier_load <= report.verifier_busy <= 1 + 1e-9
    assert 0 < report.fast_path_busy <= 1 + 1e-9
    if name == "queue of one":
        assert report.turned_away > 0


def test_one_seed_gives_one_report() -> None:
    assert plan().predict() == plan().predict()
    assert plan().predict() != plan(workload={"seed": 1}).predict()


def test_progress_goes_from_nothing_to_all(small: Plan) -> None:
    heard: list[float] = []
    small.predict(heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_without_drift_nothing_is_recomputed() -> None:
    report = plan(drift={"median_span": None}).predict()
    assert report.deterministic.requests > 0
    assert report.recomputed == report.rollbacks == 0


def test_with_nothing_deterministic_verifiers_rest() -> None:
    report = plan(workload={"deterministic": 0}).predict()
    assert report.ordinary.tokens_per_s > 0
    assert report.deterministic.requests == 0
    assert report.verifier_busy == report.slots == 0


def test_more_drift_is_more_recompute() -> None:
    recomputed = [plan(drift={"median_span": span}).predict().recomputed for span in (400, 100, 25)]
    assert 0 < recomputed[0] < recomputed[1] < recomputed[2]


def test_every_flip_that_is_drafted_is_rolled_back_once() -> None:
    _, ledger = run(plan(workload={"deterministic": 1, "duration_s": 6}, drift={"median_span": 30}))
    flips = ledger.session["committed"] * 0.693 / 30
    # Not the first token of an answer: the verifier may have said it before.
    assert ledger.session["rollbacks"] == pytest.approx(flips, rel=0.15)


def test_windows_cost_fewer_slots_and_eagerness_less_recompute() -> None:
    eager = plan(workload={"deterministic": 1}).predict()
    windows = plan(workload={"deterministic": 1}, fleet={"cadence": {"mode": "window"}}).predict()
    assert windows.answering_slots < eager.answering_slots
    assert windows.recomputed > eager.recomputed


def test_margins_say_where_a_row_is_worth_it() -> None:
    drift = {"median_span": 60}
    modes = [{"mode": "window"}, {"mode": "margin", "price": 1}, {"mode": "adaptive", "min_candidates": 8}]
    window, margin, eager = (
        plan(workload={"deterministic": 1}, fleet={"cadence": mode}, drift=drift).predict() for mode in modes
    )
    assert margin.recomputed < 0.6 * window.recomputed
    assert window.answering_slots < margin.answering_slots < 0.75 * eager.answering_slots


def test_without_drift_no_margin_costs_a_row() -> None:
    load = {"workload": {"deterministic": 1}, "drift": {"median_span": None}}
    window, margin = (plan(**load, fleet={"cadence": {"mode": mode}}).predict() for mode in ("window", "margin"))
    assert margin == window


def test_a_cache_saves_prefill() -> None:
    # A rollback computes a block again, not the prompt.
    times = {"step_times": {"draft": {"decode_s": {1: STEP_S}, "prefill_token_s": 1e-3}}}
    load = {"workload": {"prompt": 500, "deterministic": 1, "duration_s": 10}, **times}
    cached, anew = plan(**load).predict(), plan(**load, fleet={"prefix_cache": False}).predict()
    assert cached.tokens_per_s > 1.3 * anew.tokens_per_s


def test_ordinary_requests_never_wait_for_verifiers() -> None:
    """Each is served as if the others were ordinary too, so long as steps take the same time."""
    slow = {"replay": [{"rows": 4, "window": 32, "pass_s": 5.0}]}
    usual, starved = plan().predict(), plan(step_times=slow).predict()
    assert starved.deterministic.ttft_s is not None
    assert starved.deterministic.ttft_s.p50 >= 5
    assert usual.ordinary.tpot_s is not None
    assert starved.ordinary.tpot_s is not None
    assert starved.ordinary.tpot_s.p50 == pytest.approx(usual.ordinary.tpot_s.p50, rel=0.02)


# -- laws ------------------------------------------------------------------------------------------------


def test_a_closed_loop_of_ordinary_requests_is_arithmetic() -> None:
    load = {"deterministic": 0, "concurrency": 5, "prompt": 1, "output": 50, "duration_s": 20, "warm_up_s": 5}
    report = plan(workload=load).predict()
    assert report.tokens_per_s == pytest.approx(5 / STEP_S, rel=0.01)
    assert report.fast_path_busy == pytest.approx(1)
    assert report.ordinary.tpot_s is not None
    assert report.ordinary.tpot_s.p50 == pytest.approx(STEP_S, rel=0.01)


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_one_server_waits_as_in_an_m_d_1_queue(busy: float) -> None:
    """Mean wait = busy * D / (2 (1 - busy)), after Pollaczek and Khinchine."""
    load = {"concurrency": None, "rate": busy / STEP_S, "prompt": 1, "output": 1, "deterministic": 0, "duration_s": 100}
    report, ledger = run(
        plan(
            step_times={"draft": {"decode_s": {1: 1}, "prefill_step_s": STEP_S, "prefill_token_s": 0}},
            workload=load,
            fleet={"max_num_seqs": 1},
        )
    )
    wait = statistics.fmean(request.e2e_s for request in ledger.requests) - STEP_S
    assert report.fast_path_busy == pytest.approx(busy, rel=0.03)
    assert wait == pytest.approx(busy * STEP_S / (2 * (1 - busy)), rel=0.1)


def test_verifiers_that_are_the_bottleneck_set_the_pace() -> None:
    """A request costs a row for its first token, and one for each window of 32 after that."""
    load = {"deterministic": 1, "concurrency": 16, "prompt": 32, "output": 225, "duration_s": 40, "warm_up_s": 10}
    report = plan(
        step_times={
            "draft": {"decode_s": {1: 1e-3}, "prefill_token_s": 0},
            "replay": [{"rows": 4, "window": 32, "pass_s": 0.1}],
        },
        workload=load,
        fleet={"cadence": {"mode": "window"}},
        drift={"median_span": None},
    ).predict()
    assert report.verifier_load > 0.97
    assert report.tokens_per_s == pytest.approx(4 / 0.1 * 225 / 8, rel=0.05)


def test_a_lone_deterministic_request_waits_for_one_pass() -> None:
    report = plan(workload={"concurrency": 1, "deterministic": 1, "prompt": 20}).predict()
    assert report.deterministic.ttft_s is not None
    assert report.deterministic.ttft_s.p50 == pytest.approx(PASS_S)


# -- negative controls -----------------------------------------------------------------------------------


def test_a_verifier_that_lies_is_found_out(small: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = VerifierEngine._row

    def lie(self: VerifierEngine, canonical: bytes, window: int) -> Any:
        return honest(self, canonical[:200] + b"\1" + canonical[201:], window)

    monkeypatch.setattr(VerifierEngine, "_row", lie)
    with pytest.raises(RuntimeError, match="other tokens than the canonical ones"):
        small.predict()


def test_a_request_that_never_ends_is_found_out(small: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastPathEngine, "submit", lambda self, generation: None)
    with pytest.raises(RuntimeError):
        small.predict()
