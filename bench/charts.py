"""Draws recorded measurements as the charts of ``docs/benchmarks.md``; ``charts.toml`` says which.

``python -m bench.charts`` writes one SVG file per chart to ``docs/images``. A chart has its own
background and follows the reader's light or dark setting, so it is legible on any page.
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
CHARTS: Final = RESULTS / "charts.toml"
IMAGES: Final = ROOT / "docs" / "images"

_WIDTH, _LEFT, _RIGHT, _TOP = 930, 325, 275, 70
_BAR, _GAP, _AXIS = 14, 12, 44
_TICKS = 5
_FONTS: Final = """
text { font: 13px system-ui, sans-serif }
.title { font-size: 16px; font-weight: 600 }
.faint { font-size: 12px }
.middle { text-anchor: middle }
.end { text-anchor: end }
.limit { stroke-width: 3 }
.reference { stroke-dasharray: 4 3 }
"""
_COLOURS: Final = """
text { fill: %(text)s }
.faint { fill: %(faint)s }
.back { fill: %(back)s }
.grid { stroke: %(grid)s }
.reference, .limit { stroke: %(text)s }
.s0 { fill: %(first)s }
.s1 { fill: %(second)s }
"""
_LIGHT: Final = {
    "text": "#1f2328",
    "faint": "#59636e",
    "back": "#ffffff",
    "grid": "#d1d9e0",
    "first": "#0969da",
    "second": "#bc4c00",
}
_DARK: Final = {
    "text": "#f0f6fc",
    "faint": "#9198a1",
    "back": "#0d1117",
    "grid": "#3d444d",
    "first": "#58a6ff",
    "second": "#f0883e",
}
_STYLE: Final = (
    f"{_FONTS}{_COLOURS % _LIGHT}@media (prefers-color-scheme: dark) {{{_COLOURS % _DARK}}}\n"
)


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
    reference_label: str
    log: bool

    @property
    def limited(self) -> bool:
        """The presence of a limit in any row."""
        return any(row.limit is not None for row in self.rows)

    @property
    def bars(self) -> int:
        """Bars of the tallest row, for which each row has room."""
        return max(len(row.values) for row in self.rows)

    @property
    def origin(self) -> float:
        """The value at which bars begin: 0, or the baseline on a logarithmic axis."""
        return self.reference if self.log and self.reference is not None else self.ends()[0]

    def ends(self) -> tuple[float, float]:
        """Return the least and the greatest value of the axis."""
        most = max(max(row.values) for row in self.rows)
        if not self.log:
            step = _step(max(most, self.reference or 0))
            return 0.0, step * math.ceil(max(most, self.reference or 0) / step)
        least = min(min(row.values) for row in self.rows)
        return 10.0 ** math.floor(math.log10(least)), 10.0 ** math.ceil(math.log10(most))

    def ticks(self) -> list[float]:
        """Return the labelled values of the axis."""
        low, high = self.ends()
        if self.log:
            return [low * 10**n for n in range(round(math.log10(high / low)) + 1)]
        step = _step(high)
        return [step * n for n in range(round(high / step) + 1)]

    def x(self, value: float) -> float:
        """Return the position of a value, in pixels."""
        low, high = self.ends()
        part = math.log(value / low, high / low) if self.log else value / high
        return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)


def charts() -> list[Chart]:
    """Return the charts of the recorded measurements."""
    given = tomllib.loads(CHARTS.read_text(encoding="utf-8"))["chart"]
    return [_chart(each) for each in given]


def _chart(given: dict[str, Any]) -> Chart:
    fields = {"series": (), "reference": None, "reference_label": "baseline", "log": False, **given}
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


def _step(most: float) -> float:
    """Return a round distance between labels, for about five of them."""
    unit = 10.0 ** math.floor(math.log10(most / _TICKS))
    return next(unit * n for n in (1, 2, 5, 10) if unit * n * _TICKS >= most)


def svg(chart: Chart) -> str:
    """Render a chart as the text of an SVG file."""
    pitch = chart.bars * _BAR + _GAP
    bottom = _TOP + len(chart.rows) * pitch
    root = ET.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {bottom + _AXIS}",
        width=str(_WIDTH),
        role="img",
    )
    ET.SubElement(root, "title").text = f"{chart.title} ({chart.axis})"
    ET.SubElement(root, "style").text = _STYLE
    ET.SubElement(root, "rect", {"class": "back", "width": "100%", "height": "100%", "rx": "6"})
    _text(root, 16, 27, chart.title, "title")
    _legend(root, chart)
    _axis(root, chart, bottom)
    for number, row in enumerate(chart.rows):
        _row(root, chart, row, _TOP + number * pitch)
    if chart.reference is not None:
        _line(root, chart.x(chart.reference), _TOP - 6, bottom, "reference")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _legend(root: ET.Element, chart: Chart) -> None:
    parts = [(f"s{number}", name) for number, name in enumerate(chart.series)]
    x = 16.0
    for kind, name in parts:
        _bar(root, x, 41, 12, kind)
        _text(root, x + 18, 52, name, "faint")
        x += 40 + 6.5 * len(name)
    if chart.reference is not None:
        _text(root, chart.x(chart.reference), _TOP - 12, chart.reference_label, "faint middle")
    if chart.limited:
        _line(root, x + 4, 42, 54, "limit")
        _text(root, x + 14, 52, "the project's own limit", "faint")


def _axis(root: ET.Element, chart: Chart, bottom: int) -> None:
    for value in chart.ticks():
        _line(root, chart.x(value), _TOP, bottom, "grid")
        _text(root, chart.x(value), bottom + 16, f"{value:g}", "faint middle")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    _text(root, middle, bottom + 34, chart.axis, "faint middle")


def _row(root: ET.Element, chart: Chart, row: Row, top: float) -> None:
    middle = top + chart.bars * _BAR / 2
    height = len(row.values) * _BAR
    _text(root, _LEFT - 10, middle + 5, row.label, "end")
    for number, value in enumerate(row.values):
        y = middle - height / 2 + number * _BAR
        start, end = sorted((chart.x(chart.origin), chart.x(value)))
        _bar(root, start, y, max(end - start, 1), f"s{number}")
        if chart.bars > 1:
            _text(root, end + 6, y + 11, f"{value:g}", "faint")
    if row.limit is not None:
        _line(root, chart.x(row.limit), top - 3, top + height + 3, "limit")
    said = [] if chart.bars > 1 else [f"{row.values[0]:g}"]
    _text(root, _WIDTH - _RIGHT + 34, middle + 4, ": ".join([*said, row.note]).strip(": "), "faint")


def _text(root: ET.Element, x: float, y: float, text: str, kind: str) -> None:
    made = {"x": f"{x:g}", "y": f"{y:g}", "class": kind}
    ET.SubElement(root, "text", made).text = text


def _line(root: ET.Element, x: float, top: float, bottom: float, kind: str) -> None:
    ends = {"x1": f"{x:g}", "x2": f"{x:g}", "y1": f"{top:g}", "y2": f"{bottom:g}"}
    ET.SubElement(root, "line", {"class": kind, **ends})


def _bar(root: ET.Element, x: float, y: float, width: float, kind: str) -> None:
    sizes = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{_BAR - 2}"}
    ET.SubElement(root, "rect", {"class": kind, **sizes})


def path(chart: Chart) -> Path:
    """Return the path of a committed chart."""
    return IMAGES / f"bench-{chart.file}.svg"


def main() -> None:
    """Write all charts."""
    for chart in charts():
        path(chart).write_text(svg(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
