"""Drafts choose as the verifier does: a logits processor that puts :func:`llm42.sampling.choose` into vLLM's sampler.

A draft request is greedy to vLLM and carries its selection in ``SamplingParams.extra_args``. Its row of logits is
replaced by one in which only the chosen token is left; a plain greedy one's is left alone, for vLLM's choice is the
same. By how much it was chosen is noted for those drafts that ask for it.

Relies on vLLM 0.32.0, model runner V1: ``input_batch.logitsprocs`` being the object that sampling reads at every step;
``process_dict_updates``; processors seeing fp32 logits, one row for each request, before penalties; and the list of
output tokens that a ``BatchUpdate`` carries growing by one, a token or a placeholder, for every token sampled.

Why not as vLLM documents it: the engine argument ``logits_processors`` makes every asynchronous step wait for the
tokens of the last one (``logitsprocs_need_output_token_ids``), ordinary requests' too, though only the *number* of
tokens is needed; and an entry point enters every vLLM of the environment, where model runner V2 refuses to start.
"""

import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from llm42.adapters import Adapter
from llm42.internals.adapters import load_adapters
from llm42.internals.draft_margins import MarginNotes
from llm42.internals.engine_core import EngineCore, make_engine_core
from llm42.internals.grammar_tokenizer import make_grammar_masks
from llm42.protocol.selection import EXTRA_ARG, GREEDY, MARGINS, Selection
from llm42.protocol.steering import Grammar, Steering
from llm42.sampling import choose, choose_each, greedy_margins, race_margins
from llm42.sampling.grammar import GrammarMasks
from llm42.sampling.grammar_compiler import GrammarBusy

logger = logging.getLogger("ray.serve")


def draft_extra_args(selection: Selection, *, margins: bool = False) -> dict[str, Any] | None:
    """``extra_args`` of a draft request. vLLM's own greedy choice is that of a greedy selection without steering, so
    the sampler need not know of it unless ``margins`` are wanted."""
    if margins:
        return {EXTRA_ARG: selection.fields, MARGINS: True}
    return None if selection == GREEDY else {EXTRA_ARG: selection.fields}


def draft_selection(params: Any) -> Selection | None:
    """What :func:`draft_extra_args` put into ``SamplingParams``; None: an ordinary request.

    Raises ValueError or TypeError for anything else under its name.
    """
    fields = (params.extra_args or {}).get(EXTRA_ARG)
    if fields is None:
        return None
    return Selection.of_fields(fields)


def make_drafting_core(engine_args: dict[str, Any], adapters: Sequence[Adapter] = ()) -> EngineCore:
    """:func:`~llm42.internals.engine_core.make_engine_core`, with the draft sampler and ``adapters`` in it."""
    if "worker_extension_cls" in engine_args:
        raise ValueError("worker_extension_cls is taken: the draft sampler enters the engine by it")
    extension = f"{DraftSamplerExtension.__module__}.{DraftSamplerExtension.__qualname__}"
    core = make_engine_core({**engine_args, "worker_extension_cls": extension})
    notes = core.client.collective_rpc("llm42_install_draft_sampler", args=(os.getpid(),))
    load_adapters(core.client, adapters)  # one that is missed later would end the engine
    return replace(core, margins=notes[0])


class DraftSamplerExtension:
    """Installs the sampler on every rank. Names must not meet any attribute of vLLM's workers."""

    model_runner: Any

    def llm42_install_draft_sampler(self, engine_process: int) -> MarginNotes | None:
        """The margins of drafts, if somebody in ``engine_process`` can read them: not from another one."""
        if self.model_runner.speculative_config is not None:
            # Its sampler passes custom processors by, but for a step's last token.
            logger.warning("The fast path speculates: drafts of seeded requests are greedy, and most are rolled back")
            return None
        notes = MarginNotes() if os.getpid() == engine_process else None
        sampler = DraftSampler(make_grammar_masks(self.model_runner.model_config), notes)
        self.model_runner.input_batch.logitsprocs.non_argmax_invariant.append(sampler)
        return notes


