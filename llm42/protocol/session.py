"""One deterministic request: draft, verify, commit, roll back, finish.

The session holds the committed tokens and the *candidates* drafted after them. It is a state machine
without I/O: each event method returns the actions it calls for. Nothing a drafter does can change what is
committed, only how soon:

    start ──> StartDraft, Verify(prompt)          the canonical first token comes from the verifier itself
    drafted ──> (Verify)                          candidates pile up; the cadence says when to replay them
    verified ──> Commit, (StopDraft, StartDraft)  the longest match commits; the first difference commits
                                                  the canonical token instead and rolls the rest back

Every reply commits at least one token, so a session whose drafter is wrong, slow or gone still ends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from llm42.protocol.actions import Action, Commit, Finish, StartDraft, StopDraft, Verify
from llm42.protocol.cadence import VerifyCadence
from llm42.protocol.messages import Haste, Question, ReplayReply, pack_tokens
from llm42.protocol.selection import GREEDY, Selection


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends a request. ``stop_token_ids`` excludes the end-of-sequence token."""

    max_tokens: int
    eos_token_id: int | None = None
    stop_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    def stops(self, token: int) -> bool:
        return token == self.eos_token_id or token in self.stop_token_ids


@dataclass(slots=True)
class SessionStats:
    """Counts of tokens, except ``replays`` and ``rollbacks``."""

    drafted: int = 0
    verified: int = 0
    committed: int = 0
    accepted: int = 0
    rolled_back: int = 0
    replays: int = 0
    rollbacks: int = 0


