"""What is asked while faults are injected: prompts and answers of mixed lengths, greedy and sampled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.client import Answer, random_prompt

CONTEXT = 512
COMMON = random_prompt(900, 300)


@dataclass(frozen=True)
class Case:
    """One question, always asked with the same parameters."""

    name: str
    prompt: list[int] = field(repr=False)
    max_tokens: int
    fields: Mapping[str, Any]

    @property
    def greedy(self) -> bool:
        return "temperature" not in self.fields


def _cases() -> list[Case]:
    # Of their own, around window boundaries; and with a common beginning, the last ones cut within a window.
    prompts = [random_prompt(length, length) for length in (1, 17, 31, 32, 33, 64, 100, 220, 400)]
    prompts += [COMMON[:cut] + random_prompt(cut, 5) for cut in (300, 299, 256, 200, 160, 96, 33)]
    counts = (96, 20, 64, 33, 80, 8, 48, 40, 96, 64, 31, 96, 24, 72, 56, 88)
    cases = []
    for index, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        sampled = {"temperature": 0.8, "seed": 1000 + index} if index % 2 else {}
        name = f"{len(prompt)}+{count}" + (" sampled" if sampled else "")
        cases.append(Case(name, prompt, count, sampled))
    return cases


CASES = _cases()

Canonical = Mapping[str, Mapping[str, Answer]]
"""By fingerprint, then by the name of the case."""
