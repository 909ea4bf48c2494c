"""What is started is stopped, all of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm42.cli.processes import Job

# A parent and a child; both ignore SIGTERM, and the child has a process group of its own, as Ray's workers do.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, time; os.setpgrp(); print(os.getpid(), flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code])
time.sleep(60)
"""
# Prints which of its children's signals are at their default.
LAUNCHER = """
import signal, subprocess, sys
from llm42.cli.processes import Stopped, StopSignals
signals = StopSignals()
code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="", flush=True)
try:
    while True:
        signals.pause(0.1)
except Stopped as stopped:
    print(stopped)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_output(log: Path) -> str:
    deadline = time.monotonic() + 30
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return log.read_text()


def test_stop_reaches_grandchildren_that_will_not_listen(tmp_path: Path) -> None:
    job = Job.start("stubborn", [sys.executable, "-c", STUBBORN], os.environ, tmp_path / "log")
    grandchild = int(wait_for_output(job.log))
    assert is_alive(grandchild)
    assert os.getpgid(grandchild) != job.process.pid  # The control: killing the group would not be enough.
    started = time.monotonic()
    job.stop(signal.SIGTERM, 0.5)
    assert time.monotonic() - started < 5
    assert not job.running
    assert not is_alive(grandchild)


def test_stop_does_not_wait_for_what_has_ended(tmp_path: Path) -> None:
    job = Job.start("short", [sys.executable, "-c", "print('bye')"], os.environ, tmp_path / "log")
    job.process.wait(timeout=30)
    assert job.tail() == "bye"
    started = time.monotonic()
    job.stop(signal.SIGINT, 60)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_heard_even_where_the_shell_ignores_them(signum: signal.Signals) -> None:
    """A shell without job control starts what follows ``&`` with SIGINT ignored."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    command = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=ignore) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        process.send_signal(signum)
        assert process.communicate(timeout=30)[0] == f"{signum.name}\n"
