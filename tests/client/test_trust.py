"""What a batch takes for an answer: verified, and of one fingerprint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm42.client import FingerprintError, UnverifiedError
from tests.client.runs import lines, run
from tests.client.server import Answer, Fake


def test_verifiers_that_change_end_the_batch(output: Path) -> None:
    fake = Fake()

    def change(number: int, _: dict[str, Any]) -> Answer:
        fake.fingerprint = "fp-2" if number > 5 else "fp-1"
        return None

    fake.disturb = change
    with pytest.raises(FingerprintError, match=r"HTTP 412: .*fp-2.*held to fp-1"):
        run(fake, output)
    assert {outcome.fingerprint for outcome in lines(output)} == {"fp-1"}
    before = output.read_bytes()
    with pytest.raises(FingerprintError, match="fp-1"):
        run(Fake(fingerprint="fp-2"), output)
    assert output.read_bytes() == before
    assert run(Fake(), output).answered == 12


def test_a_server_that_says_nothing_of_the_change_is_found_out(output: Path) -> None:
    def lie(answer: dict[str, Any]) -> None:
        answer["system_fingerprint"] = "fp-1" if len(fake.bodies) < 5 else "fp-2"

    fake = Fake(edit=lie)
    with pytest.raises(FingerprintError, match="has the fingerprint fp-2"):
        run(fake, output)
    assert {outcome.fingerprint for outcome in lines(output)} == {"fp-1"}


def test_an_expected_fingerprint_holds_from_the_first_request(output: Path) -> None:
    fake = Fake()
    with pytest.raises(FingerprintError, match="HTTP 412"):
        run(fake, output, expected_fingerprint="fp-0")
    assert output.read_bytes() == b""
    assert run(Fake(fingerprint="fp-0"), output, expected_fingerprint="fp-0").answered == 12
    with pytest.raises(FingerprintError, match="holds answers of the fingerprint fp-0, not of the expected fp-1"):
        run(fake, output, expected_fingerprint="fp-1")


def unverified(answer: dict[str, Any]) -> None:
    answer["determinism"] = {"verified": False}


def plain_vllm(answer: dict[str, Any]) -> None:
    del answer["determinism"]


def truthy(answer: dict[str, Any]) -> None:
    answer["determinism"]["verified"] = "yes"


def anonymous(answer: dict[str, Any]) -> None:
    answer["system_fingerprint"] = None


def without_choices(answer: dict[str, Any]) -> None:
    answer["choices"] = []


@pytest.mark.parametrize("edit", [unverified, plain_vllm, truthy, anonymous, without_choices])
@pytest.mark.parametrize("since", [1, 6])
def test_an_unverified_answer_is_not_kept(output: Path, edit: Callable[[dict[str, Any]], None], since: int) -> None:
    fake = Fake(edit=lambda answer: edit(answer) if len(fake.bodies) >= since else None)
    with pytest.raises(UnverifiedError, match="does not say that it is verified"):
        run(fake, output, concurrency=1)
    assert len(fake.bodies) == since
    assert len(lines(output)) == since - 1
