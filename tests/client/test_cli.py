"""``llm42 batch`` as a user runs it, Ctrl-C and kill -9 included."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from llm42.cli import main
from llm42.client import Outcome
from tests.client.server import Fake, error, serving

COUNT = 40


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    source = tmp_path / "input.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"prompt {number}"}) + "\n" for number in range(COUNT)))
    return str(source), str(tmp_path / "output.jsonl")


def run(files: tuple[str, str], url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["batch", *files, "--base-url", url, *arguments])


def lines(output: str) -> list[Outcome]:
    return [Outcome.parse(line) for line in Path(output).read_bytes().splitlines()]


def test_a_batch(files: tuple[str, str]) -> None:
    fake = Fake()
    with serving(fake) as url:
        result = run(files, url, "--temperature", "0", "--max-tokens", "9", "--defaults", '{"top_p": 0.9}')
        again = run(files, url, "--temperature", "0", "--max-tokens", "9", "--defaults", '{"top_p": 0.9}', "--json")
        other = run(files, url, "--temperature", "1", "--max-tokens", "9", "--defaults", '{"top_p": 0.9}', "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"{COUNT} of {COUNT} requests answered, 0 failed; {COUNT} asked now" in result.stdout
    assert "fingerprint fp-1" in result.stdout
    for body in fake.bodies:
        sent = {name: value for name, value in body.items() if name not in ("prompt", "expected_fingerprint")}
        assert sent == {"model": "tide", "temperature": 0, "max_tokens": 9, "top_p": 0.9, "is_deterministic": True}
    assert len(fake.bodies) == COUNT
    assert again.exit_code == 0
    summary = json.loads(again.stdout)["summary"]
    assert summary == {
        "requests": COUNT, "answered": COUNT, "failed": 0, "asked": 0, "prompt_tokens": 3 * COUNT,
        "completion_tokens": 2 * COUNT, "fingerprint": "fp-1", "seconds": summary["seconds"],
    }  # fmt: skip
    assert other.exit_code == 2
    assert "that request has changed" in json.loads(other.stdout)["error"]


def test_failed_requests_are_told(files: tuple[str, str]) -> None:
    fake = Fake(disturb=lambda number, body: error(400, "[no]") if body["prompt"] == "prompt 3" else None)
    with serving(fake) as url:
        result = run(files, url)
    assert result.exit_code == 1
    assert "'request-3' failed: [no]" in result.stderr
    assert f"{COUNT - 1} of {COUNT} requests answered, 1 failed" in result.stdout


def test_waiting_is_told_once(files: tuple[str, str]) -> None:
    fake = Fake(disturb=lambda number, _: error(503, "too much", retry_after="1") if 1 < number < 6 else None)
    with serving(fake) as url:
        result = run(files, url, "--concurrency", "4")
    assert result.exit_code == 0
    assert result.stderr.count("HTTP 503: too much; again in 1.0 s") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--defaults", "[]"), "JSON object"),
        (("--defaults", "{"), "no JSON"),
        (("--defaults", '{"stream": true}'), "stream"),
        (("--timeout", "nan"), "timeout"),
        (("--temperature", "nan"), "temperature"),
        (("--concurrency", "0"), "concurrency"),
    ],
)
def test_bad_arguments(files: tuple[str, str], arguments: tuple[str, ...], says: str) -> None:
    result = run(files, "http://127.0.0.1:9", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path(files[1]).exists()


def test_an_input_that_is_none(files: tuple[str, str]) -> None:
    Path(files[0]).write_text('{"prompt": "a"}\n{"prompt": \n')
    result = run(files, "http://127.0.0.1:9", "--json")
    assert result.exit_code == 2
    assert "line 2 of the input" in json.loads(result.stdout)["error"]
    assert json.loads(result.stdout)["summary"] is None


def start(files: tuple[str, str], url: str) -> "subprocess.Popen[str]":
    # A shell that starts jobs in the background hands SIGINT down as ignored.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from llm42.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "batch", *files, "--base-url", url, "--concurrency", "3"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def until(fake: Fake, count: int) -> None:
    deadline = time.monotonic() + 100
    while len(fake.bodies) < count:
        assert time.monotonic() < deadline, f"only {len(fake.bodies)} requests came"
        time.sleep(0.01)


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
def test_a_batch_that_is_stopped_goes_on_to_the_same_bytes(
    files: tuple[str, str], tmp_path: Path, with_signal: signal.Signals
) -> None:
    fake = Fake(latency_s=0.05)
    whole = str(tmp_path / "whole.jsonl")
    with serving(fake) as url:
        assert run((files[0], whole), url).exit_code == 0
        asked = len(fake.bodies)
        process = start(files, url)
        try:
            until(fake, asked + 15)
            process.send_signal(with_signal)
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
        stopped = lines(files[1])
        assert 10 <= len(stopped) < COUNT
        if with_signal == signal.SIGINT:
            assert (process.returncode, stdout) == (130, "")
            assert stderr.endswith("interrupted; run the same command to go on\n")
        result: Any = json.loads(run(files, url, "--json").stdout)
    assert result["summary"]["asked"] == COUNT - len(stopped)
    assert Path(files[1]).read_bytes() == Path(whole).read_bytes()


def test_the_command_is_cheap_to_import() -> None:
    program = (
        "import sys; import llm42.cli; "
        "print(sorted({'openai', 'httpx', 'vllm', 'torch', 'ray', 'pydantic'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
