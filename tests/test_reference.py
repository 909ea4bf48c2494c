"""docs/configuration.md and docs/metrics.md say what the code says."""

from pathlib import Path

import pytest

from llm42 import reference

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["configuration", "metrics"])
def test_reference_pages_are_current(page: str) -> None:
    written = (DOCS / f"{page}.md").read_text()
    assert written == getattr(reference, page)(), "run `python -m llm42.reference`"
