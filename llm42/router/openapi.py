"""``GET /openapi.json``: vLLM's own description of the routes that are served, and what this project adds to them."""

from typing import Any

from fastapi import FastAPI

import llm42
from llm42.receipt import Receipt
from llm42.router import identity, receipts
from llm42.router.admission import EXPECTED, FLAG, RECEIPT, STATS
from llm42.router.middleware import ENDPOINTS

_REFERENCE = "#/components/schemas/{model}"
_ERROR = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="ErrorResponse")}}}
_FIELDS = {
    FLAG: ("boolean", "Verify the answer: the same bits for the same request, or an error."),
    EXPECTED: ("string", "Answer with this `system_fingerprint` or with a 412. Deterministic requests only."),
    RECEIPT: ("boolean", "Put a receipt for each choice into the response. Deterministic requests only."),
    STATS: ("boolean", "Put into the response what it took to verify it. Deterministic requests only."),
}
_ERRORS = {
    400: "The request is malformed, or deterministic and asks for what is not verified.",
    401: "An API key is asked for, and a right one was not sent.",
    404: "No such model.",
    408: "The body did not come in time.",
    412: "The verifiers' fingerprint is not the expected one.",
    413: "The body is too large.",
    429: "The API key has used up its quota of deterministic answers. Ask again after `Retry-After`.",
    500: "The model computes no usable logits for this request, or a bug.",
    503: "Not now: no verifier answered, an ordinary request's engine was lost, or too many wait. Ask again after "
    "`Retry-After`.",
}


def describe(app: FastAPI) -> None:
    """Make the document of ``app`` ours. Its routes may still change, until somebody asks for it."""
    app.title, app.version = "LLM-42", llm42.__version__
    of_vllm = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            of_vllm()
            assert app.openapi_schema is not None
            _add_ours(app.openapi_schema)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # how FastAPI wants it done


def _add_ours(document: dict[str, Any]) -> None:
    paths, schemas = document["paths"], document["components"]["schemas"]
    for path in ENDPOINTS:
        operation = paths[path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        schemas[body]["properties"] |= {
            name: {"anyOf": [{"type": kind}, {"type": "null"}], "default": None, "description": text}
            for name, (kind, text) in _FIELDS.items()
        }
        operation["responses"] |= _errors(*_ERRORS)
    receipt = Receipt.model_json_schema(ref_template=_REFERENCE)
    schemas |= receipt.pop("$defs", {})
    schemas["Receipt"] = receipt
    paths[identity.PATH] = {
        "get": {
            "summary": "The verifiers' fingerprint, what it is made of, and their start-up audit",
            "responses": {"200": {"description": "As the fingerprint's parts are now."}, **_errors(401, 503)},
        }
    }
    paths[receipts.PATH] = {
        "post": {
            "summary": "Replay a receipt",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Receipt")}}},
            },
            "responses": {
                "200": {"description": "Whether it is confirmed, and if not, the first window that differs."},
                **_errors(400, 401, 408, 412, 413, 429, 500, 503),
            },
        }
    }
    for operations in paths.values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's, for which vLLM answers 400


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): {"description": _ERRORS[status], "content": _ERROR} for status in statuses}
