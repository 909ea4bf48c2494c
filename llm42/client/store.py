"""The output file: what is answered already, and what comes to it.

Lines are appended as answers come, each in one write, so a batch that is killed loses nothing that it had; a line that
was torn by that is cut off at the next start. When all are done the file is put into the order of the input, in one
step. Two runs never write to one file.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from llm42.client.errors import OutputError
from llm42.client.outcome import Outcome
from llm42.client.request import Request

_BEGINNING = b'{"custom_id":'
"""Of every line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line: where it is, in bytes, and what has to be known of it without reading it again."""

    start: int
    length: int
    index: int
    digest: str
    fingerprint: str | None
    """None: it tells of a failure."""
    prompt_tokens: int
    completion_tokens: int


class Store:
    """``path`` is made if it is not there. Raises OutputError if it is not an output of ours, or in use."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.entries: dict[str, Entry] = {}
        """By custom_id; the last line of each counts."""
        self._file = self._open()
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def fingerprint(self) -> str | None:
        """That of all answers here; None if there are none. Raises OutputError if they have several."""
        found = sorted({entry.fingerprint for entry in self.entries.values() if entry.fingerprint is not None})
        if len(found) > 1:
            raise OutputError(f"{self.path} holds answers of several fingerprints: {', '.join(found)}")
        return found[0] if found else None

    def left(self, requests: Sequence[Request]) -> list[Request]:
        """Those of ``requests`` that have no answer here. Raises OutputError if there are answers to others."""
        wanted = {request.custom_id: request for request in requests}
        left = dict(wanted)
        for custom_id, entry in self.entries.items():
            if entry.fingerprint is None:
                continue  # what has failed is asked again, and may have been mended
            if custom_id not in wanted or wanted[custom_id].digest != entry.digest:
                how = "has changed" if custom_id in wanted else "is not in the input"
                raise OutputError(
                    f"{self.path} holds an answer to {custom_id!r}, but that request {how} (defaults such as model or "
                    "temperature are part of it). Remove that line to have it asked again, or name another output"
                )
            del left[custom_id]
        return list(left.values())

    def add(self, outcome: Outcome) -> None:
        """Raises OutputError if it cannot be written."""
        line = outcome.line()
        try:
            start = self._file.seek(0, os.SEEK_END)
            _write(self._file, line)
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error}") from None
        self.entries[outcome.custom_id] = _entry(outcome, start, len(line))

    def read(self, custom_id: str) -> Outcome:
        """The line of ``custom_id``, which must have one."""
        return Outcome.parse(_read(self._file, self.entries[custom_id]))

    def settle(self, requests: Sequence[Request]) -> None:
        """Put the lines into the order of ``requests``, all of which have one, and throw away all others."""
        if self._is_settled(requests):
            return
        beside = self.path.with_name(f".{self.path.name}.sorted")
        entries, end = {}, 0
        try:
            file = beside.open("w+b", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before anyone else can find it at our path
            for request in requests:
                outcome = self.read(request.custom_id).model_copy(update={"index": request.index})
                line = outcome.line()
                _write(file, line)
                entries[request.custom_id] = _entry(outcome, end, len(line))
                end += len(line)
            os.fsync(file.fileno())
            shutil.copymode(self.path, beside)
            beside.replace(self.path)
        except OSError as error:
            raise OutputError(f"cannot put {self.path} into order: {error}") from None
        self._file.close()
        self._file, self.entries = file, entries

    def _is_settled(self, requests: Sequence[Request]) -> bool:
        end = 0
        for request in requests:
            entry = self.entries[request.custom_id]
            if (entry.start, entry.index) != (end, request.index):
                return False
            end += entry.length
        return end == os.fstat(self._file.fileno()).st_size

    def _open(self) -> FileIO:
        if self.path.exists() and not self.path.is_file():
            raise OutputError(f"{self.path} is no file")
        try:
            file = self.path.open("a+b", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another run may have put its sorted file in the place of the one that was opened here.
                if os.fstat(file.fileno()).st_ino != self.path.stat().st_ino:
                    raise BlockingIOError
            except BaseException:
                file.close()
                raise
        except BlockingIOError:
            raise OutputError(f"another batch is writing to {self.path}") from None
        except OSError as error:
            raise OutputError(f"cannot open {self.path}: {error}") from None
        return file

    def _load(self) -> None:
        end = 0
        for number, line in enumerate(self._lines(), start=1):
            try:
                outcome = Outcome.parse(line)
            except (ValueError, RecursionError):
                if line.endswith(b"\n") or not (self.entries or _BEGINNING.startswith(line[: len(_BEGINNING)])):
                    raise OutputError(
                        f"line {number} of {self.path} is no line of a batch's output: name another output"
                    ) from None
                self._file.truncate(end)
                return
            whole = line.rstrip(b"\n") + b"\n"
            self.entries[outcome.custom_id] = _entry(outcome, end, len(whole))
            end += len(whole)
            if whole != line:  # nothing but the end of the line was torn
                _write(self._file, b"\n")
                return

    def _lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from file


def _entry(outcome: Outcome, start: int, length: int) -> Entry:
    usage = outcome.usage or {}
    return Entry(
        start=start,
        length=length,
        index=outcome.index,
        digest=outcome.digest,
        fingerprint=outcome.fingerprint,
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
    )


def _write(file: FileIO, line: bytes) -> None:
    while line:
        line = line[file.write(line) :]


def _read(file: FileIO, entry: Entry) -> bytes:
    file.seek(entry.start)
    return file.read(entry.length)
