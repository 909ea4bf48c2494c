"""The session's decisions, one at a time. What it commits is settled by the property tests."""

from typing import TypeVar

import pytest

from llm42.protocol import (
    Action,
    Commit,
    Doubt,
    Finish,
    Haste,
    ReplayGrid,
    ReplayReply,
    Scores,
    Session,
    StartDraft,
    StopDraft,
    StopRules,
    Verify,
    VerifyCadence,
    unpack_tokens,
)

W = 4
T = TypeVar("T", bound=Action)


def session(prompt: int = 3, *, max_tokens: int = 100, eager: int | None = None, run_ahead: int = 16) -> Session:
    return Session([9] * prompt, StopRules(max_tokens, eos_token_id=0), VerifyCadence(ReplayGrid(W), eager), run_ahead)


def reply(verify: Verify, tokens: list[int], idle_rows: int = 0) -> ReplayReply:
    count = verify.question.count
    padded = [*tokens, *[8] * count][:count]
    return ReplayReply("f", verify.question.digest, Scores(padded, b"\0" * 4 * count, [1] * count), idle_rows)


def of(kind: type[T], actions: list[Action]) -> T:
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def begun(first: int = 1, **settings: int) -> tuple[Session, StartDraft]:
    """A session whose first token is committed, and whose stream has drafted that very token."""
    it = session(**settings)  # type: ignore[arg-type]
    actions = it.start()
    draft, verify = of(StartDraft, actions), of(Verify, actions)
    assert it.drafted(draft.stream, [first]) == []
    of(Commit, it.verified(verify.call, reply(verify, [first])))
    return it, draft


def test_start_drafts_and_replays_the_prompt_at_once() -> None:
    actions = session().start()
    assert of(StartDraft, actions) == StartDraft(1, [9, 9, 9], 99)
    verify = of(Verify, actions)
    asked = verify.question
    assert (unpack_tokens(asked.tokens), asked.start, asked.count) == ([9, 9, 9], 2, 1)


def test_every_question_names_the_adapter() -> None:
    it = Session([9], StopRules(8), VerifyCadence(ReplayGrid(W), 1), run_ahead=16, adapter="drawl")
    actions = it.start()
    draft, first = of(StartDraft, actions), of(Verify, actions)
    it.drafted(draft.stream, [1, 1, 1])
    second = of(Verify, it.verified(first.call, reply(first, [1])))
    assert (first.question.adapter, second.question.adapter) == ("drawl", "drawl")


def test_candidates_wait_for_the_window_boundary() -> None:
    it, draft = begun()  # position 3 is committed: the window [0, 4) is full, the next ends at 8
    assert it.drafted(draft.stream, [1, 1, 1]) == []
    verify = of(Verify, it.drafted(draft.stream, [1]))
    asked = verify.question
    assert (asked.length, asked.start, asked.count) == (8, 3, 5)


def test_a_busy_verifier_gets_full_windows_only() -> None:
    it, draft = begun()
    verify = of(Verify, it.drafted(draft.stream, [1] * 6))
    assert verify.question.length == 8, "the two candidates that spill over wait"


def test_an_idle_verifier_is_used_early() -> None:
    it = session(eager=2)
    actions = it.start()
    draft, verify = of(StartDraft, actions), of(Verify, actions)
    it.drafted(draft.stream, [1])
    it.verified(verify.call, reply(verify, [1], idle_rows=3))
    assert it.drafted(draft.stream, [1]) == []
    verify = of(Verify, it.drafted(draft.stream, [1]))
    assert (verify.question.count, verify.haste) == (3, Haste.EARLY)
    # What fills a window is what a reader waits for. One token more would be a row of its own; two are worth it.
    for drafted, length in (([1, 1], 8), ([1] * 5, 12), ([1] * 5, 18)):
        it.drafted(draft.stream, drafted)
        verify = of(Verify, it.verified(verify.call, reply(verify, [1] * verify.question.count, idle_rows=3)))
        assert (verify.question.length, verify.haste) == (length, Haste.DUE)


@pytest.mark.parametrize(
    ("settings", "haste"),
    [
        ({"max_tokens": 10}, Haste.DUE),  # the first, two windows, and the last one, which is not drafted
        ({"max_tokens": 9}, Haste.URGENT),
        ({"run_ahead": 8}, Haste.DUE),
        ({"run_ahead": 7}, Haste.URGENT),
    ],
)
def test_a_full_window_is_urgent_if_the_draft_will_end_before_the_next(settings: dict[str, int], haste: Haste) -> None:
    it, draft = begun(**settings)  # type: ignore[arg-type]
    verify = of(Verify, it.drafted(draft.stream, [1] * 4))
    assert (verify.question.length, verify.haste) == (8, haste)


def test_who_is_in_doubt_does_not_wait_for_company() -> None:
    doubt = Doubt(0.1)
    doubt.contradicted(0.5)
    cadence = VerifyCadence(ReplayGrid(W), None, doubt)
    it = Session([9] * 3, StopRules(100), cadence, run_ahead=16)
    actions = it.start()
    draft, verify = of(StartDraft, actions), of(Verify, actions)
    it.drafted(draft.stream, [1])
    it.verified(verify.call, reply(verify, [1], idle_rows=3))
    verify = of(Verify, it.drafted(draft.stream, [1, 1], [0.0, 0.0]))
    assert (verify.question.count, verify.haste) == (3, Haste.SOON)


