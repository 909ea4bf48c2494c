"""How a test tells one verifier to misbehave: a file for each replica, read at every call.

Files outlive replicas that are killed, need no call to a replica that has been stopped, and cost microseconds.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

ENV = "LLM42_TEST_ORDERS"
"""Names the directory, in the environment of the verifiers."""

Kind = Literal[
    "delay",
    "late",
    "error",
    "crash",
    "stale",
    "digest",
    "start",
    "tokens",
    "logprobs",
    "ranks",
    "empty",
    "foreign",
    "lie",
]


@dataclass(frozen=True)
class Order:
    """``seconds`` to wait, where the kind is about waiting; ``share`` of the calls that are to be spoilt."""

    kind: Kind
    seconds: float = 0.0
    share: float = 1.0


@dataclass(frozen=True)
class Orders:
    """Of all verifiers. ``directory`` exists."""

    directory: Path

    @classmethod
    def here(cls) -> "Orders":
        """Those that this process is to obey."""
        return cls(Path(os.environ[ENV]))

    def give(self, replica_id: str, order: Order) -> None:
        draft = self.directory / f"{replica_id}.new"
        draft.write_text(json.dumps(asdict(order)))
        draft.rename(self._file(replica_id))  # in one step: nobody reads half an order

    def withdraw(self) -> None:
        """Everybody behaves again."""
        for file in self.directory.glob("*.order"):
            file.unlink()

    def read(self, replica_id: str) -> Order | None:
        try:
            return Order(**json.loads(self._file(replica_id).read_text()))
        except FileNotFoundError:
            return None

    def done(self, replica_id: str) -> None:
        """One call has been spoilt as ordered."""
        with (self.directory / f"{replica_id}.done").open("a") as tally:
            tally.write(".")

    def count(self) -> int:
        """Calls spoilt so far, by all."""
        return sum(file.stat().st_size for file in self.directory.glob("*.done"))

    def _file(self, replica_id: str) -> Path:
        return self.directory / f"{replica_id}.order"
