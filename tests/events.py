"""Server-sent events, as the OpenAI routes stream them."""

import json
from typing import Any

DATA = "data: "


def events(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a whole stream; its ``[DONE]`` is none."""
    return [json.loads(line.removeprefix(DATA)) for line in text.splitlines() if line.startswith(DATA + "{")]
