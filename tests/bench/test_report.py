import re
from pathlib import Path

import pytest

from llm42.bench import tables
from llm42.bench.report import Part, as_markdown, write
from llm42.bench.results import Results
from llm42.bench.store import Store
from llm42.bench.targets import Target, bare_cpu, targets
from tests.bench.records import BARE_S, CALIBRATION, MACHINE, SUITE, measured, results


def found(results: Results) -> dict[str, Target]:
    return {target.name: target for target in targets(results, CALIBRATION)}


def test_a_run_as_fast_as_promised_meets_all_targets() -> None:
    assert {target.met for target in found(results(1.02)).values()} == {True}


def test_a_run_that_is_not_misses_them_with_its_numbers() -> None:
    missed = found(results(1.6, cpu_s=1.2 * BARE_S, padding=0.3))
    assert {target.met for target in missed.values()} == {False}
    values = [target.found.value for target in missed.values() if target.found is not None]
    assert values == pytest.approx([1 / 1.6, 1.6, 1.6, 1.6, 1.6 * 1.26 / 1.1, 1.2, 0.3, 1.2, 0.3], rel=0.1)


def test_each_target_is_judged_by_itself() -> None:
    missed = [name for name, target in found(results(1.02, padding=0.11)).items() if not target.met]
    padding = "padding, share of all slots of replay passes"
    assert missed == [padding, f"{padding}, window boundaries only"]
    missed = [name for name, target in found(results(1.02, cpu_s=1.15 * BARE_S)).items() if not target.met]
    token = "CPU seconds of a committed token over the sum of its parts, each bare"
    assert missed == [token, f"{token}, window boundaries only"]


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert {target.met for target in targets(Results(()), None)} == {None}


def test_the_parts_of_a_token() -> None:
    run = results(1.0).where("saturation", share=1.0).measured[0]
    parts = bare_cpu(CALIBRATION, run, 4, (32, 2))
    assert parts == pytest.approx({"decode": 0.005, "prompt": 0.003, "replay slot": 0.0015, "prompt's replay": 0.003})
    assert sum(parts.values()) == pytest.approx(BARE_S)


def test_the_report_says_what_was_measured_on_what() -> None:
    text = as_markdown(SUITE, MACHINE, {("tiny", "float32"): Part(results(1.6), CALIBRATION, {"online": "o.png"})})
    assert "Some CPU, 2 cores, 24.0 GiB; without avx512_bf16. No GPU: nothing here says anything of GPUs." in text
    assert "1 for our drafting engine and 1 for our verifier, 2 for vLLM" in text
    assert "**missed**" in text
    assert "![Time to first token](o.png)" in text
    assert re.search(r"\| LLM-42, 50% det\. \| [\d.]+ \([\d.]+\) \|", text)
    assert "Requests that failed" not in text
    widths = {len({line.count("|") for line in block.splitlines()}) for block in re.findall(r"(?:\|.*\|\n)+", text)}
    assert widths == {1}


def test_what_failed_is_told() -> None:
    cell, run = results(1.0).cells[0]
    broken = measured(cell, 1.0)
    broken.answers[0] = type(run.answers[0])(0, False, error="HTTP 503: too many wait")
    text = as_markdown(SUITE, MACHINE, {("tiny", "float32"): Part(Results(((cell, broken),)), None, {})})
    assert "- limit, llm42-1+1t-W32-G2-window: 1 requests, HTTP 503: too many wait" in text


def test_spans_are_counted_to_the_first_token_that_differs() -> None:
    together, alone = sorted(tables.spans(results(1.0)).rows)
    assert alone[0].endswith("alone")
    assert alone[1:] == ("2", "4", "4", "0%")
    assert together[1:] == ("2", "16", "16", "100%")


def test_everything_is_drawn_again_from_what_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.note("machine", MACHINE)
    store.note("calibration-tiny-float32", CALIBRATION)
    for cell, run in results(1.6).cells:
        store.add(cell, run)
    said = write(store)
    assert said["cells"] == len(results(1.6).cells)
    assert len(said["missed"]) == 5
    text = (tmp_path / "report.md").read_text()
    images = re.findall(r"\]\((plots/.*\.png)\)", text)
    assert len(images) == 6
    for image in images:
        assert (tmp_path / image).read_bytes().startswith(b"\x89PNG")
