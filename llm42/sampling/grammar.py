"""The tokens that a grammar permits, as bits: a pure function of the grammar and the output tokens so far.

xgrammar's matchers walk along an output. They are kept, and the one that has come furthest along the same output is
taken back to where it still agrees and walks on from there: a stream costs what its new tokens cost. That is a cache
and nothing else; without it the bits are the same.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from xgrammar import CompiledGrammar, GrammarMatcher

from llm42.protocol.steering import Grammar
from llm42.sampling.grammar_compiler import Compile, GrammarCompiler, State

Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]

_JSON_KINDS = ("json", "json_object")
_TEXT_KINDS = (*_JSON_KINDS, "regex", "choice")
"""Kinds that describe text and know of no tokens."""
_NOT_IN_JSON = frozenset(range(0x20)) - frozenset(b"\n\r")
"""Bytes that xgrammar 0.2 takes in strings of a ``maxLength``, where JSON has them escaped. A tab may stand between
values, but no value needs one."""
_TAKEN_BACK = 64
"""Tokens that a matcher may have that an output has not. One with more, or with most of its own, walks along another
stream, and is left there."""


class GrammarMasks:
    """One in each process that masks logits; of one thread, but for :meth:`prepare`, which is anybody's.

    ``compile`` makes xgrammar's grammars for a tokenizer, raising for what is none; ``vocabulary`` V counts the model's
    logits. ``special`` tokens have no text (the detokenizer leaves them out), whatever xgrammar may read in their
    names, so that no grammar of text permits them, but to stop.
    """

    def __init__(
        self,
        compile: Compile,
        vocabulary: int,
        special: Callable[[], Sequence[int]] = tuple,
        *,
        kept: int = 64,
        walks: int = 256,
    ) -> None:
        self._compiler = GrammarCompiler(compile, kept=kept)
        self._width = -(-vocabulary // 32)
        self._special = special
        self._controls: frozenset[int] | None = None
        self._most_walks = walks
        self._walks: dict[Grammar, list[_Walk]] = {}
        self._calls = 0

    def prepare(self, grammar: Grammar) -> tuple[State, str]:
        """See :meth:`GrammarCompiler.state`: once it is "ready", :meth:`masks` need not wait for it."""
        return self._compiler.state(grammar)

    def masks(self, grammar: Grammar, output: Sequence[int], first: int, count: int) -> Tensor:
        """[count, ceil(V / 32)] int32 on the CPU: bit t % 32 of word t // 32 permits token t.

        Row i is for the token that follows ``output[:first + i]``. A row is zero if it follows a token that is not in
        ``output`` or that the grammar does not permit, or if the output has ended. Rows before the output
        (``first + i < 0``) permit everything.

        Raises ValueError for a grammar that cannot be compiled or followed, and
        :class:`~llm42.sampling.grammar_compiler.GrammarBusy`.
        """
        rows = torch.zeros(count, self._width, dtype=torch.int32)
        rows[: max(0, -first)] = -1
        begin, end = max(first, 0), min(first + count, len(output) + 1)
        if begin >= end:
            return rows
        tokens = np.asarray(output[: end - 1], dtype=np.int32)
        try:
            walk = self._walk(grammar, tokens, begin)
            for position in range(begin, end):
                if not walk.advance(tokens[:position]) or walk.matcher.is_terminated():
                    break
                walk.fill(rows[position - first])
        except RuntimeError as error:  # xgrammar's: of this grammar, and not of the pass that it is in
            self._walks.pop(grammar, None)
            raise ValueError(f"xgrammar has failed: {error}") from None
        return rows

    def _walk(self, grammar: Grammar, tokens: Tokens, begin: int) -> "_Walk":
        """A walk along ``tokens`` that is at ``begin`` or before it."""
        walks = self._walks.get(grammar, [])
        along = [(agreed, walk) for walk in walks if (agreed := walk.agrees(tokens)) is not None]
        if along:
            agreed, walk = max(along, key=lambda pair: pair[0])
            walk.take_back(min(agreed, begin))
        else:
            walk = self._begin(grammar, walks[0].compiled if walks else self._compiler.get(grammar))
            self._walks[grammar] = [*walks, walk]
        self._calls += 1
        walk.used = self._calls
        self._forget()
        return walk

    def _begin(self, grammar: Grammar, compiled: CompiledGrammar) -> "_Walk":
        matcher = GrammarMatcher(compiled, override_stop_tokens=list(grammar.stops) or None)
        known = compiled.tokenizer_info.vocab_size
        words = -(-known // 32)
        if words > self._width:
            raise ValueError(f"the tokenizer has {known} tokens, and the model only {32 * self._width}")
        bits = np.zeros(32 * words, dtype=bool)
        bits[:known] = True  # xgrammar permits more, to the end of the word
        bits[[token for token in self._left_out(grammar, matcher, compiled) if token < known]] = False
        permitted = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))
        return _Walk(compiled, matcher, permitted)

    def _left_out(self, grammar: Grammar, matcher: GrammarMatcher, compiled: CompiledGrammar) -> frozenset[int]:
        """What this grammar never permits, whatever xgrammar says."""
        if grammar.kind not in _TEXT_KINDS:
            return frozenset()
        left_out = frozenset(self._special())
        if grammar.kind in _JSON_KINDS:
            if self._controls is None:
                texts = enumerate(compiled.tokenizer_info.decoded_vocab)
                self._controls = frozenset(token for token, text in texts if not _NOT_IN_JSON.isdisjoint(text))
            left_out |= self._controls
        return left_out.difference(matcher.stop_token_ids)

    def _forget(self) -> None:
        """The walk that has been used least recently, if there are too many."""
        if sum(map(len, self._walks.values())) <= self._most_walks:
            return
        grammar = min(self._walks, key=lambda grammar: min(walk.used for walk in self._walks[grammar]))
        walks = self._walks[grammar]
        walks.remove(min(walks, key=lambda walk: walk.used))
        if not walks:
            del self._walks[grammar]


@dataclass(slots=True, eq=False)
class _Walk:
    """A matcher, and the tokens that it has accepted so far."""

    compiled: CompiledGrammar
    matcher: GrammarMatcher
    permitted: Tensor
    """[words] int32: tokens that may be permitted at all."""
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    used: int = 0

    def agrees(self, tokens: Tokens) -> int | None:
        """How many tokens the two begin with alike; None if this is another stream's."""
        shared = min(len(self.tokens), len(tokens))
        alike = np.frombuffer(self.tokens, dtype=np.int32)[:shared] == tokens[:shared] if shared else np.empty(0, bool)
        agreed = shared if alike.all() else int(alike.argmin())
        ahead = len(self.tokens) - agreed
        return agreed if ahead <= min(agreed, _TAKEN_BACK) else None

    def take_back(self, length: int) -> None:
        """Only the first ``length`` tokens have been accepted."""
        if length < len(self.tokens):
            self.matcher.rollback(len(self.tokens) - length)
            del self.tokens[length:]

    def advance(self, tokens: Tokens) -> bool:
        """Accept what ``tokens`` has more; False where the grammar does not, or the output has ended before."""
        for token in tokens[len(self.tokens) :].tolist():
            if self.matcher.is_terminated() or not self.matcher.accept_token(token):
                return False
            self.tokens.append(token)
        return True

    def fill(self, row: Tensor) -> None:
        """``row`` [at least as many words] is zero."""
        words = row[: len(self.permitted)].unsqueeze(0)
        self.matcher.fill_next_token_bitmask(words)
        words &= self.permitted
