"""Keeps what one request is told apart, where vLLM would join what its reader has not taken yet.

How much is joined follows from how busy the frontend is, and vLLM's parsers of reasoning and tool calls make other
messages of other pieces.

Relies on vLLM 0.32.0: ``AsyncLLM`` makes a ``RequestOutputCollector`` for each request, in the task that serves it, by
the name in its module; ``put``, ``get`` and ``get_nowait`` with ``output`` between them.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.v1.engine import async_llm
from vllm.v1.engine.output_processor import RequestOutputCollector


class SeparateOutputs(RequestOutputCollector):  # type: ignore[misc]
    """As many outputs as were put: no more than the request has tokens."""

    def __init__(self, output_kind: Any, request_id: str) -> None:
        super().__init__(output_kind, request_id)
        self._waiting: deque[Any] = deque()

    def put(self, output: Any) -> None:
        if self.output is None or isinstance(output, Exception):
            super().put(output)
        else:
            self._waiting.append(output)

    async def get(self) -> Any:
        output = await super().get()
        self._next()
        return output

    def get_nowait(self) -> Any:
        output = super().get_nowait()
        self._next()
        return output

    def _next(self) -> None:
        if self._waiting:
            super().put(self._waiting.popleft())


def keep_apart(wanted: Callable[[], bool]) -> None:
    """In this process, for the requests for which ``wanted`` says so, in the task that serves each."""

    def collector(output_kind: Any, request_id: str) -> RequestOutputCollector:
        return (SeparateOutputs if wanted() else RequestOutputCollector)(output_kind, request_id)

    async_llm.RequestOutputCollector = collector
