"""LoRA adapters in vLLM's frontend: names of models, and numbers that the engines know."""

import asyncio
import pickle
from collections.abc import Awaitable
from typing import Any

import httpx
import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest

from llm42.config import Audit, Config
from llm42.internals.adapters import adapter_arguments
from llm42.internals.core_client import TextCore, adapter_of, commit_output, draft_request
from llm42.internals.frontend import make_frontend
from llm42.protocol import GREEDY, Commit, Finish, Question, ReplayReply, ReplayRequest, Scores, StartDraft
from llm42.router.admission import FLAG
from llm42.router.answer import ANSWER, Answer
from llm42.router.core import RouterCore
from llm42.router.verifiers import VerifierPool
from tests.protocol.model import canonical_token
from tests.router.test_deterministic import PROMPT, TIMEOUTS, Hub, Metrics, Verifiers

CONFIG = Config(adapters={"lisp": "/adapters/lisp, =", "drawl": "/adapters/drawl"}, audit=Audit(share=0))
PATHS = {name: CONFIG.adapters[name] for name in CONFIG.adapter_numbers}


class Core(TextCore):
    """Says one token, and remembers what it was asked."""

    def __init__(self, numbers: dict[str, int] = CONFIG.adapter_numbers) -> None:
        super().__init__(numbers)
        self.asked: list[EngineCoreRequest] = []
        self._outputs: asyncio.Queue[EngineCoreOutput] = asyncio.Queue()

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.asked.append(request)
        self._outputs.put_nowait(commit_output(request, Commit(Scores([5], bytes(4), [1]), Finish.LENGTH)))

    async def get_output_async(self) -> EngineCoreOutputs:
        return EngineCoreOutputs(outputs=[await self._outputs.get()])

    async def abort_requests_async(self, request_ids: list[str]) -> None: ...

    def abort(self, request_ids: list[str]) -> None: ...

    def shutdown(self, timeout: float | None = None) -> None: ...


@pytest.mark.timeout(200)
async def test_names_and_numbers(tiny_path: str) -> None:
    core = Core()
    arguments = ["--model", tiny_path, "--served-model-name", "m", *adapter_arguments(PATHS), "--enforce-eager"]
    frontend = await make_frontend(core, arguments, 32)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(frontend.app), base_url="http://llm42") as client:

            async def ask(model: str) -> tuple[int, Any]:
                body = {"model": model, "prompt": [1, 2], "max_tokens": 1}
                response = await client.post("/v1/completions", json=body)
                return response.status_code, response.json()

            listed = (await client.get("/v1/models")).json()["data"]
            answers = {model: await ask(model) for model in ("m", "drawl", "lisp")}
            unknown, error = await ask("slang")
            loaded = await client.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "/x"})
    finally:
        frontend.shutdown()
    assert [(card["id"], card["parent"]) for card in listed] == [("m", None), ("drawl", "m"), ("lisp", "m")]
    assert {model: (status, said["model"]) for model, (status, said) in answers.items()} == {
        model: (200, model) for model in ("m", "drawl", "lisp")
    }
    assert (unknown, error["error"]["param"], loaded.status_code) == (404, "model", 404)
    assert [adapter_of(request) for request in core.asked] == ["", "drawl", "lisp"]
    plain, drawl, lisp = core.asked
    assert (drawl.lora_request.lora_int_id, lisp.lora_request.lora_int_id) == (1, 2)
    assert lisp.lora_request.lora_path == CONFIG.adapters["lisp"]
    for request in (plain, lisp):
        assert draft_request(request, "d", StartDraft(1, [1], 8), GREEDY).lora_request == request.lora_request


@pytest.mark.timeout(200)
async def test_a_frontend_that_numbers_them_otherwise_does_not_start(tiny_path: str) -> None:
    arguments = ["--model", tiny_path, *adapter_arguments({"lisp": "/l", "drawl": "/d"}), "--enforce-eager"]
    with pytest.raises(ValueError, match="'lisp' is not one of this deployment's"):
        await make_frontend(Core(), arguments, 32)


class Listening(Verifiers):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def remote(self, request: ReplayRequest, **wish: Any) -> Awaitable[ReplayReply]:
        self.asked.append(request.question.adapter)
        return super().remote(request, **wish)


async def test_questions_audits_and_receipts_name_it() -> None:
    verifiers, hub, answer = Listening(), Hub(canonical_token), Answer(with_receipts=True)
    pool = VerifierPool(verifiers, TIMEOUTS, Metrics())  # type: ignore[arg-type]
    core = RouterCore(CONFIG, hub, pool, Metrics())  # type: ignore[arg-type]
    core.structured_outputs = None
    params = SamplingParams(temperature=0, max_tokens=20, extra_args={FLAG: 1})
    request = EngineCoreRequest("r", PROMPT, None, params, None, 0.0, LoRARequest("drawl", 1, "/d"), None, None)
    ANSWER.set(answer)
    await core.add_request_async(pickle.loads(pickle.dumps(request)))
    async with asyncio.timeout(10):
        await asyncio.gather(*core._sessions.values())
    await core.close()
    assert set(verifiers.asked) == {"drawl"}
    [transcript] = answer.transcripts.values()
    assert (transcript.question("f").question.adapter, transcript.receipt("f", 3).adapter) == ("drawl", "drawl")


def test_it_is_part_of_the_question() -> None:
    plain, drawl, lisp = (Question(b"\1\0\0\0", 0, adapter=name) for name in ("", "drawl", "lisp"))
    assert len({plain.digest, drawl.digest, lisp.digest}) == 3
