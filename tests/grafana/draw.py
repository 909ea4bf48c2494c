"""Draws a dashboard as Grafana would lay it out, from what its queries returned."""

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tests.grafana.reading import Series, Shown

COLUMNS, UNIT_PX, ROW_PX, GAP_PX, TOP_PX, DPI = 24, 66, 34, 8, 64, 100
PAGE, PANEL, GRID, TEXT, FAINT = "#111217", "#181b1f", "#2c3035", "#d5d6dc", "#8e9199"
PALETTE = ["#73BF69", "#FADE2A", "#5794F2", "#FF9830", "#F2495C", "#B877D9", "#33B5E5", "#8AB8FF"]
LEGEND_CHARACTERS = 22


def draw(title: str, panels: list[Shown], start: float, end: float, path: Path) -> None:
    height = TOP_PX + ROW_PX * max(_bottom(shown) for shown in panels) + GAP_PX
    width = COLUMNS * UNIT_PX
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=PAGE)
    figure.text(GAP_PX / width, 1 - 22 / height, title, color=TEXT, fontsize=15, weight="bold", va="center")
    when = f"live run of {(end - start) / 60:.1f} min; test model on CPU; x: minutes"
    figure.text(1 - GAP_PX / width, 1 - 22 / height, when, color=FAINT, fontsize=9, ha="right", va="center")
    for shown in panels:
        x, y, w, h = _place(shown.panel["gridPos"], height)
        if shown.panel["type"] == "row":
            figure.text(x / width, (y + h / 2) / height, f"▾  {shown.title}", color=TEXT, fontsize=11, va="center")
            continue
        back = figure.add_axes((x / width, y / height, w / width, h / height), facecolor=PANEL)
        back.set(xticks=[], yticks=[])
        for side in back.spines.values():
            side.set_color(GRID)
        back.text(10 / w, 1 - 16 / h, shown.title, color=TEXT, fontsize=9.5, va="center")
        inner = {"stat": (10, 12, w - 20, h - 44)}.get(shown.panel["type"], (58, 54, w - 74, h - 88))
        axes = figure.add_axes(
            ((x + inner[0]) / width, (y + inner[1]) / height, inner[2] / width, inner[3] / height), facecolor=PANEL
        )
        _KINDS[shown.panel["type"]](figure, axes, shown, start, end)
    figure.savefig(path, facecolor=PAGE)
    plt.close(figure)


def _bottom(shown: Shown) -> int:
    place = shown.panel["gridPos"]
    return int(place["y"] + place["h"])


def _place(grid: dict[str, int], height: int) -> tuple[float, float, float, float]:
    """Left, bottom, width and height in pixels."""
    x, w = grid["x"] * UNIT_PX + GAP_PX / 2, grid["w"] * UNIT_PX - GAP_PX
    top, h = TOP_PX - 16 + grid["y"] * ROW_PX, grid["h"] * ROW_PX - GAP_PX
    return x, height - top - h, w, h


def _stat(figure: Figure, axes: Axes, shown: Shown, start: float, end: float) -> None:
    axes.axis("off")
    points = shown.series[0].points
    defaults = shown.panel["fieldConfig"]["defaults"]
    last = points[-1][1]
    colour = TEXT
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or last >= step["value"]:
            colour = TEXT if step["color"] == "text" else step["color"]
    if len(points) > 2:
        spark = axes.inset_axes((0.0, 0.0, 1.0, 0.4))
        spark.axis("off")
        times, values = zip(*points, strict=True)
        spark.fill_between(times, values, min(0.0, *values), color=colour, alpha=0.18, lw=0)
        spark.plot(times, values, color=colour, lw=1)
        spark.set_xlim(start, end)
    text = formatted(last, defaults["unit"], defaults.get("decimals"))
    axes.text(0.5, 0.62, text, color=colour, fontsize=26, weight="bold", ha="center", va="center")


def _timeseries(figure: Figure, axes: Axes, shown: Shown, start: float, end: float) -> None:
    defaults = shown.panel["fieldConfig"]["defaults"]
    styles = {o["matcher"]["options"]: o["properties"] for o in shown.panel["fieldConfig"]["overrides"]}
    stacking = defaults["custom"]["stacking"]["mode"]
    drawn = [series for series in shown.series if series.points]
    free = iter(PALETTE * 8)
    looks = [_look(series, styles, free) for series in drawn]
    if stacking == "none":
        for series, (colour, dashes) in zip(drawn, looks, strict=True):
            for part in _unbroken(series.points):
                times, values = zip(*part, strict=True)
                axes.plot(times, values, color=colour, lw=1.3, ls=dashes, marker="." if len(part) == 1 else None, ms=3)
                axes.fill_between(times, values, color=colour, alpha=0.07, lw=0)
    else:
        _stack(axes, drawn, [colour for colour, _ in looks], percent=stacking == "percent")
    unit = "percentunit" if stacking == "percent" else defaults["unit"]
    _dress(axes, start, end, unit)
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] < 1e-9 or not any(value for series in drawn for _, value in series.points):
        axes.set_ylim(0, 1)
    for series, (colour, dashes) in zip(drawn, looks, strict=True):
        axes.plot([], [], color=colour, ls=dashes, lw=2.5, label=_short(series.legend))
    _legend(axes, len(drawn))


