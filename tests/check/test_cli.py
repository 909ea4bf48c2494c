"""``llm42 check`` end to end against a real HTTP server: exit status, verdict, JSON."""

import json
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import typer
from starlette.responses import HTMLResponse, JSONResponse
from typer.testing import CliRunner, Result

from llm42.cli.check import check
from tests.check.server import Behaviour, serving
from tests.ports import free_port

APP = typer.Typer()
APP.command()(check)
SMALL = ("--prompts", "4", "--concurrency", "3", "--trials", "2", "--max-tokens", "8")
KEYS = {
    "completions", "unique_max", "diverged_prompts", "first_divergence",
    "fingerprints", "logprobs_compared", "seconds", "error",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "not-to-be-sent")


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(APP, ["--base-url", url, *SMALL, *arguments])


def run_json(url: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    result = run(url, "--json", *arguments)
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert found.keys() == KEYS
    return result.exit_code, found, result.stderr


def test_a_deterministic_server_passes() -> None:
    behaviour = Behaviour()
    with serving(behaviour) as url:
        status, found, stderr = run_json(url)
    assert (status, stderr) == (0, "")
    assert found == {
        "completions": 12,
        "unique_max": 1,
        "diverged_prompts": 0,
        "first_divergence": None,
        "fingerprints": ["fp-1"],
        "logprobs_compared": True,
        "seconds": found["seconds"],
        "error": None,
    }
    assert found["seconds"] > 0
    assert behaviour.most_at_once == 3
    assert len(behaviour.requests) == 12
    for body in behaviour.requests:
        assert body.keys() == {
            "model", "prompt", "max_tokens", "temperature", "seed", "is_deterministic", "logprobs",
        }  # fmt: skip
        assert (body["model"], body["temperature"], body["is_deterministic"]) == ("tide", 0, True)


def test_an_ordinary_check_asks_for_nothing_special() -> None:
    behaviour = Behaviour()
    with serving(behaviour) as url:
        assert run(url + "/v1/", "--ordinary", "--model", "mine").exit_code == 0
    for body in behaviour.requests:
        assert body.keys() == {"model", "prompt", "max_tokens", "temperature", "logprobs"}
        assert body["model"] == "mine"


def test_the_table_of_a_deterministic_server() -> None:
    with serving(Behaviour(fingerprints=("fp-1", "fp-2"))) as url:
        result = run(url)
    assert result.exit_code == 0
    assert "Deterministic: 12 completions of 4 prompts" in result.stdout
    assert "several fingerprints: 'fp-1' 'fp-2'" in result.stdout
    assert result.stdout.count("none") == 4


def test_a_server_that_drifts_under_load_fails() -> None:
    with serving(Behaviour(drift="token")) as url:
        status, found, _ = run_json(url)
    assert status == 1
    assert (found["completions"], found["unique_max"]) == (12, 2)
    assert 1 <= found["diverged_prompts"] <= 4
    first = found["first_divergence"]
    assert (first["kind"], first["unit"], first["position"]) == ("token", "token", 5)
    assert first["logprob_position"] == 3
    assert first["burst"] in (2, 3)
    assert len(first["before"]) == 5
    assert first["other"]["continuation"][0] == " drifted" != first["alone"]["continuation"][0]
    assert first["alone"]["continuation"][1:] == first["other"]["continuation"][1:]


def test_the_negative_control_drifts_where_deterministic_requests_do_not() -> None:
    with serving(Behaviour(drift="token", honours=True)) as url:
        assert run(url).exit_code == 0
        assert run(url, "--ordinary").exit_code == 1


def test_one_ulp_under_load_fails() -> None:
    with serving(Behaviour(drift="ulp")) as url:
        status, found, _ = run_json(url)
    assert status == 1
    assert found["unique_max"] == 2
    assert found["diverged_prompts"] >= 1
    first = found["first_divergence"]
    assert (first["kind"], first["position"]) == ("logprob", 3)
    bits = [int(first[side]["logprob_bits"], 16) for side in ("alone", "other")]
    assert bits[0] - bits[1] == 1


def test_the_first_divergence_is_shown_in_context() -> None:
    with serving(Behaviour(drift="token")) as url:
        result = run(url)
    assert result.exit_code == 1
    assert "Not deterministic: 12 completions of 4 prompts" in result.stdout
    assert "diverged prompts: " in result.stdout
    assert "token 5 (logprob 3)" in result.stdout
    assert "' drifted'" in result.stdout
    assert len(re.findall(r"logprob -[0-9.]+ = 0x[0-9a-f]{16}\b", result.stdout)) == 2


def test_a_failed_completion_is_never_dropped() -> None:
    with serving(Behaviour(fail_at=8)) as url:
        status, found, stderr = run_json(url)
    assert status == 2
    assert found["completions"] == 7
    assert found["error"].startswith("failed completions: 2, in a burst of 2; prompt ")
    assert "HTTP 500: the engine has died" in found["error"]
    assert "server's log" in stderr
    assert "\x1b" not in stderr


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Behaviour(fail_at=1), "the engine has died"),
        (Behaviour(fail_at=1, fail_with=JSONResponse({"detail": "no key"}, 401)), "no key. Give --api-key"),
        (Behaviour(fail_at=3, fail_with=JSONResponse({"detail": "full"}, 503)), "full. Lower --concurrency"),
        (Behaviour(fail_at=1, fail_with=JSONResponse({"detail": "too long"}, 400)), "HTTP 400: too long"),
        (Behaviour(fail_at=1, fail_with=HTMLResponse("<p>hello")), "not an OpenAI completion"),
        (Behaviour(fail_at=2, fail_with=JSONResponse({"choices": []})), "not an OpenAI completion"),
        (Behaviour(models={"data": []}), "names no model"),
        (Behaviour(models="hello"), "names no model"),
    ],
)  # fmt: skip
def test_errors_of_the_server(behaviour: Behaviour, message: str) -> None:
    with serving(behaviour) as url:
        result = run(url)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_server_that_refuses_the_field() -> None:
    behaviour = Behaviour(refuses=frozenset({"is_deterministic"}))
    with serving(behaviour) as url:
        refused, ordinary = run(url), run(url, "--ordinary")
    assert refused.exit_code == 2
    assert "--ordinary" in refused.stderr
    assert "Unrecognized request argument supplied: is_deterministic" in refused.stderr
    assert ordinary.exit_code == 0


