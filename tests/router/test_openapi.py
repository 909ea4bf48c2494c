"""The document has what this project adds, and only routes that are served."""

from fastapi import FastAPI
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from llm42.protocol.selection import Selection
from llm42.receipt import issue
from llm42.router.openapi import describe
from tests.router.test_api_page import STATUSES


class Completion(BaseModel):
    prompt: str


class Chat(BaseModel):
    messages: list[str]


def test_our_fields_and_routes_are_described() -> None:
    app = FastAPI()

    @app.post("/v1/completions")
    async def completions(body: Completion) -> None: ...

    @app.post("/v1/chat/completions")
    async def chat(body: Chat) -> None: ...

    describe(app)
    document = app.openapi()
    assert document["info"]["title"] == "LLM-42"
    assert document["paths"].keys() == {
        "/v1/completions", "/v1/chat/completions", "/fingerprint", "/v1/receipts/verify",
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    for name, own in (("Completion", "prompt"), ("Chat", "messages")):
        ours = {"is_deterministic", "expected_fingerprint", "receipt", "determinism_stats"}
        assert schemas[name]["properties"].keys() == {own, *ours}
    responses = document["paths"]["/v1/completions"]["post"]["responses"]
    assert {int(status) for status in responses} == {200, *STATUSES}
    assert app.openapi() is document

    receipt = Draft202012Validator({"$ref": "#/components/schemas/Receipt", "components": document["components"]})
    real = issue("f", 32, Selection(), [1, 2], [3], bytes(4)).model_dump(mode="json")
    assert receipt.is_valid(real)
    assert not receipt.is_valid({**real, "token_ids": []})
    assert not receipt.is_valid({**real, "more": 1})
