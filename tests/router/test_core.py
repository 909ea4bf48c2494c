"""The last gate before the engines: a request that came past the middleware gets no token."""

import asyncio
import contextvars
from http import HTTPStatus

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from llm42.router.admission import FLAG
from llm42.router.answer import ANSWER, Answer
from llm42.router.core import RouterCore
from llm42.router.verifiers import VerifierPool
from tests.protocol.model import canonical_token
from tests.router.test_deterministic import PROMPT, Hub, Metrics, Verifiers
from tests.router.test_tracing import CONFIG


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("decided", ["deterministic", "ordinary", "not at all"])
async def test_who_may_pass(flagged: bool, decided: str) -> None:
    pool = VerifierPool(Verifiers(), CONFIG.timeouts, Metrics())  # type: ignore[arg-type]
    hub = Hub(canonical_token)
    core = RouterCore(CONFIG, hub, pool, Metrics())  # type: ignore[arg-type]
    core.structured_outputs = None
    failures: list[HTTPStatus] = []
    core.fail = lambda request_id, status, message, param=None: failures.append(status)
    params = SamplingParams(temperature=0, max_tokens=4, extra_args={FLAG: 1} if flagged else None)
    request = EngineCoreRequest("r", PROMPT, None, params, None, 0.0, None, None, None)

    async def add() -> None:
        if decided != "not at all":
            ANSWER.set(Answer() if decided == "deterministic" else None)
        await core.add_request_async(request)

    await asyncio.get_running_loop().create_task(add(), context=contextvars.Context())
    begun = bool(core._sessions or core._placing or hub.running)
    if decided == ("deterministic" if flagged else "ordinary"):
        assert (failures, begun) == ([], True)
    else:
        assert (failures, begun) == ([HTTPStatus.INTERNAL_SERVER_ERROR], False)
    await core.close()
