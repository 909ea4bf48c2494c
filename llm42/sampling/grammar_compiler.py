"""Compiling grammars without anybody waiting: in threads beside the caller's, a bounded number of them, remembered.

xgrammar lets go of Python's lock while it compiles. Most schemas take milliseconds; one may take seconds or more, and
cannot be interrupted: it keeps its thread until it is done, while callers are told after ``timeout_s``.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Full, Queue
from typing import Literal

from xgrammar import CompiledGrammar

from llm42.protocol.steering import Grammar

State = Literal["ready", "compiling", "refused", "busy"]
Compile = Callable[[Grammar], CompiledGrammar]


class GrammarBusy(Exception):
    """Too many grammars are being compiled: another verifier, or a later try, may do better."""


@dataclass(slots=True)
class _Order:
    grammar: Grammar
    compiled: "Future[CompiledGrammar]" = field(default_factory=Future)
    began: float | None = None
    """Seconds, on the monotonic clock; None while it waits for a thread."""


class GrammarCompiler:
    """``compile`` in ``threads`` threads, with ``waiting`` more in the queue; the last ``kept`` are remembered.

    Any thread may call. Where a grammar may stop is no matter of compiling: grammars that differ in nothing else share.
    """

    def __init__(
        self, compile: Compile, *, kept: int = 64, threads: int = 2, waiting: int = 32, timeout_s: float = 30.0
    ) -> None:
        self._compile = compile
        self._kept = kept
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._orders: OrderedDict[Grammar, _Order] = OrderedDict()
        self._queue: Queue[_Order] = Queue(maxsize=waiting)
        for number in range(threads):
            # Daemons: a grammar that never ends must not keep the process.
            threading.Thread(target=self._work, name=f"llm42-grammar-{number}", daemon=True).start()

    def state(self, grammar: Grammar) -> tuple[State, str]:
        """How far it is, and why not further; never waits. The first call starts it.

        "refused" is for good ("takes too long" until it has come to an end after all), "busy" is not.
        """
        try:
            order = self._ordered(grammar)
        except GrammarBusy as busy:
            return "busy", str(busy)
        if not order.compiled.done():
            late = order.began is not None and time.monotonic() - order.began > self._timeout_s
            return ("refused", self._too_long) if late else ("compiling", "")
        error = order.compiled.exception()
        return ("refused", _reason(error)) if error is not None else ("ready", "")

    def get(self, grammar: Grammar) -> CompiledGrammar:
        """The compiled grammar; waits for it, if need be.

        Raises ValueError if it cannot be compiled (in time), and :class:`GrammarBusy`.
        """
        try:
            return self._ordered(grammar).compiled.result(self._timeout_s)
        except TimeoutError:
            raise ValueError(self._too_long) from None
        except GrammarBusy:
            raise
        except Exception as error:  # xgrammar's, of many kinds: what it says of this grammar
            raise ValueError(_reason(error)) from error

    @property
    def _too_long(self) -> str:
        return f"the grammar takes longer than {self._timeout_s:g} s to compile"

    def _ordered(self, grammar: Grammar) -> _Order:
        key = replace(grammar, stops=())
        with self._lock:
            order = self._orders.get(key)
            if order is None:
                order = _Order(key)
                try:
                    self._queue.put_nowait(order)
                except Full:
                    raise GrammarBusy(f"{self._queue.maxsize} grammars wait to be compiled") from None
                self._orders[key] = order
                self._forget()
            self._orders.move_to_end(key)
            return order

    def _forget(self) -> None:
        """The least recently used ones that have ended; the others are few."""
        ended = [key for key, order in self._orders.items() if order.compiled.done()]
        for key in ended[: max(0, len(self._orders) - self._kept)]:
            del self._orders[key]

    def _work(self) -> None:
        while True:
            order = self._queue.get()
            order.began = time.monotonic()
            try:
                compiled = self._compile(order.grammar)
            except Exception as error:  # told to whoever asks for it
                order.compiled.set_exception(error)
            else:
                order.compiled.set_result(compiled)


def _reason(error: BaseException) -> str:
    """xgrammar begins with the time and the line of its source."""
    text = str(error).strip()
    head, _, rest = text.partition(": ")
    return f"the grammar does not compile: {rest if head.startswith('[') and rest else text}"
