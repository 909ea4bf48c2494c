"""Whatever the OpenAPI document allows, and much that it does not: never a 500, and every error OpenAI-shaped."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.e2e.client import Client, random_prompt
from tests.e2e.cluster import Cluster
from tests.events import events

SERVED = {
    "/health", "/version", "/fingerprint", "/v1/models", "/v1/completions", "/v1/chat/completions", "/tokenize",
    "/detokenize", "/v1/receipts/verify",
}  # fmt: skip
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [5, 6, 7], "temperature": 0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "temperature": 0},
}
OTHERS: dict[str, dict[str, Any]] = {"/tokenize": {"prompt": "hi"}, "/detokenize": {"tokens": [5, 6, 7]}}
VERIFY = "/v1/receipts/verify"
MOST = {"max_tokens": 4, "max_completion_tokens": 4, "n": 2, "min_tokens": 4}
"""What is generated larger is made this large: an answer shall take no time."""
MOST_PROMPTS = 3
TOGETHER = 3
"""Generated fields in a request that is right otherwise."""


@pytest.fixture(scope="module")
def http(cluster: Cluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> Any:
    return http.get("/openapi.json").json()


@pytest.fixture(scope="module")
def good(http: httpx.Client) -> dict[str, dict[str, Any]]:
    """For each route that takes a body, one that is right."""
    path = "/v1/completions"
    body = {**GENERATING[path], "max_tokens": 3, "ignore_eos": True, "is_deterministic": True, "receipt": True}
    answer = http.post(path, json=body).json()
    return {**GENERATING, **OTHERS, VERIFY: answer["determinism"]["receipts"][0]}


def test_the_document_has_what_is_served_and_nothing_else(document: Any) -> None:
    assert document["paths"].keys() == SERVED
    for name in ("CompletionRequest", "ChatCompletionRequest"):
        properties = document["components"]["schemas"][name]["properties"]
        assert properties.keys() >= {"is_deterministic", "expected_fingerprint", "receipt", "temperature", "seed"}


def test_what_takes_no_body(http: httpx.Client, good: dict[str, Any]) -> None:
    for path in sorted(SERVED - good.keys()):
        assert http.get(path).status_code == 200
        require_protocol(http.post(path, content=b"{"), {404, 405})
    for path in good:
        require_protocol(http.get(path), {405})
        require_protocol(http.post(path, content=b"[" * 100_000, headers=JSON), {400})
        require_protocol(http.post(path, content=b"\xff", headers=JSON), {400})
    require_protocol(http.get("/v1/nonesuch"), {404})


@pytest.mark.parametrize("path", [*GENERATING, *OTHERS, VERIFY])
def test_no_generated_request_is_a_500(path: str, document: Any, http: httpx.Client, good: dict[str, Any]) -> None:
    explore(path, document, http, good[path], examples=10, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", [*GENERATING, *OTHERS, VERIFY])
def test_no_generated_request_is_a_500_at_length(
    path: str, document: Any, http: httpx.Client, good: dict[str, Any]
) -> None:
    explore(path, document, http, good[path], examples=150, derandomize=False)


async def test_the_server_is_as_well_as_before(cluster: Cluster, client: Client) -> None:
    await cluster.until_idle(60)
    assert len((await client.complete(random_prompt(7, 10), 3)).token_ids) == 3


JSON = {"content-type": "application/json"}


def explore(
    path: str, document: Any, http: httpx.Client, good: dict[str, Any], *, examples: int, derandomize: bool
) -> None:
    """Send what is generated, both right and wrong by the document; as it is, and a few fields of it in ``good``."""
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]
    # 404 is for a model that is not served; 501 is vLLM's word for what it cannot do.
    allowed = {int(status) for status in document["paths"][path]["post"]["responses"]} - {500} | {404, 501}
    names = sorted(_properties(document, path))
    fields = st.sets(st.sampled_from(names), min_size=1, max_size=TOGETHER)
    flag = st.fixed_dictionaries({"is_deterministic": st.booleans()} if path in GENERATING else {})

    def send(body: Any) -> None:
        require_protocol(http.post(path, content=_encoded(_bounded(body, path)), headers=JSON), allowed)

    for mode in GenerationMode:
        bodies = operation.as_strategy(generation_mode=mode).map(lambda case: case.body)
        _examine(bodies, send, examples, derandomize)
        _examine(st.builds(_mixed, st.just(good), flag, bodies, fields), send, examples, derandomize)


def require_protocol(response: httpx.Response, statuses: set[int]) -> None:
    """A success, or an error of one of ``statuses`` that is OpenAI-shaped; in a stream too."""
    said = f"{response.status_code} {response.text[:500]} to {response.request.content[:2000]!r}"
    assert response.status_code in statuses, said
    errors = [response.json()] if response.status_code != 200 else events(response.text)
    for found in errors:
        if "error" in found or response.status_code != 200:
            error = found["error"]
            assert isinstance(error["message"], str), said
            assert error["message"], said
            assert isinstance(error["type"], str), said
            assert error["code"] != 500, said
            assert response.status_code in (200, error["code"]), said
    assert "Traceback" not in response.text, said


def _examine(bodies: st.SearchStrategy[Any], send: Callable[[Any], None], examples: int, derandomize: bool) -> None:
    limits = settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    limits(given(bodies)(send))()


def _mixed(good: dict[str, Any], flag: dict[str, Any], generated: Any, fields: set[str]) -> dict[str, Any]:
    if not isinstance(generated, dict):
        return {**good, **flag}
    return {**good, **flag, **{name: value for name, value in generated.items() if name in fields}}


def _bounded(body: Any, path: str) -> Any:
    """Nothing that takes long; and the model mostly ours, or there would be nothing but 404s."""
    if not isinstance(body, dict) or path not in GENERATING:
        return body
    bounded = dict(body)
    for name, most in MOST.items():
        value = bounded.get(name)
        if isinstance(value, int | float) and value > most:
            bounded[name] = most
    if bounded.get("max_tokens") is None and bounded.get("max_completion_tokens") is None:
        bounded["max_tokens"] = MOST["max_tokens"]  # a chat would go on to the end of the context
    prompt = bounded.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        bounded["prompt"] = prompt[:MOST_PROMPTS]
    if isinstance(bounded.get("model"), str) and len(bounded["model"]) % 4:
        bounded["model"] = "tiny"
    return bounded


def _properties(document: Any, path: str) -> set[str]:
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schemas = [document["components"]["schemas"][one["$ref"].rpartition("/")[2]] for one in body.get("anyOf", [body])]
    return {name for schema in schemas for name in schema["properties"]}


def _encoded(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if isinstance(body, schemathesis.core.NotSet) else json.dumps(body).encode()
