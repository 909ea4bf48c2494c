"""Any interleaving of drafts, replies, repeats, losses and rollbacks commits exactly the canonical output."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm42.protocol import (
    Action,
    Commit,
    Doubt,
    Finish,
    ReplayGrid,
    Selection,
    Session,
    StartDraft,
    StopDraft,
    StopRules,
    Verify,
    VerifyCadence,
)
from tests.protocol.model import EOS, VOCABULARY, canonical_logprob, canonical_output, canonical_token, reply_to

Drafter = Callable[[list[int], Callable[[], int]], int]

DRAFTERS: dict[str, Drafter] = {
    "right": lambda prefix, _: canonical_token(prefix),
    "random": lambda _, draw: draw() % VOCABULARY,
    "constant": lambda *_: 3,
    "always_stops": lambda *_: EOS,
    "mostly_right": lambda prefix, draw: canonical_token(prefix) if draw() % 5 else draw() % VOCABULARY,
    "right_until_the_last_slot": lambda prefix, _: (canonical_token(prefix) + (len(prefix) % 4 == 3)) % VOCABULARY,
}


MARGINS = (0.0, 0.1, 1.0, 30.0, 1e300, 5e-324, -0.0, -1.0, math.inf, -math.inf, math.nan)


class World:
    """Executes actions, and lets the test choose what happens next."""

    def __init__(self, session: Session, drafter: Drafter, draw: Callable[[], int]) -> None:
        self.session, self.drafter, self.draw = session, drafter, draw
        self.output: list[int] = []
        self.logprobs = b""
        self.prompt: list[int] | None = None
        self.finish: Finish | None = None
        self.stream: StartDraft | None = None
        self.said: list[int] = []
        self.call: Verify | None = None
        self.past: list[Verify] = []
        self.run(session.start())

    def run(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartDraft():
                    assert self.stream is None, "two live streams"
                    assert action.max_tokens >= 1
                    self.stream, self.said = action, []
                case StopDraft(stream=stream):
                    assert self.stream is not None
                    assert self.stream.stream == stream
                    self.stream = None
                case Verify():
                    assert self.call is None, "two open replays"
                    self.call = action
                case Commit():
                    assert self.finish is None, "committed after the end"
                    assert action.scores.tokens, "every reply commits at least one token"
                    assert action.scores.complete
                    self.output += action.scores.tokens
                    self.logprobs += action.scores.logprobs
                    if action.prompt is not None:
                        assert self.prompt is None
                        self.prompt = list(action.prompt.tokens)
                    self.finish = action.finish

    def draft(self, count: int) -> None:
        if self.stream is None:
            return
        batch: list[int] = []
        while len(batch) < count and len(self.said) < self.stream.max_tokens:
            batch.append(self.drafter([*self.stream.tokens, *self.said], self.draw))
            self.said.append(batch[-1])
        stream, ended = self.stream.stream, len(self.said) == self.stream.max_tokens or EOS in batch
        if ended:
            self.stream = None
        margins = [MARGINS[self.draw() % len(MARGINS)] for _ in range(self.draw() % (len(batch) + 3))]
        self.run(self.session.drafted(stream, batch, margins, ended=ended))

    def verify(self) -> None:
        if self.call is not None:
            call, self.call = self.call, None
            self.past.append(call)
            reply, given = reply_to(call.question, self.draw() % 2), call.question.given
            if self.draw() % 4 == 0:  # behind a candidate that is not canonical there may be nothing to choose
                reply = replace(reply, scores=reply.scores[: given + 1 + self.draw() % len(reply.scores[given:])])
            self.run(self.session.verified(call.call, reply))

    def repeat_reply(self) -> None:
        if self.past:
            old = self.past[self.draw() % len(self.past)]
            assert self.session.verified(old.call, reply_to(old.question)) == []

    def foreign_reply(self) -> None:
        """The right call number, but the answer to another question: must be ignored."""
        if self.call is not None:
            asked = self.call.question
            changed = asked.tokens[:-4] + b"\x07\0\0\0"
            for other in (replace(asked, tokens=changed), replace(asked, selection=Selection(0.5))):
                if other != asked:
                    assert self.session.verified(self.call.call, reply_to(other)) == []

    def late_draft(self) -> None:
        """A stopped stream still speaks: must be ignored."""
        stale = self.session._streams - (1 if self.stream else 0)
        if stale > 0:
            assert self.session.drafted(stale, [1, 2, 3]) == []

    def lose_drafter(self) -> None:
        if self.stream is not None:
            stream, self.stream = self.stream.stream, None
            self.run(self.session.draft_lost(stream))
        elif self.draw() % 2:
            self.run(self.session.draft_possible())


STEPS = ("draft", "verify", "repeat_reply", "foreign_reply", "late_draft", "lose_drafter")


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    grid = ReplayGrid(draw(st.integers(1, 6)))
    return Session(
        prompt=draw(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12)),
        stop=StopRules(
            max_tokens=draw(st.integers(1, 24)),
            eos_token_id=draw(st.sampled_from([EOS, None])),
            stop_token_ids=frozenset(draw(st.sets(st.integers(1, VOCABULARY - 1), max_size=1))),
        ),
        cadence=VerifyCadence(
            grid,
            draw(st.sampled_from([None, 1, 3])),
            draw(st.none() | st.builds(Doubt, st.sampled_from([1e-9, 0.5, 2]))),
        ),
        run_ahead=draw(st.integers(1, 16)),
        scored=draw(st.booleans()),
    )


@pytest.mark.parametrize("drafter", DRAFTERS)
@given(session=sessions(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_drafter_independence_and_progress(drafter: str, session: Session, data: st.DataObject) -> None:
    world = World(session, DRAFTERS[drafter], lambda: data.draw(st.integers(0, 1000)))
    expected = canonical_output(session.prompt, session.stop)
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=40)):
        if world.finish is not None:
            break
        if step == "draft":
            world.draft(data.draw(st.integers(0, 9)))
        else:
            getattr(world, step)()
        assert world.output == expected[: len(world.output)], "only canonical tokens, in order, once"
        assert len(session._candidates) <= session.run_ahead + 9
    steps = 0
    while world.finish is None:  # fair from here on: something must always be possible, and it must end
        assert world.call is not None or world.stream is not None, "stuck: nothing in flight"
        world.verify()
        world.draft(1)
        steps += 1
        assert steps <= 40 * (1 + session.stop.max_tokens), "no progress"
    assert world.output == expected
    prefixes = [[*session.prompt, *expected[:i]] for i in range(len(expected))]
    assert world.logprobs == b"".join(map(canonical_logprob, prefixes))
    assert world.finish is (Finish.STOP if session.stop.stops(expected[-1]) else Finish.LENGTH)
    assert world.prompt == (list(session.prompt[1:]) if session.scored else None)
    assert world.stream is None, "a finished request leaves no stream behind"


@given(session=sessions(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_nobody_drafts(session: Session, data: st.DataObject) -> None:
    """The verifier alone finishes the request, a token for a replay."""
    world = World(session, DRAFTERS["right"], lambda: 0)
    if world.stream is not None:  # else there is nothing to draft
        stream, world.stream = world.stream.stream, None
        world.run(session.draft_lost(stream))
    while world.finish is None:
        assert world.call is not None
        world.verify()
    assert world.output == canonical_output(session.prompt, session.stop)
    assert session.stats.replays == len(world.output)


@given(session=sessions(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_abort_silences_a_session(session: Session, data: st.DataObject) -> None:
    world = World(session, DRAFTERS["mostly_right"], lambda: data.draw(st.integers(0, 1000)))
    for _ in range(data.draw(st.integers(0, 6))):
        world.draft(2)
        if data.draw(st.booleans()):
            world.verify()
    call, stream = world.call, world.stream
    world.run(session.abort())
    assert world.stream is None
    if call is not None:
        assert session.verified(call.call, reply_to(call.question)) == []
    if stream is not None:
        assert session.drafted(stream.stream, [1]) == []
    assert session.draft_possible() == []


def test_negative_control_unverified_drafts_would_be_wrong() -> None:
    """The property can fail: a session that trusts its drafter (here: a rigged verifier) is found out."""
    session = Session([1, 2, 3], StopRules(max_tokens=8), VerifyCadence(ReplayGrid(4), None), run_ahead=16)
    world = World(session, DRAFTERS["constant"], lambda: 0)
    rigged = world.call
    assert rigged is not None
    true = reply_to(rigged.question)
    lie = replace(true.scores, tokens=[(true.scores.tokens[0] + 1) % VOCABULARY])
    world.run(session.verified(rigged.call, replace(true, scores=lie)))
    assert world.output != canonical_output(session.prompt, session.stop)[: len(world.output)]
