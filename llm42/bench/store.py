"""The results directory: one JSON file for each finished cell, so a run that was interrupted goes on where it was."""

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm42.bench.cell import Cell, Measured, as_json
from llm42.bench.errors import BenchError

SCHEMA = 1
"""Raise it when what is measured changes: older cells are then measured again."""


class Store:
    """``path`` is made if it is not there. Everything here raises BenchError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cells = path / "cells"
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"cannot make {self._cells}: {error}; name another --out") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Two runs never write to one directory."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BenchError(f"another run is writing to {self.path}: wait, or name another --out") from None
            yield

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Keep something beside the cells: the machine, step times."""
        self._write(self.path / f"{name}.json", value)

    def noted(self, name: str) -> dict[str, Any] | None:
        return self._read(self.path / f"{name}.json")

    def __contains__(self, cell: Cell) -> bool:
        return self._file(cell).exists()

    def add(self, cell: Cell, measured: Measured) -> None:
        self._write(self._file(cell), {"schema": SCHEMA, "cell": as_json(cell), "measured": as_json(measured)})

    def get(self, cell: Cell) -> Measured | None:
        found = self._read(self._file(cell))
        return None if found is None else Measured.load_json(found["measured"])

    def __iter__(self) -> Iterator[tuple[Cell, Measured]]:
        """All cells of this schema, by name."""
        for path in sorted(self._cells.glob("*.json")):
            found = self._read(path)
            if found is not None and found.get("schema") == SCHEMA:
                yield Cell.load_json(found["cell"]), Measured.load_json(found["measured"])

    def _file(self, cell: Cell) -> Path:
        text = json.dumps([SCHEMA, as_json(cell)], sort_keys=True)
        slug = re.sub(r"[^A-Za-z0-9.+-]+", "-", f"{cell.experiment}-{cell.model}-{cell.system.name}-{cell.repeat}")
        return self._cells / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BenchError(f"{path} cannot be read ({error}): remove it, and it is measured again") from None
        return found

    def _write(self, path: Path, value: Mapping[str, Any]) -> None:
        """In one step: a run that is killed leaves no half of a file."""
        beside = path.with_name(f".{path.name}.partial")
        try:
            beside.write_text(json.dumps(value, indent=1))
            beside.replace(path)
        except OSError as error:
            raise BenchError(f"cannot write {path}: {error}") from None
