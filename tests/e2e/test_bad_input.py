"""Whatever a client sends: an OpenAI-shaped 4xx that names what is wrong, and the server lives on."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.e2e.client import VOCABULARY, Client, random_prompt
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import TINY

CONTEXT = TINY["max_model_len"]
GOOD: dict[str, Any] = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "max_completion_tokens": 4,
    "temperature": 0,
}
ABSENT = object()

BOTH: list[tuple[str, int, str, dict[str, Any]]] = [
    # What, status, what the message says, what is sent. For deterministic and ordinary requests alike.
    ("over-long prompt", 400, "context length", {"prompt": [5] * (CONTEXT + 1)}),
    ("prompt that leaves no room", 400, "max_tokens", {"prompt": [5] * CONTEXT}),
    ("over-long text", 400, "context length", {"prompt": "word " * CONTEXT}),
    ("unknown model", 404, "does not exist", {"model": "nonesuch"}),
    ("empty prompt", 400, "", {"prompt": ""}),
    ("no token ids", 400, "", {"prompt": []}),
    ("no prompt", 400, "prompt", {"prompt": ABSENT}),
    ("prompt of a wrong type", 400, "", {"prompt": {"text": "hi"}}),
    ("token id past the vocabulary", 400, "vocab", {"prompt": [5, VOCABULARY]}),
    ("negative token id", 400, "", {"prompt": [5, -1]}),
    ("enormous token id", 400, "", {"prompt": [5, 2**40]}),
    ("huge max_tokens", 400, "max_tokens", {"max_tokens": 10**9}),
    ("max_tokens of zero", 400, "max_tokens", {"max_tokens": 0}),
    ("negative max_tokens", 400, "max_tokens", {"max_tokens": -5}),
    ("max_tokens in words", 400, "max_tokens", {"max_tokens": "many"}),
    ("temperature of a wrong type", 400, "temperature", {"temperature": "cold"}),
    ("too many stop strings", 400, "stop", {"stop": 7}),
    ("wrong stream", 400, "stream", {"stream": "perhaps"}),
    ("structured_outputs of a wrong type", 400, "structured_outputs", {"structured_outputs": 0.5}),
    ("wrong flag", 400, "is_deterministic", {"is_deterministic": "yes"}),
    ("wrong flag in vllm_xargs", 400, "is_deterministic", {"vllm_xargs": {"is_deterministic": 7}}),
]
DETERMINISTIC: list[tuple[str, str, dict[str, Any]]] = [
    # What is not verified yet: refused by name.
    ("n", "2", {"n": 2}),
    ("logprobs", "-1", {"logprobs": -1}),
    ("thinking_token_budget", "", {"thinking_token_budget": 5}),
    ("expected_fingerprint", "", {"expected_fingerprint": 7}),
    ("receipt", "true or false", {"receipt": "please"}),
    ("no_such_parameter", "", {"no_such_parameter": 1}),
]


@pytest.fixture
async def post(cluster: Cluster, client: Client) -> AsyncIterator[Any]:
    """Send anything; and see afterwards that the server is as well as before."""
    prompt = random_prompt(7, 10)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60, trust_env=False) as http:

        async def send(body: dict[str, Any] | bytes, path: str = "/v1/completions") -> httpx.Response:
            if isinstance(body, bytes):
                return await http.post(path, content=body, headers={"content-type": "application/json"})
            return await http.post(path, json={name: value for name, value in body.items() if value is not ABSENT})

        yield send
    assert len((await client.complete(prompt, 3)).token_ids) == 3


def require_error(response: httpx.Response, status: int, says: str, param: str | None = None) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert says in error["message"]
    assert isinstance(error["type"], str)
    assert error["code"] == status
    assert error["param"] == param if param is not None else "param" in error
    assert "Traceback" not in response.text


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
async def test_bad_input_is_refused(post: Any, deterministic: bool) -> None:
    for what, status, says, fields in BOTH:
        print(what)
        response = await post({"is_deterministic": deterministic, **GOOD, **fields})
        print(response.status_code, response.text[:300])
        require_error(response, status, says)


async def test_bad_input_of_what_is_not_verified_names_the_parameter(post: Any) -> None:
    for param, says, fields in DETERMINISTIC:
        print(param)
        require_error(await post({**GOOD, "is_deterministic": True, **fields}), 400, says, param)
        require_error(await post({**GOOD, "is_deterministic": True, "stream": True, **fields}), 400, says, param)
        # The same is no business of ours where nobody asked for determinism.
        if fields != {"no_such_parameter": 1}:
            continue
        assert (await post({**GOOD, **fields})).status_code == 200


async def test_bad_input_to_chat(post: Any) -> None:
    path = "/v1/chat/completions"
    for status, says, fields in (
        (404, "does not exist", {"model": "nonesuch"}),
        (400, "", {"messages": "hi"}),
        (400, "", {"messages": [{"role": "user", "content": 5}]}),
        (400, "context length", {"messages": [{"role": "user", "content": "word " * CONTEXT}]}),
        (400, "logprobs", {"logprobs": True, "top_logprobs": 1000}),
        (400, "tool", {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "nonesuch"}),
        (400, "is_deterministic", {"is_deterministic": 3}),
    ):
        response = await post({"is_deterministic": True, **CHAT, **fields}, path)
        print(response.status_code, response.text[:300])
        require_error(response, status, says)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"model": "tiny", "prompt": NaN}']
)
async def test_bad_input_that_is_no_request(post: Any, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        response = await post(body, path)
        print(response.status_code, response.text[:200])
        require_error(response, 400, "")


async def test_bad_input_too_large(post: Any) -> None:
    body = b'{"model": "tiny", "prompt": "' + b"a" * (17 << 20) + b'"}'
    require_error(await post(body), 413, "larger")


async def test_bad_input_by_path_and_method(cluster: Cluster, post: Any) -> None:
    require_error(await post(GOOD, "/v1/nonesuch"), 404, "/v1/nonesuch")
    require_error(await post(GOOD, "/v1/models"), 405, "/v1/models")
    # vLLM's routes take a line's end for no more of the path; nothing leaves that nobody has decided on.
    for flag in (True, False):
        response = await post({**GOOD, "is_deterministic": flag}, "/v1/completions%0A")
        assert response.status_code in (404, 500)
