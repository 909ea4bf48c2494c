"""The figures, after the paper's. Drawn from what was measured, and from nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from llm42.bench import tables
from llm42.bench.results import Results
from llm42.bench.statistics import percentile

WIDTH, HEIGHT, DPI = 8.0, 3.6, 110
OURS, OTHERS = "#2a7f62", "#9aa5b1"
PERCENTS = (50, 95, 99)
SHADES = ("#a8d5c2", "#4fa184", "#1f5c47")


def draw(results: Results, calibration: dict[str, Any] | None, into: Path, prefix: str) -> dict[str, Path]:
    """Draw what there is to draw; files by figure."""
    into.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, plot in _figures(results, calibration):
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
        plot(figure)
        drawn[name] = into / f"{prefix}{name}.png"
        figure.savefig(drawn[name])
    return drawn


def _figures(results: Results, calibration: dict[str, Any] | None) -> Iterator[tuple[str, Callable[[Figure], None]]]:
    if results.where("offline"):
        yield "offline", lambda figure: _offline(figure, results)
    if results.where("online"):
        yield "online", lambda figure: _online(figure, results)
    if results.where("neighbours"):
        yield "neighbours", lambda figure: _neighbours(figure, results)
    if results.where("recompute"):
        yield "recompute", lambda figure: _recompute(figure, results)
    if calibration is not None:
        yield "verify-cost", lambda figure: _verify_cost(figure, calibration)
    if any(tables.agreement(results).values()):
        yield "spans", lambda figure: _spans(figure, results)


def _offline(figure: Figure, results: Results) -> None:
    found = results.where("offline")
    mixes = {cell.mix.name: cell.mix for cell, _ in found.cells}
    for axes, mix in zip(_row(figure, len(mixes)), mixes.values(), strict=True):
        here = found.where("offline", mix=mix)
        conditions = tables.conditions(here)
        speeds = [
            tables.mean_throughput(here.where("offline", system=system, share=share)) for system, share in conditions
        ]
        names = [tables.label(system, share) for system, share in conditions]
        _bars(axes, names, speeds, [OURS if system.ours else OTHERS for system, _ in conditions])
        axes.set_title(str(mix), fontsize=9)
    figure.supylabel("output tokens/s", fontsize=9)


def _online(figure: Figure, results: Results) -> None:
    found = results.where("online")
    loads = sorted({cell.load for cell, _ in found.cells})
    cases = [(load, *case) for load in loads for case in (("TTFT", tables.first_token), ("E2E", tables.whole_answer))]
    for axes, (load, what, of) in zip(_row(figure, len(cases)), cases, strict=True):
        groups = []
        for system, share in tables.conditions(found):
            answers = found.where("online", load=load, system=system, share=share)
            for kind in (False, True):
                values = [of(answer) for answer in answers.answers(kind)]
                if values:
                    groups.append((f"{tables.label(system, share)}: {'det.' if kind else 'ordinary'}", values))
        for number, percent in enumerate(PERCENTS):
            places = [group + 0.27 * (number - 1) for group in range(len(groups))]
            heights = [percentile(values, percent) for _, values in groups]
            axes.bar(places, heights, width=0.25, color=SHADES[number], label=f"P{percent}")
        _ticks(axes, [name for name, _ in groups])
        axes.set_title(f"{what}, seconds, at {load:.0%} load", fontsize=9)
        axes.legend(fontsize=7)


def _neighbours(figure: Figure, results: Results) -> None:
    found = results.where("neighbours")
    besides = sorted({cell.beside for cell, _ in found.cells})
    for axes, beside in zip(_row(figure, len(besides)), besides, strict=True):
        here = found.where("neighbours", beside=beside)
        bars = list(dict.fromkeys((cell.system, cell.beside_share) for cell, _ in sorted(here.cells, key=_by_system)))
        speeds = [
            tables.mean_throughput(here.where("neighbours", system=system, beside_share=share))
            for system, share in bars
        ]
        names = [f"{tables.label(system)}\n{'deterministic' if share else 'ordinary'} beside" for system, share in bars]
        _bars(axes, names, speeds, [OURS if system.ours else OTHERS for system, _ in bars])
        axes.set_title(f"ordinary streams, {beside} other beside them", fontsize=9)
    figure.supylabel("ordinary tokens/s", fontsize=9)


def _by_system(pair: Any) -> tuple[Any, ...]:
    cell = pair[0]
    return cell.system.ours, cell.system.name, cell.beside_share


def _recompute(figure: Figure, results: Results) -> None:
    rows = tables.recompute(results).rows
    names = [f"W {row[0]}, G {row[1]}" for row in rows]
    speed, again = _row(figure, 2)
    _bars(speed, names, [float(row[2]) for row in rows], [OURS] * len(rows))
    speed.set_title("output tokens/s, all deterministic", fontsize=9)
    _bars(again, names, [float(row[3].rstrip("%")) for row in rows], [OURS] * len(rows))
    again.set_title("recomputed, % of drafted tokens", fontsize=9)


def _verify_cost(figure: Figure, calibration: dict[str, Any]) -> None:
    (axes,) = _row(figure, 1)
    rows = tables.verify_cost(calibration).rows
    for window in sorted({int(row[1]) for row in rows}):
        points = [(int(row[0]), float(row[4])) for row in rows if int(row[1]) == window]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"W {window}")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens in a pass", fontsize=9)
    axes.set_ylabel("ms a token", fontsize=9)
    axes.legend(fontsize=8)


def _spans(figure: Figure, results: Results) -> None:
    (axes,) = _row(figure, 1)
    for name, found in tables.agreement(results).items():
        lengths = sorted(length for length, _ in found)
        axes.step(lengths, [(number + 1) / len(lengths) for number in range(len(lengths))], where="post", label=name)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("tokens that agree with the canonical output", fontsize=9)
    axes.set_ylabel("share of outputs", fontsize=9)
    axes.legend(fontsize=8)


def _row(figure: Figure, count: int) -> list[Axes]:
    figure.set_size_inches(max(WIDTH, 3.4 * count), HEIGHT)
    made: list[Axes] = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in made:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
    return made


def _bars(axes: Axes, names: list[str], heights: list[float], colours: list[str]) -> None:
    drawn = axes.bar(range(len(names)), heights, color=colours)
    axes.bar_label(drawn, fmt="%.3g", fontsize=7)
    _ticks(axes, names)


def _ticks(axes: Axes, names: list[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=6)
