"""What became of a request: a line of the output.

The same request to verifiers of the same fingerprint gives the same line, byte for byte: what a server draws for each
answer anew (its id and time, how long it took) is left out.
"""

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from llm42.client.request import Request

_DRAWN = frozenset({"id", "created", "metrics"})


class Reply(BaseModel):
    """As the OpenAI batch format has it; ``body`` is the server's, without id and times."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    status_code: int
    body: dict[str, Any]


class Failure(BaseModel):
    """``code``: an HTTP status, or ``timeout``. ``param`` names the parameter that the server refused, if it did."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    code: int | str
    message: str
    param: str | None = None


class Outcome(BaseModel):
    """Either ``response`` or ``error`` is there. ``seed`` is what random choices were made from, if there were any."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    custom_id: str
    index: int
    digest: str
    verified: bool
    fingerprint: str | None
    seed: int | None
    usage: dict[str, Any] | None
    response: Reply | None
    error: Failure | None

    @classmethod
    def answered(cls, request: Request, body: dict[str, Any]) -> Self:
        """``body`` is a verified answer's."""
        usage = body.get("usage")
        return cls(
            custom_id=request.custom_id,
            index=request.index,
            digest=request.digest,
            verified=True,
            fingerprint=body["system_fingerprint"],
            seed=body["determinism"].get("seed"),
            usage=usage if isinstance(usage, dict) else None,
            response=Reply(status_code=200, body={name: value for name, value in body.items() if name not in _DRAWN}),
            error=None,
        )

    @classmethod
    def failed(cls, request: Request, code: int | str, message: str, param: str | None = None) -> Self:
        return cls(
            custom_id=request.custom_id,
            index=request.index,
            digest=request.digest,
            verified=False,
            fingerprint=None,
            seed=None,
            usage=None,
            response=None,
            error=Failure(code=code, message=message, param=param),
        )

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Raises ValueError if ``line`` is none."""
        # Not pydantic's own parser: Python's promises to keep every bit of a number.
        return cls.model_validate(json.loads(line))

    def line(self) -> bytes:
        # ASCII: a text may hold half a character, which no UTF-8 can carry.
        return json.dumps(self.model_dump(), separators=(",", ":")).encode() + b"\n"

    @property
    def texts(self) -> list[str]:
        """What each choice says; empty where the request failed."""
        choices = self.response.body["choices"] if self.response is not None else []
        return [choice["text"] if "text" in choice else choice["message"]["content"] or "" for choice in choices]
