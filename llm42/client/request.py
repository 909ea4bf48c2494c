"""What a batch asks: one JSON object for each request. Pure.

An object is a request of the OpenAI batch format (``custom_id``, ``url``, ``body``), or simply the body itself, which
may hold a ``custom_id`` too. Either way the body is what an online request would send.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llm42.client.errors import InputError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_WRAPPER = frozenset({"custom_id", "method", "url", "body"})
_LENGTHS = frozenset({"max_tokens", "max_completion_tokens"})
_SETTLED: tuple[tuple[str, tuple[bool | None, ...], str], ...] = (
    ("is_deterministic", (None, True), "a batch has deterministic requests only"),
    ("stream", (None, False), "a batch takes whole answers"),
    ("determinism_stats", (None, False), "these differ from run to run, and the lines of a batch must not"),
    ("expected_fingerprint", (None,), "it is for the whole batch, so give it there"),
)
SEED_BITS = 53
"""Every JSON reader keeps whole numbers of so many bits."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request gets that does not say it itself. ``fields`` are any parameters of the body.

    ``seed`` is not sent as it is: each request gets one of its own, made from ``seed`` and its ``custom_id``. The same
    seed in all of them would be the same luck in all of them, and an average over them as uncertain as a single one.
    """

    model: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """``index`` counts from 0 in the order of the input; ``body`` is what is sent."""

    index: int
    custom_id: str
    url: str
    body: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of url and body: equal for requests that ask the same."""
        canonical = json.dumps([self.url, self.body], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def with_model(self, model: str) -> "Request":
        """The same request, to ``model`` unless it names one."""
        return self if self.body.get("model") is not None else replace(self, body={**self.body, "model": model})


def parse_lines(lines: Iterable[bytes]) -> Iterator[Any]:
    """The objects of a JSONL file; empty lines count for nothing. Raises InputError with the line's number."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} of the input is no JSON: {error}") from None


def make_requests(objects: Iterable[Any], defaults: Defaults) -> list[Request]:
    """A request for each object, in their order; a string is a prompt. Raises InputError."""
    requests: list[Request] = []
    seen: dict[str, int] = {}
    for index, found in enumerate(objects):
        request = _request(index, {"prompt": found} if isinstance(found, str) else found, defaults)
        first = seen.setdefault(request.custom_id, index)
        if first != index:
            raise InputError(f"requests {first} and {index} (from 0) have the same custom_id, {request.custom_id!r}")
        requests.append(request)
    if not requests:
        raise InputError("the input holds no requests")
    return requests


def _request(index: int, found: Any, defaults: Defaults) -> Request:
    def refused(reason: str) -> InputError:
        return InputError(f"request {index} (from 0): {reason}")

    if not isinstance(found, Mapping):
        raise refused("it is no JSON object")
    custom_id = found.get("custom_id", f"request-{index}")
    if not isinstance(custom_id, str) or not custom_id:
        raise refused(f"custom_id must be a text that is not empty, got {custom_id!r}")
    if "body" in found:
        unknown = sorted(found.keys() - _WRAPPER)
        if unknown:
            raise refused(f"{unknown[0]} has no meaning beside body: put parameters into body")
        body = found["body"]
    else:
        body = {name: value for name, value in found.items() if name not in _WRAPPER}
    if not isinstance(body, Mapping):
        raise refused("body must be an object")
    try:
        body = json.loads(json.dumps(_complete(body, custom_id, defaults), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(f"it cannot be sent as JSON: {error}") from None
    if ("messages" in body) == ("prompt" in body):
        raise refused("it must have either prompt or messages")
    url = CHAT if "messages" in body else COMPLETIONS
    for name, said, right in (("method", found.get("method", "POST"), "POST"), ("url", found.get("url", url), url)):
        if said != right:
            raise refused(f"{name} must be {right} for this body, got {said!r}")
    for name, settled, advice in _SETTLED:
        if body.pop(name, None) not in settled:
            raise refused(f"{name} cannot be chosen: {advice}")
    return Request(index, custom_id, url, {**body, "is_deterministic": True})


def _complete(body: Mapping[str, Any], custom_id: str, defaults: Defaults) -> dict[str, Any]:
    """``body`` with the defaults for what it leaves open."""
    complete = {**defaults.fields, **body}
    if _LENGTHS & body.keys():
        complete = {name: value for name, value in complete.items() if name in body or name not in _LENGTHS}
    if defaults.model is not None:
        complete.setdefault("model", defaults.model)
    if defaults.seed is not None and complete.get("seed") is None:
        digest = hashlib.sha256(json.dumps([defaults.seed, custom_id]).encode()).digest()
        complete["seed"] = int.from_bytes(digest[:8]) >> (64 - SEED_BITS)
    return complete


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