def _stack(axes: Axes, drawn: list[Series], colours: list[str], *, percent: bool) -> None:
    times = sorted({at for series in drawn for at, _ in series.points})
    columns = [dict(series.points) for series in drawn]
    heights = [[column.get(at, 0.0) for at in times] for column in columns]
    if percent:
        sums = [sum(column) or 1.0 for column in zip(*heights, strict=True)]
        heights = [[value / total for value, total in zip(row, sums, strict=True)] for row in heights]
    below = [0.0] * len(times)
    for row, colour in zip(heights, colours, strict=True):
        top = [a + b for a, b in zip(below, row, strict=True)]
        axes.fill_between(times, below, top, color=colour, alpha=0.45, lw=0)
        if any(row):
            axes.plot(times, top, color=colour, lw=1.0)
        below = top


def _heatmap(figure: Figure, axes: Axes, shown: Shown, start: float, end: float) -> None:
    """Prometheus' buckets hold all that is smaller; a cell is the difference to the one below."""
    rows = sorted((series for series in shown.series if series.points), key=lambda series: float(series.labels["le"]))
    times = sorted({at for series in rows for at, _ in series.points})
    counts = [[dict(series.points).get(at, 0.0) for at in times] for series in rows]
    cells = [
        [max(0.0, value - (counts[index - 1][column] if index else 0.0)) for column, value in enumerate(row)]
        for index, row in enumerate(counts)
    ]
    shades = [[value if value > 0.05 else math.nan for value in row] for row in cells]
    mesh = axes.pcolormesh(times, range(len(rows)), shades, cmap="Blues_r", shading="nearest", vmin=0)
    _dress(axes, start, end, "none")
    axes.set_yticks(range(len(rows)), [_bucket(series.labels["le"]) for series in rows])
    axes.set_ylim(-0.5, len(rows) - 0.5)
    bar = figure.colorbar(mesh, ax=axes, orientation="horizontal", fraction=0.05, pad=0.16, aspect=40)
    bar.ax.tick_params(colors=FAINT, labelsize=7, length=0)
    bar.outline.set_visible(False)


_KINDS = {"stat": _stat, "timeseries": _timeseries, "heatmap": _heatmap}


def _dress(axes: Axes, start: float, end: float, unit: str) -> None:
    axes.set_xlim(start, end)
    axes.grid(color=GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, labelsize=7.5, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    minutes = [start + 30 * index for index in range(int((end - start) // 30) + 1)]
    axes.set_xticks(minutes, [f"{(at - start) / 60:g}" for at in minutes])
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatted(value, unit)))


def _legend(axes: Axes, entries: int) -> None:
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.47, -0.14),
        ncols=min(entries, 6) or 1,
        fontsize=7.5 if entries < 5 else 7,
        labelcolor=TEXT,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.0,
        borderpad=0,
    )


def _look(series: Series, styles: dict[str, list[dict[str, Any]]], free: Any) -> tuple[str, Any]:
    colour, dashes = None, "-"
    for found in styles.get(series.legend, ()):
        if found["id"] == "color":
            colour = found["value"]["fixedColor"]
        elif found["id"] == "custom.lineStyle":
            dashes = (0, (4, 3))  # type: ignore[assignment]
    return colour or next(free), dashes


def _unbroken(points: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Where there is nothing, nothing is drawn."""
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if not parts or point[0] - parts[-1][-1][0] > 6:
            parts.append([])
        parts[-1].append(point)
    return parts


def _short(legend: str) -> str:
    return legend if len(legend) <= LEGEND_CHARACTERS else f"{legend[:10]}…"


def _bucket(bound: str) -> str:
    return "∞" if bound == "+Inf" else f"{float(bound):g}"


def formatted(value: float, unit: str, decimals: int | None = None) -> str:
    """As Grafana would."""
    if unit == "percentunit":
        return f"{100 * value:.{decimals if decimals is not None else (0 if abs(value) >= 0.1 else 1)}f}%"
    if unit in ("s", "ms"):
        seconds = value if unit == "s" else value / 1000
        if seconds == 0:
            return "0 s"
        if abs(seconds) < 1:
            return f"{1000 * seconds:.3g} ms"
        return f"{seconds:.{decimals}f} s" if decimals is not None else f"{seconds:.3g} s"
    suffix = {"ops": "/s", "reqps": " req/s"}.get(unit, "")
    if decimals is not None:
        return f"{value:,.{decimals}f}{suffix}"
    if abs(value) >= 1000:
        return f"{value / 1000:.3g}k{suffix}"
    return f"{value:.3g}{suffix}"
