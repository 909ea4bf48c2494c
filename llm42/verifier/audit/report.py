"""What an audit found: which properties hold, or which one does not, where, and what to try."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Property(StrEnum):
    """What must hold of the kernels for a replay to be a pure function of the tokens."""

    REPEATABLE = "repeatable"
    TAIL = "tail-independent"
    ROW = "row-independent"
    CACHE = "cache-independent"

    @property
    def meaning(self) -> str:
        return _MEANING[self]


_MEANING = {
    Property.REPEATABLE: "the same pass gives the same bits",
    Property.TAIL: "a slot does not depend on later slots of its row",
    Property.ROW: "a row depends neither on its index, nor on other rows, nor on where its slots stand in the LM head",
    Property.CACHE: "K/V from the window cache, however it was computed, gives the same bits as a cold replay",
}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """An audit that passed."""

    level: str
    properties: tuple[Property, ...]
    """Those that were checked: all but row independence if a pass has only one row."""
    passes: int
    comparisons: int
    """Slots whose bits were compared."""
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """In JSON types."""
        return {
            "level": self.level,
            "properties": [str(checked) for checked in self.properties],
            "passes": self.passes,
            "comparisons": self.comparisons,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        return (
            f"start-up audit ({self.level}) passed: {', '.join(self.properties)}; {self.comparisons} slots compared "
            f"as bits in {self.passes} passes, {self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """``violated`` does not hold; ``where`` says what was seen."""

    violated: Property
    where: str

    def as_json(self) -> dict[str, str]:
        return {"property": str(self.violated), "where": self.where}

    def __str__(self) -> str:
        return f"replay is not {self.violated} ({self.violated.meaning}): {self.where}"


class AuditFailed(RuntimeError):
    """The kernels cannot be trusted with a guarantee; the message says why, and what to try."""

    def __init__(self, failures: Sequence[Failure], remedies: Sequence[str]) -> None:
        self.failures, self.remedies = tuple(failures), tuple(remedies)
        found = "; ".join(map(str, failures))
        super().__init__(
            f"the start-up audit failed: {found}. Nothing is served like this. Change the configuration, for the whole "
            f"pool: {'; or '.join(remedies)}"
        )


def remedies(failures: Sequence[Failure], *, on_cpu: bool, dtype: str, threads: int) -> list[str]:
    """Configurations worth trying; only a person chooses one, for all replicas at once."""
    violated = {failure.violated for failure in failures}
    found = []
    if violated == {Property.ROW}:
        found.append("`strict: true` (one row in a pass needs no row independence)")
    if on_cpu:
        if threads > 1:
            found.append("`verifier.threads: 1`")
        found.append("`verifier.env` without switches that choose kernels")
        if dtype != "torch.float32":
            found.append("`dtype: float32`")
    else:
        found.append(
            "kernels that vLLM's batch-invariant mode covers (VLLM_BATCH_INVARIANT=1 is set in every verifier on a GPU)"
        )
        found.append("another `dtype`")
    return [*found, "another attention backend (`verifier.engine.attention_backend`)"]
