"""Router CPU time for each committed token, with scripted engines behind the real frontend.

    python benchmarks/router.py [--requests 64] [--tokens 256] [--json]

Everything that a router process does is real: vLLM's tokenizer, OpenAI routes, detokeniser and streaming, the
middleware, the session, packing and comparing tokens. Drafts and replays are scripted and cost next to nothing;
calls between actors are not included. Prints microseconds of process CPU time for each token that reached a client.
"""

import argparse
import asyncio
import json
import os
import time
from array import array
from typing import Any

from llm42.protocol import Scores

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from opentelemetry.sdk.trace import TracerProvider
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason

from llm42.config import Config
from llm42.internals.frontend import make_frontend
from llm42.models import tiny_model
from llm42.protocol import ReplayReply, ReplayRequest
from llm42.router.core import RouterCore
from llm42.router.quota import Quotas
from llm42.router.stack import in_front_of
from llm42.tracing.spans import SpanTracing

STEP_S = 0.005


def scripted(position: int) -> int:
    return 1000 + position % 997


class ScriptedHub:
    """Drafts the script, a token a step for every request, with ``wrong`` of 100 tokens wrong."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong
        self.running: dict[str, tuple[EngineCoreRequest, Any, int]] = {}

    async def submit(self, request: EngineCoreRequest, sink: Any, on_lost: Any, prefer: str | None = None) -> str:
        self.running[request.request_id] = (request, sink, 0)
        return "scripted"

    def abort(self, request_id: str) -> None:
        self.running.pop(request_id, None)

    async def play(self) -> None:
        while True:
            for name, (request, sink, said) in list(self.running.items()):
                position = len(request.prompt_token_ids or ()) + said
                right = (position * 7919) % 100 >= self.wrong
                last = said + 1 == request.sampling_params.max_tokens
                if last:
                    del self.running[name]
                else:
                    self.running[name] = (request, sink, said + 1)
                token = scripted(position) if right else 5
                sink(EngineCoreOutput(name, [token], finish_reason=FinishReason.LENGTH if last else None))
            await asyncio.sleep(STEP_S)


class ScriptedVerifiers:
    async def replay(self, request: ReplayRequest, prefer: str | None, pin: Any, retried: Any) -> ReplayReply:
        await asyncio.sleep(2 * STEP_S)
        count, start = request.question.count, request.question.start
        tokens = [scripted(start + 1 + i) for i in range(count)]
        logprobs = array("f", [-1.0] * count).tobytes()
        pin.fingerprint = "f"
        return ReplayReply("f", request.question.digest, Scores(tokens, logprobs, [1] * count), 0)

    async def describe(self) -> dict[str, Any]:
        return {"fingerprint": "f"}


async def post(app: Any, body: dict[str, Any]) -> int:
    """Run one streaming request through the ASGI app; returns the number of response bytes."""
    data, size, gone = json.dumps(body).encode(), 0, asyncio.Event()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json"), (b"host", b"b")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal size
        assert message.get("status", 200) == 200, message
        size += len(message.get("body", b""))

    await app(scope, receive, send)
    gone.set()
    return size


async def measure(requests: int, tokens: int) -> dict[str, Any]:
    results = {}
    for name, deterministic, wrong in (
        ("ordinary", False, 0),
        ("deterministic", True, 0),
        ("rollbacks", True, 2),
        ("traced", True, 2),  # spans are made, and go nowhere
    ):
        hub: Any = ScriptedHub(wrong)
        verifiers: Any = ScriptedVerifiers()
        metrics: Any = None
        config = Config.model_validate({"model": "tiny", "audit": {"share": 0}})
        core: Any = RouterCore(config, hub, verifiers, metrics)
        if name == "traced":
            core.tracing = SpanTracing(TracerProvider(shutdown_on_exit=False))
        arguments = ["--model", str(tiny_model()), "--served-model-name", "m", "--enforce-eager", "--disable-log-stats"]
        frontend = await make_frontend(core, [*arguments, "--max-model-len", "4096"], window_size=32)
        core.fail, core.structured_outputs = frontend.fail, frontend.structured_outputs
        quotas = Quotas(config.router.quota, 0, lambda _: None)
        app = in_front_of(frontend.app, config, [], frontend.generation_config, verifiers, quotas)
        playing = asyncio.create_task(hub.play())
        body = {"model": "m", "prompt": "x " * 50, "max_tokens": tokens, "temperature": 0, "stream": True}
        body |= {"ignore_eos": True, "is_deterministic": deterministic}
        await post(app, body)
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(post(app, body) for _ in range(requests)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        playing.cancel()
        results[name] = {
            "cpu_us_per_token": round(1e6 * cpu / (requests * tokens), 1),
            "tokens_per_cpu_second": round(requests * tokens / cpu),
            "wall_seconds": round(wall, 2),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = asyncio.run(measure(args.requests, args.tokens))
    if args.json:
        print(json.dumps(results))
        return
    for name, result in results.items():
        print(f"{name:14} {result['cpu_us_per_token']:8} us CPU/token {result['tokens_per_cpu_second']:8} tokens/CPU s")


if __name__ == "__main__":
    main()