@pytest.mark.parametrize(("max_tokens", "haste"), [(8, Haste.EARLY), (7, Haste.SOON)])
def test_an_early_replay_does_not_hold_up_the_end(max_tokens: int, haste: Haste) -> None:
    it = session(eager=2, max_tokens=max_tokens)
    actions = it.start()
    draft, verify = of(StartDraft, actions), of(Verify, actions)
    it.drafted(draft.stream, [1])
    it.verified(verify.call, reply(verify, [1], idle_rows=3))
    verify = of(Verify, it.drafted(draft.stream, [1, 1]))
    assert (verify.question.count, verify.haste) == (3, haste)


def test_the_longest_match_commits_and_the_first_difference_rolls_back() -> None:
    it, draft = begun()
    verify = of(Verify, it.drafted(draft.stream, [1, 2, 3, 4]))
    it.drafted(draft.stream, [5, 6])
    actions = it.verified(verify.call, reply(verify, [1, 2, 7, 4, 5]))
    commit, stop, start = actions[0], actions[1], actions[2]
    assert isinstance(commit, Commit)
    assert commit.scores.tokens == [1, 2, 7]
    assert stop == StopDraft(draft.stream)
    assert start == StartDraft(draft.stream + 1, [9, 9, 9, 1, 1, 2, 7], 95)
    assert (it.stats.rollbacks, it.stats.rolled_back, it.stats.accepted) == (1, 4, 2)


def test_the_bonus_token_is_compared_with_what_was_drafted_meanwhile() -> None:
    it, draft = begun()
    verify = of(Verify, it.drafted(draft.stream, [1, 2, 3, 4]))
    it.drafted(draft.stream, [5, 6])
    actions = it.verified(verify.call, reply(verify, [1, 2, 3, 4, 5]))
    assert of(Commit, actions).scores.tokens == [1, 2, 3, 4, 5]
    assert [type(action) for action in actions] == [Commit], "the stream goes on: [6] still waits"


def test_a_stream_behind_the_committed_end_is_compared_as_it_catches_up() -> None:
    it = session()
    actions = it.start()
    draft, verify = of(StartDraft, actions), of(Verify, actions)
    it.verified(verify.call, reply(verify, [1]))
    assert it.drafted(draft.stream, [1]) == [], "it agrees"
    it = session()
    actions = it.start()
    draft, verify = of(StartDraft, actions), of(Verify, actions)
    it.verified(verify.call, reply(verify, [1]))
    actions = it.drafted(draft.stream, [2, 5, 5])
    assert actions == [StopDraft(1), StartDraft(2, [9, 9, 9, 1], 98)], "it differs: drafting on would be in vain"


def test_run_ahead_is_bounded_and_resumes_at_half() -> None:
    it, draft = begun(run_ahead=8)
    verify = of(Verify, it.drafted(draft.stream, [1] * 4))
    actions = it.drafted(draft.stream, [1] * 4)
    assert actions == [StopDraft(draft.stream)]
    actions = it.verified(verify.call, reply(verify, [1] * 5))
    assert of(Commit, actions).scores.tokens == [1] * 5
    start = of(StartDraft, actions)
    assert start.tokens == [9] * 3 + [1] * 9, "it goes on after the candidates that still wait"


def test_no_successor_is_asked_of_a_token_that_ends_the_request() -> None:
    it, draft = begun()
    verify = of(Verify, it.drafted(draft.stream, [1, 0], ended=True))
    assert unpack_tokens(verify.question.tokens)[-1] == 1, "the candidate 0 is compared, not fed"
    commit = of(Commit, it.verified(verify.call, reply(verify, [1, 0])))
    assert commit.scores.tokens == [1, 0]
    assert commit.finish is not None
    assert commit.stop_token is None, "end of sequence is no stop token"


def test_max_tokens_is_exact() -> None:
    it, draft = begun(max_tokens=3)
    verify = of(Verify, it.drafted(draft.stream, [1, 1], ended=True))
    commit = of(Commit, it.verified(verify.call, reply(verify, [1, 1, 1])))
    assert len(commit.scores.tokens) == 2


def test_a_drafter_that_stops_too_early_is_started_again() -> None:
    it, draft = begun()
    verify = of(Verify, it.drafted(draft.stream, [0], ended=True))
    actions = it.verified(verify.call, reply(verify, [5]))
    assert of(Commit, actions).scores.tokens == [5]
    assert of(StartDraft, actions).stream == draft.stream + 1
    assert it.stats.rollbacks == 1


def test_the_last_token_is_not_drafted() -> None:
    """Whatever stands there, it is the verifier's."""
    it = session(max_tokens=3)
    actions = it.start()
    draft, verify = of(StartDraft, actions), of(Verify, actions)
    assert draft.max_tokens == 2
    it.drafted(draft.stream, [1, 1], ended=True)
    verify = of(Verify, it.verified(verify.call, reply(verify, [1])))
    assert (verify.question.count, verify.haste) == (2, Haste.URGENT)
    assert of(Commit, it.verified(verify.call, reply(verify, [1, 7]))).finish is Finish.LENGTH


def test_a_single_token_takes_no_draft() -> None:
    it = session(max_tokens=1)
    (verify,) = it.start()
    assert isinstance(verify, Verify)
    assert of(Commit, it.verified(verify.call, reply(verify, [1]))).finish is Finish.LENGTH
