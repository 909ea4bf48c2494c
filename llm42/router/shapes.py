"""Bodies that vLLM's frontend would fail on, or hold everybody up with: refused by name, in every mode. Pure.

Its own validation tells the client about all others. These it answers with a 500, having taken a shape on trust; or it
works on them for long, on the event loop that all streams of a router share.
"""

import json
from collections.abc import Mapping
from typing import Any

from llm42.protocol.selection import EXTRA_ARG, MARGINS
from llm42.router.refused import Refused

MAX_GRAMMAR_CHARACTERS = 1 << 19
"""Of the JSON that a grammar is made from."""
MAX_BAD_WORD_CHARACTERS = 1 << 15
_INTERNAL = {
    EXTRA_ARG: "is for drafts",
    MARGINS: "is for drafts",
    "kv_transfer_params": "is for engines that hand over their caches",
}


def require_shapes(body: Mapping[str, Any]) -> None:
    """Raises Refused."""
    extra = body.get("vllm_xargs")
    for name, what in _INTERNAL.items():
        if isinstance(extra, Mapping) and name in extra:
            raise Refused(f"vllm_xargs.{name}", f"vllm_xargs.{name} {what}: leave it out")
    if not isinstance(body.get("structured_outputs"), Mapping | None):
        raise Refused("structured_outputs", f"structured_outputs must be an object, got {body['structured_outputs']!r}")
    _require_tools(body.get("tools"))
    for name in ("structured_outputs", "response_format", "tools"):
        if body.get(name) and len(json.dumps(body[name])) > MAX_GRAMMAR_CHARACTERS:
            raise Refused(name, f"{name} is longer than {MAX_GRAMMAR_CHARACTERS} characters of JSON: send less")
    words = body.get("bad_words")
    listed = words if isinstance(words, list) else [words]
    if sum(len(word) for word in listed if isinstance(word, str)) > MAX_BAD_WORD_CHARACTERS:
        raise Refused("bad_words", f"bad_words have more than {MAX_BAD_WORD_CHARACTERS} characters: send fewer")


def _require_tools(tools: Any) -> None:
    if not isinstance(tools, list):
        return  # not there, or vLLM says so
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not (isinstance(function, Mapping) and isinstance(function.get("name"), str)):
            shape = '{"type": "function", "function": {"name": "my_function"}}'
            raise Refused(f"tools.{number}", f"tools.{number} must be like {shape}, got {tool!r}")
