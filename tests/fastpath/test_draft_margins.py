"""Margins find the tokens that they belong to, and their way to a router."""

import math
import pickle

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, FinishReason

from llm42.internals.draft_margins import STEPS, MarginNotes, draft_margins, name_margins, with_margins
from llm42.internals.draft_sampler import draft_extra_args
from llm42.protocol import GREEDY, Selection


def told(notes: MarginNotes, name: str, first: int, count: int) -> list[float]:
    output = with_margins(EngineCoreOutput("r", [0] * count), notes.of(name, first, count))
    return list(draft_margins(output))


def test_margins_are_found_by_name_and_number() -> None:
    notes = MarginNotes()
    notes.add([("a", 0), ("b", 5)], torch.tensor([1.0, 2.0]))
    notes.add([("b", 6), ("a", 1)], torch.tensor([3.0, 4.0]))
    assert told(notes, "a", 0, 2) == [1.0, 4.0]
    assert told(notes, "b", 5, 3) == [2.0, 3.0, math.inf]
    assert told(notes, "c", 0, 1) == [math.inf]


def test_the_latest_choice_counts_and_old_steps_are_forgotten() -> None:
    notes = MarginNotes()
    for step in range(STEPS):
        notes.add([("a", 0)], torch.tensor([float(step)]))
    assert told(notes, "a", 0, 1) == [STEPS - 1]
    for step in range(STEPS):
        notes.add([("b", step)], torch.tensor([0.0]))
    assert told(notes, "a", 0, 1) == [math.inf]


def test_an_output_with_margins_is_still_one_of_vllm_and_travels() -> None:
    plain = EngineCoreOutput("r", [1, 2], finish_reason=FinishReason.STOP, stop_reason=2)
    output = pickle.loads(pickle.dumps(with_margins(plain, MarginNotes().of("r", 0, 2))))
    assert isinstance(output, EngineCoreOutput)
    assert all(getattr(output, name) == getattr(plain, name) for name in plain.__struct_fields__)
    assert list(draft_margins(output)) == [math.inf, math.inf]
    assert list(draft_margins(plain)) == []


def test_only_who_asks_is_named() -> None:
    for selection in (GREEDY, Selection(1.0, seed=1)):
        asking = SamplingParams(extra_args=draft_extra_args(selection, margins=True))
        assert name_margins(asking, "s/r")
        assert asking.extra_args["llm42_margins"] == "s/r"
        assert not name_margins(SamplingParams(extra_args=draft_extra_args(selection)), "s/r")
    assert draft_extra_args(GREEDY) is None
