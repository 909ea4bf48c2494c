"""The cache never shows a half-made directory, whatever happens to the process that makes it."""

import fcntl
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm42.models.cache import build_once, cache_root

# Writes half of its files, says so, and stays there; or finishes at once, and counts itself.
BUILDER = """
import sys, time
from pathlib import Path
from llm42.models.cache import build_once

directory, mode = Path(sys.argv[1]), sys.argv[2]

def build(staging):
    (staging / "first").write_text("x" * 100_000)
    if mode == "hang":
        print("half", flush=True)
        time.sleep(60)
    time.sleep(0.5)
    (staging / "second").write_text("y")
    with open(directory.parent / "builds", "a") as file:
        file.write("built\\n")

print(build_once(directory, build))
"""


def builder(directory: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(directory), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def made(staging: Path) -> None:
    (staging / "whole").write_text("whole")


def test_a_killed_build_shows_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    with builder(directory, "hang") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    left = tmp_path / ".model.partial"
    assert (left / "first").exists()  # The control: something half-made does lie there,
    assert not directory.exists()  # but not under the name that is served.

    assert build_once(directory, made) == directory
    assert [path.name for path in directory.iterdir()] == ["whole"]
    assert not left.exists()


def test_of_builds_at_once_one_builds_and_all_return(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    processes = [builder(directory, "finish") for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert outputs == [f"{directory}\n"] * 3
    assert (tmp_path / "builds").read_text() == "built\n"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "model"

    def fail(staging: Path) -> None:
        made(staging)
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        build_once(directory, fail)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_a_complete_directory_is_not_built_again(tmp_path: Path) -> None:
    def never(staging: Path) -> None:
        raise AssertionError("built again")

    directory = build_once(tmp_path / "model", made)
    assert build_once(directory, never) == directory


def test_files_are_readable_by_all(tmp_path: Path) -> None:
    def private(staging: Path) -> None:
        made(staging)
        (staging / "whole").chmod(0o600)

    directory = build_once(tmp_path / "model", private)
    assert (directory / "whole").stat().st_mode & 0o777 == 0o644


def test_waiting_for_another_process_ends(tmp_path: Path) -> None:
    with (tmp_path / ".model.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="another process"):
            build_once(tmp_path / "model", made, lock_timeout_s=0.5)
        assert time.monotonic() - started < 5
    assert build_once(tmp_path / "model", made, lock_timeout_s=0.5).is_dir()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LLM42_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/llm42"),
        ({"HOME": "/home/you"}, "/home/you/.cache/llm42"),
    ],
)
def test_where_the_cache_lies(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLM42_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(expected)
