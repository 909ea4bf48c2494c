"""A batch: many requests, some at a time, all answered by verifiers of one fingerprint."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm42.check.client import CheckError
from llm42.check.client import Server as Models
from llm42.client.errors import BatchError, FingerprintError
from llm42.client.outcome import Outcome
from llm42.client.request import Defaults, Request, make_requests
from llm42.client.server import OnWait, Options, Server
from llm42.client.store import Store


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the output, whenever it was written. Tokens are those of the answers, ``seconds`` those of this run.

    ``asked`` of the ``requests`` were left for this run.
    """

    requests: int
    answered: int
    failed: int
    asked: int
    prompt_tokens: int
    completion_tokens: int
    fingerprint: str | None
    seconds: float


class Batch:
    """One run over ``requests``; what it has is in ``store`` also after :meth:`run` has raised.

    ``on_outcome`` is called for each request that is done, and once with None for each that was done before.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        store: Store,
        options: Options,
        *,
        on_outcome: Callable[[Outcome | None], None] = lambda _: None,
        on_wait: OnWait = lambda *_: None,
    ) -> None:
        self._requests = requests
        self._store = store
        self._options = options
        self._on_outcome = on_outcome
        self._on_wait = on_wait
        self._fingerprint: str | None = None
        self._asked = 0
        self._seconds = 0.0

    async def run(self) -> None:
        """Raises BatchError as soon as the batch cannot go on; what is under way then is given up."""
        began = time.monotonic()
        try:
            requests = await self._with_model()
            left = self._store.left(requests)
            self._fingerprint = self._settled_fingerprint()
            for _ in range(len(requests) - len(left)):
                self._on_outcome(None)
            async with Server(self._options, self._on_wait) as server:
                await self._ask_all(server, iter(left))
            self._store.settle(requests)
        finally:
            self._seconds = time.monotonic() - began

    @property
    def summary(self) -> Summary:
        """What there is by now."""
        ids = {request.custom_id for request in self._requests}
        entries = [entry for custom_id, entry in self._store.entries.items() if custom_id in ids]
        answers = [entry for entry in entries if entry.fingerprint is not None]
        return Summary(
            requests=len(self._requests),
            answered=len(answers),
            failed=len(entries) - len(answers),
            asked=self._asked,
            prompt_tokens=sum(entry.prompt_tokens for entry in answers),
            completion_tokens=sum(entry.completion_tokens for entry in answers),
            fingerprint=self._fingerprint,
            seconds=self._seconds,
        )

    async def _with_model(self) -> list[Request]:
        if all(request.body.get("model") is not None for request in self._requests):
            return list(self._requests)
        options = self._options
        try:
            async with Models(options.base_url, options.api_key, options.timeout_s) as models:
                model = await models.first_model()
        except CheckError as error:
            raise BatchError(str(error)) from error
        return [request.with_model(model) for request in self._requests]

    def _settled_fingerprint(self) -> str | None:
        """What is known before anything is asked."""
        there, wanted = self._store.fingerprint(), self._options.expected_fingerprint
        if there is not None and wanted not in (None, there):
            raise FingerprintError(
                f"{self._store.path} holds answers of the fingerprint {there}, not of the expected {wanted}: "
                "name another output"
            )
        return there or wanted

    async def _ask_all(self, server: Server, left: Iterator[Request]) -> None:
        # One at a time until it is known whose answers these are: no two may come from different verifiers.
        while self._fingerprint is None and (request := next(left, None)) is not None:
            await self._ask(server, request)
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.concurrency):
                    group.create_task(self._work(server, left))
        except* BatchError as failures:
            failure = failures.exceptions[0]
        if failure is not None:
            raise failure

    async def _work(self, server: Server, left: Iterator[Request]) -> None:
        for request in left:
            await self._ask(server, request)

    async def _ask(self, server: Server, request: Request) -> None:
        self._asked += 1
        outcome = await server.ask(request, self._fingerprint)
        self._store.add(outcome)
        self._fingerprint = self._fingerprint or outcome.fingerprint
        self._on_outcome(outcome)


async def complete_batch_async(
    requests: Iterable[Any], options: Options, defaults: Defaults | None = None, *, output: Path | str | None = None
) -> list[Outcome]:
    """Answer ``requests`` (objects as in the lines of an input file, or prompts), and give the outcomes in their order.

    With ``output``, that file is written and resumed as ``llm42 batch`` does. A request that failed for good has an
    ``error``, all others are verified; raises BatchError if the batch cannot be finished.
    """
    with tempfile.TemporaryDirectory(prefix="llm42-batch-") as scratch:
        made = make_requests(requests, defaults or Defaults())
        with Store(Path(scratch) / "output.jsonl" if output is None else Path(output)) as store:
            await Batch(made, store, options).run()
            return [store.read(request.custom_id) for request in made]


def complete_batch(
    requests: Iterable[Any], options: Options, defaults: Defaults | None = None, *, output: Path | str | None = None
) -> list[Outcome]:
    """:func:`complete_batch_async`, for programs without an event loop."""
    return asyncio.run(complete_batch_async(requests, options, defaults, output=output))
