"""Child processes that leave nothing behind.

Each job is started in a session of its own, so the terminal's Ctrl-C reaches only us and we decide the order
in which things stop. Ray gives its workers process groups of their own but not sessions: the session id names
everything that a job has started.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

POLL_S = 0.1
KILL_TIMEOUT_S = 5.0
TAIL_LINES = 30


class Stopped(Exception):
    """Someone asked us to stop; the message is the signal's name."""


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP, noticed between steps so that no child is lost halfway through its start.

    Handlers are set explicitly because a shell starts background jobs with SIGINT ignored. A signal with a
    handler (unlike an ignored one) is back to its default in children, so they can be interrupted too.
    """

    def __init__(self) -> None:
        self._received: str | None = None
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._receive)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self._received = signal.Signals(signum).name

    def pause(self, seconds: float) -> None:
        """Sleep; then raise :class:`Stopped` if a signal has come."""
        time.sleep(seconds)
        if self._received is not None:
            raise Stopped(self._received)


@dataclass(frozen=True)
class Job:
    """A running child, leader of its own session."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        stdout: int | None = None,
    ) -> "Job":
        """Start ``command``. Its output goes to ``log``, or its stdout to the file descriptor ``stdout``."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=file if stdout is None else stdout,
                stderr=file,
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def stop(self, signum: signal.Signals, timeout_s: float) -> None:
        """Ask the child to stop, wait up to ``timeout_s`` seconds, then kill what is left of its session.

        Call it once, and soon after a child has ended by itself: its id may be given to a stranger later.
        """
        deadline = time.monotonic() + timeout_s
        if self.running:
            self.process.send_signal(signum)
        while self._alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while left := self._alive():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name}: processes {left} cannot be killed")
            for pid in left:
                _kill(pid)
            time.sleep(POLL_S)

    def _alive(self) -> list[int]:
        """Ids of the processes in the child's session, itself included."""
        self.process.poll()  # Collects our own child, which would otherwise stay as a zombie.
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._owns(pid)]

    def _owns(self, pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        # The command, in parentheses, may contain anything; after it come state, parent, group and session.
        state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
        return int(session) == self.process.pid and state != "Z"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
