"""The output file: whatever happened to it, an answer is kept or asked again, and nobody else's file is touched."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from llm42.client import Defaults, Outcome, OutputError, Request, Store, make_requests

REQUESTS = make_requests([{"custom_id": name, "prompt": name, "model": "m"} for name in "abcde"], Defaults())


def outcome(request: Request, fingerprint: str = "fp-1") -> Outcome:
    said: dict[str, Any] = {
        "id": "x", "choices": [{"text": request.custom_id}], "system_fingerprint": fingerprint,
        "determinism": {"verified": True}, "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }  # fmt: skip
    return Outcome.answered(request, said)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.jsonl"


def write(path: Path, order: str) -> list[bytes]:
    with Store(path) as store:
        for name in order:
            store.add(outcome(REQUESTS["abcde".index(name)]))
    return path.read_bytes().splitlines(keepends=True)


def _cuts(length: int) -> list[int]:
    return sorted({*range(0, length, 11), 1, 2, length - 2, length - 1, length})


def ids(requests: list[Request]) -> str:
    return "".join(request.custom_id for request in requests)


def test_a_line_torn_anywhere_is_asked_again_and_no_other(path: Path) -> None:
    first, second = write(path, "ba")
    for cut in _cuts(len(second)):
        path.write_bytes(first + second[:cut])
        with Store(path) as store:
            whole = cut >= len(second) - 1  # all but the end of the line
            assert ids(store.left(REQUESTS)) == ("cde" if whole else "acde")
            store.add(outcome(REQUESTS[2]))
        lines = path.read_bytes().splitlines(keepends=True)
        assert lines[:-1] == ([first, second] if whole else [first])
        assert Outcome.parse(lines[-1]).custom_id == "c"


def test_a_first_line_torn_anywhere(path: Path) -> None:
    (line,) = write(path, "a")
    for cut in _cuts(len(line) - 2):
        path.write_bytes(line[:cut])
        with Store(path) as store:
            assert ids(store.left(REQUESTS)) == "abcde"
        assert path.read_bytes() == b""


@pytest.mark.parametrize("text", ['{"prompt": "hi"}', '{"prompt": "hi"}\n', "a,b\n1,2\n", "x", "\0\0\0", "{}\n", "\n"])
def test_a_file_of_someone_else_is_left_alone(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(OutputError, match="no line of a batch's output"):
        Store(path)
    assert path.read_text() == text


def test_a_broken_line_in_the_middle_is_not_passed_over(path: Path) -> None:
    first, second = write(path, "ab")
    path.write_bytes(first[:-20] + b"\n" + second)
    with pytest.raises(OutputError, match="line 1 "):
        Store(path)


def test_lines_are_put_into_the_order_of_the_input(path: Path) -> None:
    lines = write(path, "dbeac")
    path.chmod(0o640)
    with Store(path) as store:
        assert store.left(REQUESTS) == []
        store.settle(REQUESTS)
        assert store.read("d") == outcome(REQUESTS[3])
    assert path.read_bytes() == b"".join(lines[position] for position in (3, 1, 4, 0, 2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(path.parent) == [path.name]
    before = path.stat()
    with Store(path) as store:
        store.settle(REQUESTS)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_index_follows_the_input(path: Path) -> None:
    write(path, "ab")
    turned = make_requests([{"custom_id": name, "prompt": name, "model": "m"} for name in "ba"], Defaults())
    with Store(path) as store:
        assert store.left(turned) == []
        store.settle(turned)
    assert [Outcome.parse(line).index for line in path.read_bytes().splitlines()] == [0, 1]


def test_failures_are_asked_again_and_give_way(path: Path) -> None:
    with Store(path) as store:
        store.add(outcome(REQUESTS[0]))
        store.add(Outcome.failed(REQUESTS[1], 400, "no"))
        store.add(Outcome.failed(make_requests([{"custom_id": "c", "prompt": "old"}], Defaults())[0], 400, "no"))
    with Store(path) as store:
        assert ids(store.left(REQUESTS[:3])) == "bc"
        for request in REQUESTS[1:3]:
            store.add(outcome(request))
        store.settle(REQUESTS[:3])
    assert [Outcome.parse(line).error for line in path.read_bytes().splitlines()] == [None] * 3


def test_answers_to_other_requests_are_not_passed_off(path: Path) -> None:
    write(path, "ab")
    changed = make_requests([{"custom_id": name, "prompt": name, "model": "other"} for name in "ab"], Defaults())
    with Store(path) as store:
        with pytest.raises(OutputError, match="'a', but that request has changed"):
            store.left(changed)
        with pytest.raises(OutputError, match="'b', but that request is not in the input"):
            store.left(REQUESTS[:1])


def test_answers_of_two_fingerprints_are_noticed(path: Path) -> None:
    with Store(path) as store:
        assert store.fingerprint() is None
        store.add(outcome(REQUESTS[0]))
        assert store.fingerprint() == "fp-1"
        store.add(outcome(REQUESTS[1], "fp-2"))
        with pytest.raises(OutputError, match="several fingerprints: fp-1, fp-2"):
            store.fingerprint()


def test_two_runs_do_not_share_a_file(path: Path) -> None:
    write(path, "ba")
    with Store(path) as store:
        with pytest.raises(OutputError, match="another batch"):
            Store(path)
        store.settle(REQUESTS[:2])
        with pytest.raises(OutputError, match="another batch"):
            Store(path)
    Store(path).__exit__(None, None, None)


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    write(path, "ba")
    link = tmp_path / "link"
    link.symlink_to(path)
    with Store(link) as store:
        store.settle(REQUESTS[:2])
    assert link.is_symlink()
    assert Outcome.parse(path.read_bytes().splitlines()[0]).custom_id == "a"


def test_what_cannot_be_written(path: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere" / "output", tmp_path, Path("/dev/null")):
        with pytest.raises(OutputError):
            Store(place)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_ends_the_batch(path: Path) -> None:
    with Store(path) as store:
        store._file.close()
        store._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115 - closed by the store
        with pytest.raises(OutputError, match="No space left"):
            store.add(outcome(REQUESTS[0]))
        assert store.entries == {}
