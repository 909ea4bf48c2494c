"""What clients ask and are answered goes to them, and neither into a log nor into a metric."""

import secrets
from pathlib import Path
from typing import Any

import httpx
import ray

from tests.e2e.cluster import CALL_S, Cluster

ACCESS = " -- POST / "
"""Serve's own line of a request."""


def logs() -> str:
    """What the processes of this Ray have logged: Serve's files, and all that was written to stdout and stderr."""
    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())


async def test_nothing_of_a_request_is_logged_or_counted(cluster: Cluster) -> None:
    """Answered, refused, malformed and failing ones, each with a word that nobody else would say."""
    secret = f"kanarienvogel{secrets.token_hex(8)}"
    prompt: dict[str, Any] = {"model": "tiny", "prompt": f"{secret} sings", "max_tokens": 8, "temperature": 0}
    message = {"role": "user", "content": f"what does {secret} sing"}
    chat: dict[str, Any] = {"model": "tiny", "messages": [message], "max_tokens": 8}
    asked: list[tuple[int, dict[str, Any]]] = [
        (200, {**prompt, "is_deterministic": True, "user": secret, "stop": [secret], "metadata": {"of": secret}}),
        (200, {**prompt, "is_deterministic": True, "stream": True}),
        (200, {**prompt, "is_deterministic": False, "echo": True, "logprobs": 1}),
        (200, {**chat, "is_deterministic": True, "seed": 1}),
        (200, {**chat, "is_deterministic": False, "stream": True}),
        (400, {**prompt, "is_deterministic": True, "suffix": secret}),
        (400, {**prompt, "is_deterministic": secret}),
        (400, {**prompt, "is_deterministic": True, "prompt": f"{secret} " * 3000}),
        (400, {**prompt, "is_deterministic": False, "prompt": f"{secret} " * 3000}),
        (400, {**prompt, "is_deterministic": False, "max_tokens": secret}),
        (400, {**prompt, "is_deterministic": True, "structured_outputs": {"regex": f"({secret}"}}),
        (400, {**prompt, "is_deterministic": False, "structured_outputs": {"regex": f"({secret}"}}),
        (400, {**chat, "is_deterministic": True, "messages": secret}),
        (404, {**prompt, "model": secret}),
    ]
    before = logs().count(ACCESS)
    async with httpx.AsyncClient(base_url=cluster.url, trust_env=False, timeout=CALL_S) as http:
        for status, body in asked:
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            response = await http.post(path, json=body)
            assert response.status_code == status, response.text
        written = (await http.post("/tokenize", json={"model": "tiny", "prompt": prompt["prompt"]})).json()["tokens"]
        assert (await http.post("/tokenize", content=f'{{"prompt": {secret}')).status_code == 400
        # Token ids are as good as words.
        for fields in ({"receipt": True, "is_deterministic": True}, {"prompt": [*written, -1]}):
            await http.post("/v1/completions", json={**prompt, "return_token_ids": True, **fields})
    exposition = await cluster.exposition()
    said = logs()
    assert said.count(ACCESS) > before, "negative control: these are the logs"
    assert "ray_llm42_requests_total" in exposition
    ids = ", ".join(map(str, written[:6]))
    for text in (said, exposition):
        assert secret not in text
        assert ids not in text
