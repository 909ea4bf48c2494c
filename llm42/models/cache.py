"""Directories that are built once, kept in a cache, and never seen half-made.

A build writes beside its destination, under a lock that the operating system drops when the process dies,
and is renamed into place when it is complete. So a killed build leaves only a ``.partial`` directory, which
the next build removes, and of two builds at once the second waits and finds the work done.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_TIMEOUT_S = 600.0
LOCK_POLL_S = 0.2


def cache_root() -> Path:
    """``$LLM42_CACHE``, else ``$XDG_CACHE_HOME/llm42``, else ``~/.cache/llm42``."""
    if explicit := os.environ.get("LLM42_CACHE"):
        return Path(explicit).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "llm42"
    return Path.home() / ".cache" / "llm42"


def report(message: str) -> None:
    """One line of progress, on stderr so that stdout stays the answer."""
    print(message, file=sys.stderr, flush=True)


def build_once(directory: Path, build: Callable[[Path], None], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Path:
    """Return ``directory``, filled by ``build(staging)`` if it is not there yet.

    Raises:
        TimeoutError: another process has held the lock for ``lock_timeout_s`` seconds.
        OSError: the cache cannot be written.
        Anything that ``build`` raises; nothing is left behind then.
    """
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(directory.with_name(f".{directory.name}.lock"), lock_timeout_s):
        if directory.is_dir():
            return directory
        staging = directory.with_name(f".{directory.name}.partial")
        if staging.exists():
            shutil.rmtree(staging)  # We hold the lock: whoever made it is dead.
        staging.mkdir()
        try:
            build(staging)
            _settle(staging)
            staging.rename(directory)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    return directory


@contextmanager
def _lock(path: Path, timeout_s: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    waiting = False
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"another process has held {path} for {timeout_s:.0f} s") from None
            if not waiting:
                waiting = True
                report(f"another process is making {path.parent / path.stem.removeprefix('.')}, waiting for it")
            time.sleep(LOCK_POLL_S)
        yield


def _settle(directory: Path) -> None:
    """Make the files readable to all and force them to disk.

    Some writers create private files, useless to a container's other user; and a power cut must not leave a
    complete name over empty files.
    """
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            with path.open("rb") as file:
                os.fsync(file.fileno())
