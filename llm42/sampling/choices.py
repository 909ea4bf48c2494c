"""What is chosen in the asked slots of one window."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from llm42.protocol.errors import ReplayFailed, ReplayImpossible
from llm42.protocol.selection import Selection
from llm42.protocol.steering import Grammar
from llm42.sampling.grammar import GrammarMasks
from llm42.sampling.grammar_compiler import GrammarBusy
from llm42.sampling.select import Selected, select

CPU_CHUNK = 8
"""Slots that a CPU chooses for at once, if that divides the window: choosing costs it as much as the LM head does."""


def chunk_of(window: int, device: torch.device) -> int:
    """Slots that are chosen for at once: a fixed shape, as of all else in a pass."""
    return CPU_CHUNK if device.type == "cpu" and window % CPU_CHUNK == 0 else window


def choices(
    logits: Tensor, start: int, slot: int, chunk: int, order: Sequence[Any], grammars: GrammarMasks
) -> list[Any]:
    """``logits`` [n, V] are those of the slots from ``slot`` on of a window whose slot 0 is at position ``start``.

    ``order`` says how to choose (the fields of a ``Selection``), how many of the most probable tokens to name, the
    tokens that the window's first slots shall score instead of choosing (packed int32), and the sequence up to the
    window's end, if the choice depends on it (packed int32).

    Returns the fields of :class:`Selected`, packed: 32 bits a value, and a byte for validity. Of what cannot be chosen
    from, the class of a :class:`~llm42.protocol.errors.ReplayError`, and why.
    """
    try:
        parts = list(_choose(logits, start, slot, chunk, order, grammars))
    except GrammarBusy as busy:
        return [ReplayFailed.__name__, str(busy)]
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        # What was asked, and not the engine, is at fault.
        return [ReplayImpossible.__name__, f"{type(error).__name__}: {error}"]
    return [_packed(torch.cat(field)) for field in zip(*parts, strict=True)]


def _choose(
    logits: Tensor, start: int, slot: int, chunk: int, order: Sequence[Any], grammars: GrammarMasks
) -> Iterator[Selected]:
    """Chunk by chunk of the window: a slot always has the same place in its chunk, whatever else is asked. Rows that
    nobody asks for are copies, and not zeros: among equal logits every cut-off has its worst case."""
    fields, top, packed, history = order
    how, scored, so_far = Selection.of_fields(fields), int32(packed), int32(history).long()
    grammar, prompt = how.grammar, 0 if how.steering is None else how.steering.prompt_tokens
    if grammar is not None:
        _require_ready(grammar, grammars)
    output = so_far[prompt:].tolist() if grammar is not None else []
    for first in range(slot // chunk * chunk, slot + len(logits), chunk):
        begin, end = max(first, slot), min(first + chunk, slot + len(logits))
        rows = logits[begin - slot : end - slot]
        if len(rows) < chunk:
            rows = torch.cat([rows[:1].expand(begin - first, -1), rows, rows[-1:].expand(first + chunk - end, -1)])
        masks = None if grammar is None else grammars.masks(grammar, output, start + first + 1 - prompt, chunk)
        chosen = select(rows, how, start + first, scored[first : first + chunk], top, so_far, masks)
        yield Selected(*(field[begin - first : end - first] for field in chosen))


def _require_ready(grammar: Grammar, grammars: GrammarMasks) -> None:
    state, why = grammars.prepare(grammar)
    if state != "ready":  # it was, and has been forgotten since; a pass waits for no compiler
        raise GrammarBusy(f"the grammar is {state}: {why}")


def int32(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.int32) if data else torch.empty(0, dtype=torch.int32)


def _packed(field: Tensor) -> bytes:
    narrow = field.to(torch.int32) if field.dtype == torch.int64 else field
    return narrow.cpu().contiguous().numpy().tobytes()
