"""What Serve logs reaches its file, whatever vLLM does to logging. The contract of llm42.internals.log_files."""

import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest

from llm42.internals.log_files import keep_log_files

logger = logging.getLogger("ray.serve")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Where the logger writes, with Serve's handlers."""
    path = tmp_path / "replica.log"
    before = logger.handlers[:], logger.level, logger.propagate
    handler = MemoryHandler(1, target=logging.FileHandler(path))
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    yield path
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.parametrize("kept", [True, False])
def test_vllm_leaves_it_open(file: Path, kept: bool) -> None:
    from vllm.config import LoggingConfig
    from vllm.logger import configure_logging

    logger.info("before")
    if kept:
        keep_log_files()
    configure_logging(LoggingConfig())
    logger.info("after")
    # Without it the line is lost: the day that this fails, the module can go.
    assert file.read_text().split() == (["before", "after"] if kept else ["before"])
