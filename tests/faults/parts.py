"""The real parts, two of them with a way to make them misbehave or to look into them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import llm42.app
from llm42.config import Config
from llm42.fastpath import deployment as fastpath
from llm42.protocol import ReplayReply, ReplayRequest
from llm42.protocol.errors import ReplayFailed
from llm42.verifier import deployment as verifier
from tests.faults.orders import Order, Orders

FOREIGN = "f0" * 32


class Verifier(verifier.Verifier):
    """Obeys the orders that it finds for itself; whatever it spoils is spoilt after an honest replay."""

    def __init__(self, config: Config, pool: str) -> None:
        super().__init__(config, pool)
        self._orders = Orders.here()
        self._last: ReplayReply | None = None

    async def replay(self, request: ReplayRequest, **hints: Any) -> ReplayReply:
        order = self._orders.read(self._replica_id)
        honest = partial(super().replay, request, **hints)
        if order is None or random.random() >= order.share:
            return await honest()
        if order.kind == "foreign" and request.fingerprint is None:
            return await honest()  # whoever accepts any pool may be answered by any
        return await self._spoilt(order, honest)

    async def waiting(self) -> int:
        """Replays that wait for pages."""
        return len(self._engine._scheduler._waiting)

    async def _spoilt(self, order: Order, honest: Callable[[], Awaitable[ReplayReply]]) -> ReplayReply:
        if order.kind == "error":
            self._orders.done(self._replica_id)
            raise ReplayFailed("ordered to fail")
        if order.kind == "crash":
            self._orders.done(self._replica_id)
            raise RuntimeError("ordered to raise what nobody foresaw")
        reply = await honest()
        if order.kind in ("delay", "late"):
            try:
                await asyncio.sleep(order.seconds)
            except asyncio.CancelledError:
                if order.kind == "delay":
                    raise  # the caller has other plans
                await asyncio.sleep(1.0)  # and answers all the same
            self._orders.done(self._replica_id)
            return reply
        if order.kind == "stale":
            late, self._last = self._last, reply
            if late is None or late.digest == reply.digest:
                return reply
            self._orders.done(self._replica_id)
            return late
        self._orders.done(self._replica_id)
        return garbled(reply, order.kind)


def garbled(reply: ReplayReply, kind: str) -> ReplayReply:
    """``reply`` with wrong tokens; except for "lie", the rest of it gives it away."""
    right = reply.scores
    logprobs = (np.frombuffer(right.logprobs, np.float32) - 1).tobytes()
    wrong = replace(right, tokens=[token ^ 1 for token in right.tokens], logprobs=logprobs)
    changes: dict[str, dict[str, Any]] = {
        "digest": {"digest": bytes(len(reply.digest))},
        "tokens": {"scores": replace(wrong, tokens=[*wrong.tokens, 7])},
        "logprobs": {"scores": replace(wrong, logprobs=wrong.logprobs[:-4])},
        "ranks": {"scores": replace(wrong, ranks=[])},
        "empty": {"scores": wrong[:0]},
        "foreign": {"fingerprint": FOREIGN},
        "lie": {},
    }
    return replace(reply, **{"scores": wrong, **changes[kind]})


class FastPath(fastpath.FastPath):
    """Counts what vLLM's scheduler throws out for want of KV memory."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._preemptions = 0
        scheduler = self._engine.core.client.engine_core.scheduler
        preempt = scheduler._preempt_request

        def counting(*args: Any, **kwargs: Any) -> Any:
            self._preemptions += 1
            return preempt(*args, **kwargs)

        scheduler._preempt_request = counting

    async def preemptions(self) -> int:
        return self._preemptions


def build(args: dict[str, Any]) -> Any:
    """``llm42.app:build`` with these parts instead of the real ones."""
    with mock.patch.multiple(llm42.app, Verifier=Verifier, FastPath=FastPath):
        return llm42.app.build(args)