@dataclass(slots=True)
class Session:
    """``prompt`` has at least one token. ``run_ahead`` bounds the candidates, in tokens.

    ``selection`` says how tokens are chosen, ``top`` how many alternatives are told with each, and ``scored``
    whether the prompt's tokens are told as well. ``adapter`` is that of the model, if any.
    """

    prompt: Sequence[int]
    stop: StopRules
    cadence: VerifyCadence
    run_ahead: int
    selection: Selection = GREEDY
    top: int = 0
    scored: bool = False
    adapter: str = ""
    finished: bool = field(default=False, init=False)
    stats: SessionStats = field(default_factory=SessionStats, init=False)
    _tokens: list[int] = field(init=False)
    """Prompt and committed tokens."""
    _candidates: list[int] = field(default_factory=list, init=False)
    _margins: list[float] = field(default_factory=list, init=False)
    """Of each candidate: by how much it beat the drafter's second choice, in logits; inf where it did not say."""
    _streams: int = field(default=0, init=False)
    _live: bool = field(default=False, init=False)
    """Whether stream number ``_streams`` may still speak."""
    _cursor: int = field(default=0, init=False)
    """Absolute position of the live stream's next token; behind the committed end after a quick replay."""
    _drafter: bool = field(default=True, init=False)
    _calls: int = field(default=0, init=False)
    _call: Verify | None = field(default=None, init=False)
    _idle: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("a session needs a prompt of at least one token")
        self._tokens = list(self.prompt)

    # -- events --------------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        return self._next()

    def drafted(
        self, stream: int, tokens: Sequence[int], margins: Sequence[float] = (), *, ended: bool = False
    ) -> list[Action]:
        """Stream ``stream`` drafted ``tokens``, by ``margins`` if it says so; ``ended`` if it will draft no more."""
        if not self._speaks(stream):
            return []
        actions: list[Action] = []
        self.stats.drafted += len(tokens)
        self._live = not ended
        for token, margin in zip(tokens, chain(margins, repeat(math.inf)), strict=False):
            if self._room() <= 0:  # past what may end the request: nothing that follows can be used
                break
            if self._cursor >= len(self._tokens):
                self._candidates.append(token)
                self._margins.append(margin)
            elif token != self._tokens[self._cursor]:  # the verifier was here first, and disagrees
                actions += self._roll_back(1, margin)
                break
            self._cursor += 1
        if self._live and (len(self._candidates) >= self.run_ahead or self._room() <= 0):
            actions.append(self._stop_draft())
        return actions + self._next()

    def draft_lost(self, stream: int) -> list[Action]:
        """Stream ``stream`` died. The verifier goes on alone until :meth:`draft_possible`."""
        if not self._speaks(stream):
            return []
        self._live = self._drafter = False
        return self._next()

    def draft_possible(self) -> list[Action]:
        """A drafter can be had again."""
        if self.finished:
            return []
        self._drafter = True
        return self._next()

    def verified(self, call: int, reply: ReplayReply) -> list[Action]:
        """The reply to ``Verify`` number ``call``. One that does not answer the open question is ignored."""
        asked = self._call
        if self.finished or asked is None or call != asked.call or not reply.answers(asked.question):
            return []
        first = len(self._tokens) == len(self.prompt)
        given, sent = asked.question.given, asked.question.count - asked.question.given - 1
        self._call, self._idle = None, reply.idle_rows > 0
        scores = reply.scores[given:]
        canonical, finish = self._canonical(scores.tokens, sent)
        self._tokens += canonical
        self.stats.verified += sent
        self.stats.committed += len(canonical)
        stopped = canonical[-1] if finish is Finish.STOP else None
        actions: list[Action] = [
            Commit(
                scores[: len(canonical)],
                finish,
                stop_token=None if stopped == self.stop.eos_token_id else stopped,
                prompt=reply.scores[:given] if self.scored and first else None,
            )
        ]
        agreed = _common_prefix(canonical, self._candidates)
        self.stats.accepted += min(agreed, sent)
        if finish is not None:
            self.finished = True
            return actions + ([self._stop_draft()] if self._live else [])
        if agreed < min(len(canonical), len(self._candidates)):
            actions += self._roll_back(len(self._candidates) - agreed, self._margins[agreed])
        else:
            del self._candidates[:agreed], self._margins[:agreed]
        return actions + self._next()

    def abort(self) -> list[Action]:
        """The client is gone, or the request failed: nothing is committed any more."""
        self.finished = True
        return [self._stop_draft()] if self._live else []

    # -- decisions -----------------------------------------------------------------------------------

    def _speaks(self, stream: int) -> bool:
        return self._live and stream == self._streams and not self.finished

    def _canonical(self, tokens: Sequence[int], sent: int) -> tuple[list[int], Finish | None]:
        """The canonical tokens that hold: up to the first that differs from its candidate, or that ends."""
        committed = len(self._tokens) - len(self.prompt)
        for i, token in enumerate(tokens, start=1):
            if self.stop.stops(token):
                return list(tokens[:i]), Finish.STOP
            if committed + i == self.stop.max_tokens:
                return list(tokens[:i]), Finish.LENGTH
            if i <= sent and token != self._candidates[i - 1]:
                return list(tokens[:i]), None
        return list(tokens), None

    def _roll_back(self, discarded: int, margin: float) -> list[Action]:
        """``margin`` is that of the first that is wrong."""
        if self.cadence.doubt is not None:
            self.cadence.doubt.contradicted(margin)
        self.stats.rollbacks += 1
        self.stats.rolled_back += discarded
        self._candidates.clear()
        self._margins.clear()
        return [self._stop_draft()] if self._live else []

    def _stop_draft(self) -> StopDraft:
        self._live = False
        return StopDraft(self._streams)

    def _next(self) -> list[Action]:
        return [action for action in (self._next_draft(), self._next_verify()) if action is not None]

    def _room(self) -> int:
        """Candidates that may still follow. The last token of all is the verifier's own, and behind a candidate that
        would end the request there is none."""
        if self._candidates and self.stop.stops(self._candidates[-1]):
            return 0
        committed = len(self._tokens) - len(self.prompt)
        return self.stop.max_tokens - committed - len(self._candidates) - 1

    def _next_draft(self) -> StartDraft | None:
        """Start drafting where no stream does, unless far enough ahead (half, so as not to flutter)."""
        if self._live or not self._drafter or len(self._candidates) > self.run_ahead // 2 or self._room() <= 0:
            return None
        self._streams += 1
        self._live = True
        self._cursor = len(self._tokens) + len(self._candidates)
        return StartDraft(self._streams, [*self._tokens, *self._candidates], self._room())

    def _next_verify(self) -> Verify | None:
        if self._call is not None:
            return None
        useful = self._useful_candidates()
        length = len(self._tokens)
        settled = not self._live
        if length == len(self.prompt):  # the first token: as soon as the prompt is replayed
            count = useful
        elif not self._candidates:
            if self._live:
                return None
            count = 0  # nobody drafts: the verifier alone, a token at a time
        else:
            count = min(useful, self.cadence.take(length, self._margins, settled=settled, idle=self._idle))
            if count == 0 and not settled:
                return None
        self._calls += 1
        self.stats.replays += 1
        tokens = pack_tokens([*self._tokens, *self._candidates[:count]])
        first = length == len(self.prompt)
        given = length - 1 if self.scored and first else 0
        question = Question(tokens, length - 1 - given, self.selection, given, self.top, self.adapter)
        haste = Haste.URGENT if settled or first else self._haste(length, count)
        self._call = Verify(self._calls, question, haste)
        return self._call

    def _haste(self, length: int, count: int) -> Haste:
        """Of a replay of ``count`` candidates behind ``t[0..length)``, while drafting goes on."""
        left = min(self._room(), self.run_ahead - len(self._candidates))
        ends = left < self.cadence.grid.window_size
        if length + count >= self.cadence.grid.next_boundary(length):
            return Haste.URGENT if ends else Haste.DUE
        return Haste.SOON if ends or self.cadence.doubt is not None else Haste.EARLY

    def _useful_candidates(self) -> int:
        """Candidates worth sending: not one that would end the request, for its successor would not be used."""
        return len(self._candidates) - (1 if self._candidates and self.stop.stops(self._candidates[-1]) else 0)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
