"""One line for one request: ``name=value`` pairs, which people search with grep and Loki reads as ``logfmt``.

With Serve's JSON encoding the same names are fields of the line's object. The level is that of Serve's
``logging_config``, whose handlers get everything that is logged here.
"""

import contextvars
import json
import logging
import re

logger = logging.getLogger("ray.serve.llm42.request")

MAX_CHARACTERS = 256
"""Most that a line repeats of a value: clients may choose their requests' ids."""
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")  # printable ASCII but the space, the quote, the backslash and the equals sign

Value = str | int | float


def log_request(request_id: str, **fields: Value | None) -> None:
    """What is None is left out. Nothing is done where nobody would read it."""
    if not logger.isEnabledFor(logging.INFO):
        return
    said: dict[str, Value] = {"request_id": printable(request_id)}
    said |= {name: value for name, value in fields.items() if value is not None}
    line = " ".join(f"{name}={_pair(value)}" for name, value in said.items())
    # In an empty context: Serve would add the id of the HTTP request in whose context this runs, and vLLM's frontend
    # hands out all outputs in that of the first request it ever had.
    contextvars.Context().run(logger.info, line, extra=said)


def printable(text: str) -> str:
    """``text`` in one line of printable ASCII, and not too long: what a client has sent can forge no line."""
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    return text if _PLAIN.fullmatch(text) else json.dumps(text)[1:-1]


def _pair(value: Value) -> str:
    if not isinstance(value, str) or _PLAIN.fullmatch(value):
        return str(value)
    return f'"{value}"'