def test_a_server_that_refuses_the_field_and_logprobs() -> None:
    with serving(Behaviour(refuses=frozenset({"is_deterministic", "logprobs"}))) as url:
        result = run(url)
    assert result.exit_code == 2
    assert "--ordinary" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("--ordinary",)])
@pytest.mark.parametrize(
    ("behaviour", "note"),
    [
        (Behaviour(refuses=frozenset({"logprobs"})), "refuses logprobs"),
        (Behaviour(gives_logprobs=False), "gives no logprobs"),
    ],
)
def test_without_logprobs_text_is_compared(behaviour: Behaviour, note: str, arguments: tuple[str, ...]) -> None:
    behaviour.drift = None
    with serving(behaviour) as url:
        status, found, stderr = run_json(url, *arguments)
        behaviour.drift = "token"
        drifted = run(url, *arguments)
    assert status == 0
    assert note in stderr
    assert found["logprobs_compared"] is False
    assert drifted.exit_code == 1
    assert "character " in drifted.stdout


def test_an_unreachable_server() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for arguments in ((), ("--model", "tide")):
        status, found, stderr = run_json(url, *arguments)
        assert (status, found["completions"], found["unique_max"]) == (2, 0, 0)
        assert f"cannot reach {url}/v1" in found["error"]
        assert "Is the server up" in stderr


def test_a_server_that_does_not_answer_in_time() -> None:
    with serving(Behaviour(latency_s=2)) as url:
        result = run(url, "--timeout", "0.3")
    assert result.exit_code == 2
    assert "did not answer within 0.3 s" in result.stderr


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("127.0.0.1:8000", ()),
        ("ftp://127.0.0.1", ()),
        ("http://a b/v1", ()),
        ("http://a\x00b", ()),
        ("http://127.0.0.1:0", ()),
        ("http://[::1", ()),
        ("http://127.0.0.1:99999", ()),
        ("http://127.0.0.1:8000/v1?x=1", ()),
        ("http://127.0.0.1:8000", ("--prompts", "1")),
        ("http://127.0.0.1:8000", ("--concurrency", "1")),
        ("http://127.0.0.1:8000", ("--timeout", "nan")),
        ("http://127.0.0.1:8000", ("--api-key", "a\nb")),
    ],
)
def test_bad_arguments(url: str, arguments: tuple[str, ...]) -> None:
    result = run(url, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error" in result.stderr


def test_ctrl_c_leaves_cleanly() -> None:
    behaviour = Behaviour(latency_s=60)
    with serving(behaviour) as url:
        # A shell that starts jobs in the background hands SIGINT down as ignored.
        program = (
            "import signal, typer; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from llm42.cli.check import check; print('ready', flush=True); typer.run(check)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program, "--base-url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 60
            while not behaviour.requests:
                assert time.monotonic() < deadline, "no request came"
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert stdout == ""
    assert stderr == "interrupted\n"


def test_the_command_is_cheap_to_import() -> None:
    program = (
        "import sys; import llm42.cli.check; "
        "print(sorted({'openai', 'vllm', 'torch', 'ray', 'pydantic'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
