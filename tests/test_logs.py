"""A request's line can be searched, machines can read it, and no client can forge one."""

import contextvars
import json
import logging
from io import StringIO

import pytest
from ray._common.formatters import JSONFormatter
from ray.serve._private.logging_utils import ServeContextFilter, ServeFormatter
from ray.serve.context import _RequestContext, _serve_request_context

from llm42 import logs
from llm42.logs import MAX_CHARACTERS, log_request, printable

TEXT, JSON = ServeFormatter("llm42_Router", "abc"), JSONFormatter()


def written(
    monkeypatch: pytest.MonkeyPatch, formatter: logging.Formatter, request_id: str, level: int = logging.INFO
) -> str:
    """What Serve's handlers would write, from within the HTTP request of somebody else."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(ServeContextFilter())
    monkeypatch.setattr(logs.logger, "handlers", [handler])
    monkeypatch.setattr(logs.logger, "propagate", False)
    monkeypatch.setattr(logs.logger, "level", level)
    logs.logger.manager._clear_cache()  # type: ignore[attr-defined]  # of what is enabled

    def within() -> None:
        _serve_request_context.set(_RequestContext(request_id="another"))
        log_request(request_id, mode="ordinary", total_s=0.25, status=None)

    contextvars.copy_context().run(within)
    return stream.getvalue()


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    line = written(monkeypatch, TEXT, "cmpl-1")
    assert line.startswith("INFO ")
    assert line.endswith(" llm42_Router abc cmpl-1 -- request_id=cmpl-1 mode=ordinary total_s=0.25\n")


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.loads(written(monkeypatch, JSON, "cmpl-1"))
    assert line["message"] == "request_id=cmpl-1 mode=ordinary total_s=0.25"
    assert (line["request_id"], line["mode"], line["total_s"]) == ("cmpl-1", "ordinary", 0.25)
    assert "status" not in line


@pytest.mark.parametrize("formatter", [TEXT, JSON], ids=["text", "json"])
@pytest.mark.parametrize("forged", ["x\nINFO outcome=finished", "x outcome=finished", 'x"outcome="y', "x\u2028y", "é"])
def test_an_id_stays_in_its_place(monkeypatch: pytest.MonkeyPatch, formatter: logging.Formatter, forged: str) -> None:
    line = written(monkeypatch, formatter, forged)
    assert line.isascii()
    assert line.count("\n") == 1
    message = line.partition(" -- ")[2] if formatter is TEXT else json.loads(line)["message"]
    assert message.rstrip() == f"request_id={json.dumps(forged)} mode=ordinary total_s=0.25"


def test_an_id_has_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(written(monkeypatch, TEXT, "x" * 10_000)) < 3 * MAX_CHARACTERS
    assert printable("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS


def test_serves_log_level_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logs.logger.name.startswith("ray.serve.")
    assert written(monkeypatch, TEXT, "cmpl-1", logging.WARNING) == ""