class DraftSampler(LogitsProcessor):  # type: ignore[misc]
    """Ordinary requests' rows are left alone; a batch without drafts costs the look at an empty dict."""

    def __init__(self, grammars: GrammarMasks, notes: MarginNotes | None) -> None:
        self._drafts: dict[int, _Draft] = {}  # by row
        self._grammars = grammars
        self._notes = notes
        self._groups: list[_Group] | None = None
        """Of the drafts that nothing steers, once they are wanted."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._drafts, batch_update, _Draft.of):
            self._groups = None

    def apply(self, logits: Tensor) -> Tensor:
        if not self._drafts:
            return logits
        if self._groups is None:
            self._groups = list(_groups(self._drafts, logits.device))
        noted: list[tuple[str, int]] = []
        margins: list[Tensor] = []
        for group in self._groups:
            rows, tokens = logits[group.rows], None
            if not group.greedy:  # vLLM's own choice would be another
                tokens = group.choose(rows)
                logits.index_fill_(0, group.rows, -math.inf).index_put_((group.rows, tokens), logits.new_zeros(()))
            if group.noted and self._notes is not None:
                noted += [draft.choice for draft in group.drafts]
                margins.append(group.margins(rows, tokens))
        for index, draft in self._drafts.items():
            if draft.steered:
                row = logits[index : index + 1]
                token = draft.choose(row, self._grammars)
                row.fill_(-math.inf).scatter_(1, token.unsqueeze(-1), 0.0)
        if noted and self._notes is not None:
            self._notes.add(noted, torch.cat(margins))
        return logits


@dataclass(frozen=True, slots=True)
class _Group:
    """Drafts that are worked on together: nothing steers them, and their selections differ only in seeds."""

    drafts: "list[_Draft]"
    rows: Tensor
    """[n] int64: theirs in the batch."""

    @property
    def greedy(self) -> bool:
        return self.drafts[0].selection.greedy

    @property
    def noted(self) -> bool:
        """Whether their margins are wanted."""
        return self.drafts[0].name is not None

    def choose(self, rows: Tensor) -> Tensor:
        """[n], from their ``rows`` of logits [n, V]."""
        return choose_each(rows, *self._who_and_where)

    def margins(self, rows: Tensor, tokens: Tensor | None) -> Tensor:
        """[n]: of these choices; ``tokens`` is None for vLLM's own."""
        return greedy_margins(rows) if tokens is None else race_margins(rows, *self._who_and_where, tokens)

    @property
    def _who_and_where(self) -> tuple[list[Selection], list[int]]:
        return [draft.selection for draft in self.drafts], [draft.length - 1 for draft in self.drafts]


def _groups(drafts: "dict[int, _Draft]", device: torch.device) -> Iterator[_Group]:
    alike: dict[tuple[Selection, bool], dict[int, _Draft]] = {}
    for row, draft in drafts.items():
        if not draft.steered and not (draft.selection.greedy and draft.name is None):
            alike.setdefault((replace(draft.selection, seed=0), draft.name is not None), {})[row] = draft
    for found in alike.values():
        yield _Group(list(found.values()), torch.tensor(list(found), device=device))


class _Draft:
    """``output`` is the request's own list, which grows. What is in it may be a placeholder for a token that is still
    on its way, so the tokens that steering has to know are kept here: nobody else chooses any."""

    def __init__(self, selection: Selection, prompt: list[int], output: list[int], name: str | None) -> None:
        self.selection = selection
        self.name = name
        """Under which its margins are noted; None: they are not wanted."""
        self._tokens = [*prompt, *output]
        self._prompt_tokens = len(prompt)
        self._output = output

    @staticmethod
    def of(params: Any, prompt: list[int], output: list[int]) -> "_Draft | None":
        selection = draft_selection(params)
        return None if selection is None else _Draft(selection, prompt, output, params.extra_args.get(MARGINS))

    @property
    def steered(self) -> bool:
        return self.selection.steering is not None

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self._prompt_tokens + len(self._output)

    @property
    def choice(self) -> tuple[str, int]:
        """Whose choice the next is, and of which token."""
        assert self.name is not None
        return self.name, len(self._output)

    def choose(self, row: Tensor, grammars: GrammarMasks) -> Tensor:
        """The token [1] that follows a steered draft, from its ``row`` of logits [1, V]; any where none is valid."""
        selection, masks, length = self.selection, None, self.length
        steering = selection.steering
        assert steering is not None
        del self._tokens[length:]  # a choice that vLLM has thrown away, as it does while a prompt is in pieces
        if steering.grammar is not None:
            masks = self._masks(steering, steering.grammar, grammars)
            if masks is None:  # not compiled yet, and no step shall wait for it
                selection = replace(selection, steering=replace(steering, grammar=None))
        token, _ = choose(row, selection, length - 1, torch.tensor(self._tokens), masks)
        self._tokens.append(int(token))
        return token

    def _masks(self, steering: Steering, grammar: Grammar, grammars: GrammarMasks) -> Tensor | None:
        if grammars.prepare(grammar)[0] != "ready":
            return None
        output = self._tokens[steering.prompt_tokens :]
        try:
            return grammars.masks(grammar, output, len(output), 1)
        except (ValueError, GrammarBusy):  # the verifier says what is wrong with it; here it would end the engine
            return None
