"""Every panel shows something on a live deployment under load, and every rule can be evaluated."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grafana.live import Live, live, wrong
from tests.grafana.prometheus import BINARY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(BINARY is None, reason="needs Prometheus (Debian: prometheus)"),
]


@pytest.fixture(scope="module")
def run() -> Iterator[Live]:
    with live() as found:
        yield found


def test_all_is_well(run: Live) -> None:
    assert wrong(run) == []


def test_a_panel_without_data_would_be_found(run: Live) -> None:
    _, panels = run.dashboards["llm42-pools"]
    shown = next(shown for shown in panels if shown.panel["type"] == "stat")
    kept, shown.answers[0] = shown.answers[0], []
    try:
        assert any(shown.title in problem for problem in wrong(run))
    finally:
        shown.answers[0] = kept


def test_dashboards_can_be_drawn(run: Live, tmp_path: Path) -> None:
    from tests.grafana.draw import draw

    for uid, (title, panels) in run.dashboards.items():
        draw(title, panels, run.start, run.end, tmp_path / f"{uid}.png")
        assert (tmp_path / f"{uid}.png").stat().st_size > 100_000
