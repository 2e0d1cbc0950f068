"""Draws recorded measurements as the charts of ``docs/benchmarks.md``; ``charts.toml`` says which.

``python -m bench.charts`` writes one SVG file per chart to ``docs/images``, by matplotlib. A chart
has its own background and follows the reader's light or dark setting.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from store.pipeline.report.charts import to_svg

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
CHARTS: Final = RESULTS / "charts.toml"
IMAGES: Final = ROOT / "docs" / "images"

_WIDTH_IN, _BAR_IN, _REST_IN = 12.9, 0.2, 1.3
_BAR, _GAP = 0.85, 0.9
"""The height of a bar, and the distance between rows, in bars."""

_COLOURS: Final = {
    "#000001": ("text", "#1f2328", "#f0f6fc"),
    "#000002": ("faint", "#59636e", "#9198a1"),
    "#000003": ("back", "#ffffff", "#0d1117"),
    "#000004": ("grid", "#d1d9e0", "#3d444d"),
    "#000005": ("first", "#0969da", "#58a6ff"),
    "#000006": ("second", "#bc4c00", "#f0883e"),
}
"""The colours of a chart: subject, name of the variable, colour in light and dark."""

_TEXT, _FAINT, _BACK, _GRID, *_SERIES = _COLOURS
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "storenode",
    "font.size": 12,
    "text.color": _TEXT,
    "axes.edgecolor": _GRID,
    "axes.facecolor": _BACK,
    "axes.labelcolor": _FAINT,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _GRID,
    "xtick.labelcolor": _FAINT,
    "ytick.color": _GRID,
    "ytick.labelcolor": _TEXT,
    "ytick.major.size": 0,
    "grid.color": _GRID,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a chart: a value for each series, and the limit that the first must meet."""

    label: str
    values: tuple[float, ...]
    limit: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Horizontal bars; with ``reference``, a line at the baseline's value."""

    file: str
    title: str
    axis: str
    rows: tuple[Row, ...]
    series: tuple[str, ...]
    reference: float | None
    log: bool


def charts() -> list[Chart]:
    """Return the charts of the recorded measurements."""
    given = tomllib.loads(CHARTS.read_text(encoding="utf-8"))["chart"]
    return [_chart(each) for each in given]


def _chart(given: dict[str, Any]) -> Chart:
    fields = {"series": (), "reference": None, "log": False, **given}
    rows = tuple(_row_of(each) for each in fields.pop("row"))
    return Chart(rows=rows, **fields)


def _row_of(given: dict[str, Any]) -> Row:
    where = given.get("where", {})
    measured = [
        _measurement(given["benchmark"], {**where, **more})
        for more in given.get("series_where", [{}])
    ]
    values = tuple(float(f"{each[key]:.3g}") for each in measured for key in given["values"])
    note = given.get("note", "").format(**measured[0])
    return Row(given["label"], values, given.get("limit"), note)


def _measurement(benchmark: str, where: dict[str, object]) -> dict[str, Any]:
    """Return the recorded measurement with these fields.

    Raises:
        LookupError: none was recorded: run ``python -m bench BENCHMARK --record``.
    """
    path = RESULTS / f"{benchmark}.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    for each in recorded:
        if where.items() <= each.items():
            return dict(each)
    sentence = f"{path}: no measurement has {where}: run python -m bench {benchmark} --record"
    raise LookupError(sentence)


def draw(chart: Chart) -> Figure:
    """Draw a chart."""
    bars = max(len(row.values) for row in chart.rows)
    pitch = bars + _GAP
    height_in = _REST_IN + len(chart.rows) * pitch * _BAR_IN
    figure = Figure((_WIDTH_IN, height_in), facecolor=_BACK, layout="constrained")
    figure.suptitle(chart.title, x=0.01, ha="left")
    ax = figure.add_subplot(xlabel=chart.axis)
    origin = chart.reference if chart.log and chart.reference is not None else 0.0
    if chart.log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    for number in range(bars):
        rows = [(at, row) for at, row in enumerate(chart.rows) if number < len(row.values)]
        ax.barh(
            [at * pitch + number for at, _ in rows],
            [row.values[number] - origin for _, row in rows],
            _BAR,
            left=origin,
            color=_SERIES[number],
            label=chart.series[number] if chart.series else None,
        )
    _mark(ax, chart, pitch)
    middles = [at * pitch + (len(row.values) - 1) / 2 for at, row in enumerate(chart.rows)]
    ax.set_yticks(middles, labels=[row.label for row in chart.rows])
    notes = [
        ": ".join(filter(None, (" / ".join(f"{each:g}" for each in row.values), row.note)))
        for row in chart.rows
    ]
    ax.secondary_yaxis("right").set_yticks(middles, labels=notes)
    ax.invert_yaxis()
    ax.grid(axis="x")
    figure.legend(loc="outside upper right", ncols=3)
    return figure


def _mark(ax: Axes, chart: Chart, pitch: float) -> None:
    """Draw the baseline and the limits, and say what is what."""
    if chart.reference is not None:
        ax.axvline(chart.reference, color=_TEXT, linestyle="--", label="baseline")
    limits = [(at * pitch, row.limit) for at, row in enumerate(chart.rows) if row.limit is not None]
    if limits:
        low, high = ([at + end for at, _ in limits] for end in (-_BAR, _BAR))
        values = [limit for _, limit in limits]
        ax.vlines(values, low, high, color=_TEXT, linewidth=3, label="the project's own limit")


def svg(chart: Chart) -> str:
    """Render a chart as the text of an SVG file."""
    with mpl.rc_context(_STYLE):
        names = {name: placeholder for placeholder, (name, *_) in _COLOURS.items()}
        text = to_svg(draw(chart), names)
    schemes = [
        "".join(f"--{name}: {colour[scheme]}; " for name, *colour in _COLOURS.values())
        for scheme in (0, 1)
    ]
    style = ":root {{ {} }} @media (prefers-color-scheme: dark) {{ :root {{ {} }} }}"
    head = f"<title>{chart.title}</title>\n <style>{style.format(*schemes)}</style>"
    text = text.replace("<defs>", f"{head}\n <defs>", 1)
    # Without the address of a schema, which nothing in the file needs.
    text = re.sub(r" xmlns:xlink=\S+|(?<= )xlink:", "", text)
    return "\n".join(map(str.rstrip, text.splitlines())) + "\n"


def path(chart: Chart) -> Path:
    """Return the path of a committed chart."""
    return IMAGES / f"bench-{chart.file}.svg"


def main() -> None:
    """Write all charts."""
    for chart in charts():
        path(chart).write_text(svg(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
