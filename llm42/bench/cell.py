"""A cell: one load on one system, once. What was done (``Cell``) and what came of it (``Measured``)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from llm42.bench.workload import Length, Mix


@dataclass(frozen=True, slots=True)
class System:
    """A system under test. ``kind`` is llm42, vllm (as it comes), serial (vLLM without batching) or invariant (vLLM in
    its platform's batch-invariant way). ``threads`` are CPU threads of the (drafting) engine, ``verifier_threads``
    those of the verifier, and ``cadence`` says when replays are due."""

    kind: str
    threads: int
    verifier_threads: int = 0
    window_size: int = 0
    verify_batch_size: int = 0
    cadence: str = "adaptive"

    @property
    def ours(self) -> bool:
        return self.kind == "llm42"

    @property
    def name(self) -> str:
        if not self.ours:
            return f"{self.kind}-{self.threads}t"
        name = f"llm42-{self.threads}+{self.verifier_threads}t-W{self.window_size}-G{self.verify_batch_size}"
        return name if self.cadence == "adaptive" else f"{name}-{self.cadence}"


@dataclass(frozen=True, slots=True)
class Cell:
    """``lanes`` of requests, one after the other in each (closed loop); or ``load``, the share of the system's capacity
    at which they arrive (open loop). ``beside`` more lanes go on meanwhile and are not measured."""

    experiment: str
    model: str
    dtype: str
    system: System
    mix: Mix
    requests: int
    repeat: int
    share: float = 0.0
    lanes: int = 0
    load: float = 0.0
    beside: int = 0
    beside_share: float = 0.0
    keep_tokens: bool = False
    scrape: bool = False

    @property
    def seed(self) -> int:
        """The same for all conditions of a repeat."""
        return 1000 * self.repeat + sum(self.mix.name.encode())

    @classmethod
    def load_json(cls, data: Mapping[str, Any]) -> Self:
        mix = data["mix"]
        sizes = Mix(mix["name"], Length(**mix["prompt"]), Length(**mix["output"]))
        return cls(**{**data, "system": System(**data["system"]), "mix": sizes})


@dataclass(frozen=True, slots=True)
class Answer:
    """Request ``number`` as its client saw it. Seconds count from its arrival, whether or not the client was late."""

    number: int
    deterministic: bool
    first: float = 0.0
    total: float = 0.0
    gap: float = 0.0
    """Longest pause between two chunks."""
    prompt_tokens: int = 0
    tokens: int = 0
    error: str | None = None
    token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """``seconds`` from the first arrival to the last answer. ``cpu`` are seconds of the system's processes by role;
    ``counters`` what its metrics grew by. ``memory`` is resident, in bytes."""

    seconds: float
    answers: list[Answer]
    cpu: dict[str, float]
    memory: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    rate: float = 0.0
    """Arrivals a second (open loop)."""

    @property
    def failures(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error is not None]

    def chosen(self, deterministic: bool | None = None) -> list[Answer]:
        """Those answered, all or of one kind."""
        answered = [answer for answer in self.answers if answer.error is None]
        return [answer for answer in answered if deterministic in (None, answer.deterministic)]

    @property
    def throughput(self) -> float:
        """Output tokens a second."""
        return sum(answer.tokens for answer in self.chosen()) / self.seconds

    @property
    def cpu_per_token(self) -> float:
        """CPU seconds of all processes for each output token."""
        return sum(self.cpu.values()) / max(1, sum(answer.tokens for answer in self.chosen()))

    @classmethod
    def load_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "answers": [Answer(**answer) for answer in data["answers"]]})


def as_json(value: Cell | Measured) -> dict[str, Any]:
    return asdict(value)
