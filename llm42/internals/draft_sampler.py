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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from llm42.adapters import Adapter
from llm42.internals.adapters import load_adapters
from llm42.internals.draft_margins import MARGINS, MarginNotes
from llm42.internals.engine_core import EngineCore, make_engine_core
from llm42.internals.grammar_tokenizer import make_grammar_masks
from llm42.protocol.selection import EXTRA_ARG, GREEDY, Selection
from llm42.protocol.steering import Grammar, Steering
from llm42.sampling import choose, greedy_margins, race_margin
from llm42.sampling.grammar import GrammarMasks

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
        self._greedy: Tensor | None = None
        """Rows of plain greedy drafts [n], once they are wanted on the device."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._drafts, batch_update, _Draft.of):
            self._greedy = None

    def apply(self, logits: Tensor) -> Tensor:
        if not self._drafts:
            return logits
        noted, margins = self._greedy_margins(logits)
        for index, draft in self._drafts.items():
            if draft.greedy:
                continue
            row = logits[index : index + 1]
            token = draft.choose(row, self._grammars)
            if draft.name is not None and self._notes is not None and not draft.steered:
                noted.append(draft)
                margins.append(draft.margin(row, token))
            row.fill_(-math.inf).scatter_(1, token.unsqueeze(-1), 0.0)
        if noted and self._notes is not None:
            self._notes.add([draft.choice for draft in noted], torch.cat(margins))
        return logits

    def _greedy_margins(self, logits: Tensor) -> "tuple[list[_Draft], list[Tensor]]":
        greedy = {index: draft for index, draft in self._drafts.items() if draft.greedy}
        if not greedy or self._notes is None:
            return [], []
        if self._greedy is None:
            self._greedy = torch.tensor(list(greedy), device=logits.device)
        return list(greedy.values()), [greedy_margins(logits[self._greedy])]


class _Draft:
    """``output`` is the request's own list, which grows. What is in it may be a placeholder for a token that is still
    on its way, so the tokens that steering has to know are kept here: nobody else chooses any."""

    def __init__(self, selection: Selection, prompt: list[int], output: list[int], name: str | None) -> None:
        self._selection = selection
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
    def greedy(self) -> bool:
        """Whether vLLM's own choice is the same."""
        return self._selection == GREEDY

    @property
    def steered(self) -> bool:
        return self._selection.steering is not None

    @property
    def choice(self) -> tuple[str, int]:
        """Whose choice the next is, and of which token."""
        assert self.name is not None
        return self.name, len(self._output)

    def margin(self, row: Tensor, token: Tensor) -> Tensor:
        """[1]: of that choice, which is not a steered one, from its ``row`` of logits [1, V]."""
        return race_margin(row, self._selection, self._prompt_tokens + len(self._output) - 1, token)

    def choose(self, row: Tensor, grammars: GrammarMasks) -> Tensor:
        """The token [1] that follows, from its ``row`` of logits [1, V]; any where there is no valid choice."""
        length = self._prompt_tokens + len(self._output)
        steering = self._selection.steering
        if steering is None:
            return choose(row, self._selection, length - 1)[0]
        del self._tokens[length:]  # a choice that vLLM has thrown away, as it does while a prompt is in pieces
        selection, masks = self._selection, None
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
        return grammars.masks(grammar, output, len(output), 1)
