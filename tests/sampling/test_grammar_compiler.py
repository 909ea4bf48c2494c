"""Compiling is bounded in time and number, and nobody who only asks how far it is waits."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from llm42.protocol import Grammar
from llm42.sampling.grammar_compiler import GrammarBusy, GrammarCompiler

WAIT_S = 30.0


def regex(text: str, **fields: Any) -> Grammar:
    return Grammar("regex", text, **fields)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Gate:
    """Compiles once it is open, to the grammar's text; counts."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun: list[str] = []

    def __call__(self, grammar: Grammar) -> Any:
        self.begun.append(grammar.text)
        assert self.open.wait(WAIT_S)
        if grammar.text.startswith("bad"):
            raise RuntimeError(f"[02:44:51] /project/cpp/regex_converter.cc:83: {grammar.text}: no regex")
        return grammar.text


def test_states() -> None:
    gate = Gate()
    compiler = GrammarCompiler(gate)
    assert compiler.state(regex("good")) == ("compiling", "")
    assert compiler.state(regex("bad")) == ("compiling", "")
    gate.open.set()
    until(lambda: compiler.state(regex("good"))[0] == "ready")
    assert compiler.get(regex("good", stops=(3,))) == "good", "where it stops is no matter of compiling"
    until(lambda: compiler.state(regex("bad"))[0] == "refused")
    assert compiler.state(regex("bad"))[1] == "the grammar does not compile: bad: no regex"
    with pytest.raises(ValueError, match=r"^the grammar does not compile: bad: no regex$"):
        compiler.get(regex("bad"))
    assert sorted(gate.begun) == ["bad", "good"]


def test_one_that_takes_too_long_is_refused_until_it_is_done() -> None:
    gate = Gate()
    compiler = GrammarCompiler(gate, timeout_s=0.05)
    until(lambda: compiler.state(regex("slow"))[0] == "refused")
    assert compiler.state(regex("slow"))[1] == "the grammar takes longer than 0.05 s to compile"
    with pytest.raises(ValueError, match=r"longer than 0\.05 s"):
        compiler.get(regex("slow"))
    gate.open.set()
    until(lambda: compiler.state(regex("slow"))[0] == "ready")
    assert gate.begun == ["slow"]


def test_no_more_than_so_many_wait() -> None:
    gate = Gate()
    compiler = GrammarCompiler(gate, threads=1, waiting=2)
    compiler.state(regex("0"))
    until(lambda: gate.begun == ["0"])
    states = [compiler.state(regex(str(number)))[0] for number in range(4)]
    assert states == ["compiling", "compiling", "compiling", "busy"]
    with pytest.raises(GrammarBusy, match="2 grammars wait"):
        compiler.get(regex("3"))
    gate.open.set()
    until(lambda: compiler.state(regex("2"))[0] == "ready")
    until(lambda: compiler.state(regex("3"))[0] == "ready")


def test_the_least_recently_used_is_forgotten() -> None:
    gate = Gate()
    gate.open.set()
    compiler = GrammarCompiler(gate, kept=2, threads=1)
    for text in ("a", "b", "a", "c", "a", "b"):
        compiler.get(regex(text))
    assert gate.begun == ["a", "b", "c", "b"]
