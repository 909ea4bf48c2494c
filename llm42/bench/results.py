"""Finding one's way in what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llm42.bench.cell import Answer, Cell, Measured, System


@dataclass(frozen=True, slots=True)
class Results:
    """Cells of one model, by repeat."""

    cells: tuple[tuple[Cell, Measured], ...]

    def where(self, experiment: str, **fields: Any) -> "Results":
        """Those whose fields are as given."""
        wanted = {"experiment": experiment, **fields}
        found = (
            (cell, measured)
            for cell, measured in self.cells
            if all(getattr(cell, name) == value for name, value in wanted.items())
        )
        return Results(tuple(sorted(found, key=lambda pair: pair[0].repeat)))

    def systems(self, kind: str) -> list[System]:
        """Of that kind, those with the most threads first."""
        found = {cell.system for cell, _ in self.cells if cell.system.kind == kind}
        return sorted(found, key=lambda system: (-system.threads, system.name))

    def paired(self, other: "Results") -> Iterator[tuple[Measured, Measured]]:
        """Those of the same repeats. Each side has one condition."""
        there = {cell.repeat: measured for cell, measured in other.cells}
        return ((measured, there[cell.repeat]) for cell, measured in self.cells if cell.repeat in there)

    @property
    def measured(self) -> list[Measured]:
        return [measured for _, measured in self.cells]

    def answers(self, deterministic: bool | None = None) -> list[Answer]:
        return [answer for measured in self.measured for answer in measured.chosen(deterministic)]

    def __bool__(self) -> bool:
        return bool(self.cells)
