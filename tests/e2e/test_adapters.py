"""LoRA adapters over HTTP: one output each, as bits, beside those of others and of none in batches and passes."""

import asyncio
import random

import httpx
import openai
import pytest

from tests.e2e.client import Answer, Client, random_prompt
from tests.e2e.cluster import CALL_S, Cluster
from tests.e2e.test_audit import audits, until_confirmed
from tests.e2e.test_what_an_answer_says import raw

MODELS = ("tiny", "drawl", "lisp")
PROMPTS = [random_prompt(800 + index, 20 + 25 * index) for index in range(3)]
LENGTH = 40

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(audited: Cluster) -> Cluster:
    return audited


async def test_one_output_each_whatever_the_others_have(cluster: Cluster, client: Client) -> None:
    questions = [(model, index) for model in MODELS for index in range(len(PROMPTS))]
    found: dict[tuple[str, int], set[Answer]] = {question: set() for question in questions}
    drafted: dict[tuple[str, int], int] = {}
    before = (await audits(cluster)).get("confirmed", 0.0)

    async def ask(model: str, index: int, *, stream: bool = False) -> None:
        found[model, index].add(await client.complete(PROMPTS[index], LENGTH, stream=stream, model=model))

    async def ordinary(model: str, index: int) -> None:
        answer = await client.complete(PROMPTS[index], LENGTH, model=model, is_deterministic=False)
        drafted[model, index] = answer.token_ids[0]

    for question in questions:
        await ask(*question)
    for burst in range(2):
        random.Random(burst).shuffle(questions)
        beside = map(ordinary, *zip(*questions, strict=True))
        await asyncio.gather(*(ask(*question, stream=burst == 1) for question in questions), *beside)
    assert [len(answers) for answers in found.values()] == [1] * len(found)
    first = {question: answer.token_ids[0] for question, (answer,) in found.items()}
    assert len({answer.logprobs for (answer,) in found.values()}) == len(found), "each of them is heard"
    # The fast path may drift, but it puts nobody's adapter on another's tokens.
    assert sum(first[question] == drafted[question] for question in questions) > len(questions) * 3 // 4
    await until_confirmed(cluster, more_than=before)


async def test_a_receipt_names_its_adapter(cluster: Cluster) -> None:
    said = (await raw(cluster, model="lisp", temperature=0, is_deterministic=True, receipt=True)).json()
    (receipt,) = said["determinism"]["receipts"]
    assert (said["model"], receipt["adapter"]) == ("lisp", "lisp")
    async with httpx.AsyncClient(base_url=cluster.url, trust_env=False, timeout=CALL_S) as http:

        async def verify(**changes: str) -> httpx.Response:
            return await http.post("/v1/receipts/verify", json={**receipt, **changes})

        assert (await verify()).json()["confirmed"] is True
        assert (await verify(adapter="drawl")).json()["confirmed"] is False
        refused = await verify(adapter="slang")
        assert (refused.status_code, "no adapter 'slang'" in refused.text) == (400, True)
        parts = (await http.get("/fingerprint")).json()["parts"]
    assert list(parts["adapters"]) == ["drawl", "lisp"]


@pytest.mark.parametrize("is_deterministic", [True, False])
async def test_an_unknown_one_is_an_unknown_model(client: Client, is_deterministic: bool) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.complete(PROMPTS[0], 4, model="slang", is_deterministic=is_deterministic)
