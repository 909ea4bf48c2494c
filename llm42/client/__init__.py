"""Offline batches: requests in, verified answers with their fingerprint out, the same bits as online.

::

    from llm42.client import Defaults, Options, complete_batch

    outcomes = complete_batch(
        ["The capital of France is", {"messages": [{"role": "user", "content": "What is 2 + 2?"}]}],
        Options("http://127.0.0.1:8000/v1"),
        Defaults(fields={"temperature": 0, "max_tokens": 32}),
    )
"""

from llm42.client.batch import Batch, Summary, complete_batch, complete_batch_async
from llm42.client.errors import BatchError, FingerprintError, InputError, OutputError, UnverifiedError
from llm42.client.outcome import Failure, Outcome, Reply
from llm42.client.request import Defaults, Request, make_requests, parse_lines
from llm42.client.server import Options
from llm42.client.store import Store

__all__ = [
    "Batch",
    "BatchError",
    "Defaults",
    "Failure",
    "FingerprintError",
    "InputError",
    "Options",
    "Outcome",
    "OutputError",
    "Reply",
    "Request",
    "Store",
    "Summary",
    "UnverifiedError",
    "complete_batch",
    "complete_batch_async",
    "make_requests",
    "parse_lines",
]
