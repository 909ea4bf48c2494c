"""What each API key may ask of the verifiers: answers at a time, and tokens a minute.

Tokens are charged as they are committed, and a prompt's when its session begins. To reserve them beforehand would take
`max_tokens`, which few requests say, and would refuse most of what can be answered. So a key that still has tokens may
go into debt, by no more than what it has under way; nothing new of it begins before that is paid.

There is one account for each configured key, whatever clients send.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.responses import Response

from llm42.config import Quota
from llm42.metrics.router import Limit
from llm42.router.admission import prompts_of
from llm42.router.http import openai_error
from llm42.router.overload import RETRY_AFTER_S
from llm42.router.refused import Refused

Spend = Callable[[int], None]
"""Charges so many tokens."""

MINUTE_S = 60.0


class OverQuota(Exception):
    """Not now: HTTP 429. ``retry_after_s`` are whole seconds."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def response(self) -> Response:
        error = openai_error(429, str(self), kind="rate_limit_exceeded")
        error.headers["retry-after"] = str(self.retry_after_s)
        return error


class Quotas:
    """``keys`` is how many there are; with 0, all clients share one account. ``refused`` hears of each refusal."""

    def __init__(
        self, quota: Quota, keys: int, refused: Callable[[Limit], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = quota.deterministic_requests
        self._per_minute = quota.deterministic_tokens_per_minute
        self._who = "this API key has" if keys else "the clients of this server together have"
        self._refused = refused
        self._accounts = [_Account(self._per_minute, clock) for _ in range(max(keys, 1))]

    @contextmanager
    def admit(self, client: int, answers: int = 1, param: str = "n") -> Iterator[Spend]:
        """Holds ``answers`` places of ``client`` (the number of its key), and gives what charges its tokens.

        Raises:
            OverQuota: it has to wait.
            Refused: there are never so many places; ``param`` is what asks for them.
        """
        account, most = self._accounts[client], self._most
        if most is not None and answers > most:
            message = f"{param} asks for {answers} deterministic answers at once, but {self._who} {most}: send less"
            raise Refused(param, message)
        if most is not None and account.running + answers > most:
            self._refused("requests")
            raise OverQuota(
                f"{self._who} {most} deterministic answers at a time (router.quota.deterministic_requests), and "
                f"{account.running} are under way: ask again later",
                RETRY_AFTER_S,
            )
        if (wait_s := account.wait_s()) is not None:
            self._refused("tokens")
            raise OverQuota(
                f"{self._who} {self._per_minute} tokens of deterministic answers a minute "
                f"(router.quota.deterministic_tokens_per_minute), which are used up: ask again in {wait_s} s",
                wait_s,
            )
        account.running += answers
        try:
            yield account.spend
        finally:
            account.running -= answers


class _Account:
    """A token bucket of a minute's tokens that may be overdrawn; and how many answers are under way."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float]) -> None:
        self.running = 0
        self._per_minute = per_minute
        self._left = float(per_minute or 0)
        self._clock = clock
        self._at = clock()

    def spend(self, tokens: int) -> None:
        self._refill()
        self._left -= tokens

    def wait_s(self) -> int | None:
        """Whole seconds until something is left; None: there is."""
        self._refill()
        if self._per_minute is None or self._left > 0:
            return None
        return math.floor(-self._left * MINUTE_S / self._per_minute) + 1

    def _refill(self) -> None:
        now = self._clock()
        if self._per_minute is not None:
            earned = (now - self._at) * self._per_minute / MINUTE_S
            self._left = min(self._left + earned, float(self._per_minute))
        self._at = now


def answers_of(body: Mapping[str, Any]) -> tuple[int, str]:
    """How many answers an admitted request asks for, and the parameter that says so. What vLLM will refuse counts as
    1."""
    prompts = prompts_of(body)
    n = body.get("n")
    samples = n if type(n) is int and n > 0 else 1
    return prompts * samples, "n" if samples > 1 else "prompt"
