"""By how much drafts chose their tokens: kept where they are sampled, and told with the outputs they belong to.

Relies on vLLM 0.32.0: ``EngineCoreOutput`` being a ``msgspec.Struct`` that may be subclassed, and that a step's outputs
are told when its tokens are on the host, so that a copy which was ordered before they were sampled has arrived as well.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from vllm.v1.engine import EngineCoreOutput

from llm42.protocol.selection import MARGINS

STEPS = 4
"""Steps that are remembered: one runs while the outputs of that before it are read."""
_UNKNOWN = float("inf")


class DraftOutput(EngineCoreOutput, array_like=True, omit_defaults=True, gc=False, kw_only=True):  # type: ignore[misc, call-arg]
    margins: bytes = b""
    """fp32 bits, one for each new token; inf where it is not known."""


def draft_margins(output: EngineCoreOutput) -> Sequence[float]:
    """One for each new token; none if the engine does not tell."""
    return array("f", getattr(output, "margins", b""))


def with_margins(output: EngineCoreOutput, margins: bytes) -> DraftOutput:
    return DraftOutput(**{name: getattr(output, name) for name in output.__struct_fields__}, margins=margins)


def name_margins(params: Any, name: str) -> bool:
    """Whether a draft with these ``SamplingParams`` wants margins; they are then kept under ``name``."""
    if not params.extra_args or MARGINS not in params.extra_args:
        return False
    params.extra_args[MARGINS] = name
    return True


class MarginNotes:
    """Of the last steps. Written and read in the engine's thread."""

    def __init__(self) -> None:
        self._steps: deque[tuple[dict[tuple[str, int], int], Tensor]] = deque(maxlen=STEPS)

    def add(self, choices: Sequence[tuple[str, int]], margins: Tensor) -> None:
        """``choices``: name of the draft, and which of its tokens this is, from 0; ``margins`` fp32 [choices]."""
        rows = {choice: row for row, choice in enumerate(choices)}
        self._steps.append((rows, margins.to("cpu", non_blocking=True)))  # pinned, if from a device

    def of(self, name: str, first: int, count: int) -> bytes:
        """fp32 bits for ``count`` tokens of a draft from number ``first`` on."""
        return array("f", [self._one((name, first + i)) for i in range(count)]).tobytes()

    def _one(self, choice: tuple[str, int]) -> float:
        for rows, margins in reversed(self._steps):  # the latest: vLLM may throw a choice away and choose again
            if choice in rows:
                return float(margins[rows[choice]])
        return _UNKNOWN
