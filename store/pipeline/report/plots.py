"""The charts of a report: inline SVG by matplotlib, with the colours of the page's style.

Text stays text, so it can be searched and read aloud. No chart has a name that strangers chose.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, date2num, num2date
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.report.arrivals import LatenessSummary
from store.pipeline.report.axis import Axis
from store.pipeline.report.figures import ArchiveComparison
from store.pipeline.report.names import count, moment, shard_name, short_count, span, time
from store.pipeline.report.traffic import Cell, Traffic

_WIDTH_PX: Final = 880
LEVELS: Final = 5
"""Shades of the heat map."""

# No drawing has these colours of its own: they stand for variables of the page's style.
_COLOURS: Final[Mapping[str, str]] = {
    "ink": "#010203",
    "muted": "#020304",
    "grid": "#030405",
    "series": "#040506",
    "second": "#050607",
    "gap": "#060708",
    "differs": "#070809",
    **{f"level{level}": f"#08090{level}" for level in range(1, LEVELS + 1)},
}
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
    "text.parse_math": False,
    "text.color": _COLOURS["muted"],
    "axes.edgecolor": _COLOURS["grid"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "xtick.color": _COLOURS["grid"],
    "ytick.color": _COLOURS["grid"],
    "xtick.labelcolor": _COLOURS["muted"],
    "ytick.labelcolor": _COLOURS["muted"],
    "xtick.major.size": 4,
    "ytick.major.size": 0,
    "grid.color": _COLOURS["grid"],
    "grid.linewidth": 1,
}
_DPI: Final = 72
_METADATA: Final = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_LEFT_PX: Final = 54
_RIGHT_PX: Final = 14
_TOP_PX: Final = 12
_BOTTOM_PX: Final = 26
_HEIGHT_PX: Final = 210
_MAX_TICKS: Final = 9
_FEW_ROWS: Final = 16
_ROW_PX: Final = (20, 13)
_LEAST_LATE_S: Final = 0.001
_LATE_TICKS_S: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 86_400, 864_000, 86_400_000)
_TIME_SPANS_NS: Final = (2 * DAY_NS, 200 * DAY_NS, 3_000 * DAY_NS)
_TIME_TEXTS: Final[tuple[Callable[[datetime], str], ...]] = (
    lambda time: f"{time:%b} {time.day}" if time.hour == time.minute == 0 else f"{time:%H:%M}",
    lambda time: f"{time:%b} {time.day}",
    lambda time: f"{time:%b %Y}",
    lambda time: f"{time:%Y}",
)
"""How times are written on an axis of up to each span, and on a longer one."""


def draw_steps(traffic: Traffic) -> str:
    """Return a chart of the messages per step of the axis."""
    axis = traffic.axis
    values = [traffic.steps.get(start, 0) for start in axis.starts]

    def draw(ax: Axes) -> None:
        ax.stairs(values, _times([*axis.starts, axis.high_ns]), fill=True, color=_COLOURS["series"])
        ax.set_ylim(0, 1.08 * max(values))
        _count_axis(ax)
        _time_axis(ax, axis.low_ns, axis.high_ns)

    tips = [
        f"{time(start)}: {count(value, 'message')}"
        for start, value in zip(axis.starts, values, strict=True)
    ]
    title = f"Messages over time; the most in one step are {max(values):,}"
    return _drawn("steps", title, draw, tips=tips)


def draw_growth(traffic: Traffic, messages_a_day: float, ahead_days: int) -> str:
    """Return a chart of the messages held at each time, and ahead at the present rate."""
    axis = traffic.axis
    before = sum(
        messages for day, (messages, _) in traffic.days.items() if day * DAY_NS < axis.low_ns
    )
    steps = [traffic.steps.get(start, 0) for start in axis.starts]
    totals = before + np.concatenate([[0], np.cumsum(steps)])
    end_ns = axis.last_ns + (ahead_days * DAY_NS if messages_a_day else 0)
    # What is not drawn at the far end has come all the same, but nobody knows when.
    last = float(totals[-1]) + messages_a_day * (end_ns - axis.last_ns) / DAY_NS

    def draw(ax: Axes) -> None:
        times = _times([*axis.starts, axis.last_ns])
        ax.fill_between(times, totals, color=_COLOURS["series"], alpha=0.18, linewidth=0)
        ax.plot(times, totals, color=_COLOURS["series"], linewidth=2)
        if end_ns > axis.last_ns:
            ahead = _times([axis.last_ns, end_ns])
            ax.plot(ahead, [totals[-1], last], color=_COLOURS["second"], linewidth=2, dashes=(4, 3))
        ax.set_ylim(0, 1.08 * max(last, 1.0))
        _count_axis(ax)
        _time_axis(ax, axis.low_ns, end_ns)

    return _drawn("growth", "Messages held over time, and ahead at the present rate", draw)


def draw_heat(traffic: Traffic, compared: ArchiveComparison | None) -> str:
    """Return a heat map of shards by time, with marks for gaps and for hours that differ."""
    shards = traffic.shards
    differing = () if compared is None else compared.listed
    rows: list[int | None] = [None, *shards] if differing else [*shards]
    labels = [
        "≠ database" if row is None else shard_name(row).removeprefix("shard ") for row in rows
    ]
    most = max(map(_rate, traffic.cells.values()))

    def draw(ax: Axes) -> None:
        _draw_cells(ax, traffic, rows, most)
        for gap in traffic.gaps:
            wanted = shards if gap.shard is None else [gap.shard]
            end_ns = min(gap.end_ns, traffic.axis.high_ns)
            boxes = [(rows.index(each), gap.start_ns, end_ns) for each in wanted]
            _boxes(ax, boxes, "gap")
        hours = [(0, each.start_ns, each.start_ns + HOUR_NS) for each in differing]
        _boxes(ax, hours, "differs")
        ax.set_yticks(range(len(rows)), labels)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        _time_axis(ax, traffic.axis.low_ns, traffic.axis.high_ns)

    row_px = _ROW_PX[len(rows) > _FEW_ROWS]
    return _drawn(
        "heat",
        f"Messages of {len(shards)} shards over time",
        draw,
        row_px * len(rows) + _TOP_PX + _BOTTOM_PX,
        left_px=96,
        font_px=min(12, row_px - 2),
    )


def level_of(cell: Cell, most: float) -> int:
    """Return the shade of a cell, from 1 to `LEVELS`, by the root of its share of the maximum."""
    return max(1, min(LEVELS, math.ceil(LEVELS * math.sqrt(_rate(cell) / most))))


def level_edges(traffic: Traffic) -> list[tuple[int, str]]:
    """Return the shades, and the greatest number of messages an hour that each stands for."""
    most = max(map(_rate, traffic.cells.values()))
    edges = (most * (level / LEVELS) ** 2 for level in range(1, LEVELS + 1))
    return [(level, short_count(float(f"{edge:.2g}"))) for level, edge in enumerate(edges, 1)]


def draw_classes(labels: Sequence[str], shares: Sequence[float]) -> str:
    """Return a bar chart of the share of messages in each class of lateness."""

    def draw(ax: Axes) -> None:
        places = range(len(shares))
        ax.barh(places, shares, height=0.7, color=_COLOURS["series"])
        for place, share in enumerate(shares):
            ax.text(
                share + 0.01, place, f"{share:.1%}", va="center", color=_COLOURS["ink"], fontsize=11
            )
        ax.set_yticks(places, labels)
        ax.set_ylim(len(shares) - 0.4, -0.6)
        ax.set_xlim(0, 1.2 * max(*shares, 0.01))
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)

    height = 22 * len(shares) + _TOP_PX
    return _drawn(
        "classes", "Share of messages by lateness", draw, height, left_px=112, bottom_px=4
    )


def draw_lateness(arrivals: LatenessSummary, axis: Axis) -> str:
    """Return a chart of the median and the 99th percentile of the lateness over time."""
    steps = sorted(arrivals.steps)
    halves = [start + axis.step_ns // 2 for start in steps]
    columns = (
        ("p99_s", "second", [arrivals.steps[start].p99_s for start in steps]),
        ("median_s", "series", [arrivals.steps[start].median_s for start in steps]),
    )

    def draw(ax: Axes) -> None:
        for _, colour, values in columns:
            late = np.maximum(values, _LEAST_LATE_S)
            ax.plot(_times(halves), late, color=_COLOURS[colour], linewidth=2, marker="o", ms=3)
        latest = max(columns[0][2])
        earliest = max(_LEAST_LATE_S, min(columns[1][2]))
        ax.set_yscale("log")
        ax.set_ylim(earliest / 2, 2 * max(latest, 2 * earliest))
        ax.yaxis.set_major_locator(FixedLocator(_LATE_TICKS_S))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: span(value)))
        ax.yaxis.grid(True)
        _time_axis(ax, axis.low_ns, axis.high_ns)

    return _drawn("lateness", "Lateness over time: the median and the 99th percentile", draw)


def _rate(cell: Cell) -> float:
    return cell.messages / max(1, cell.active_hours)


def _draw_cells(ax: Axes, traffic: Traffic, rows: list[int | None], most: float) -> None:
    levels: dict[int, list[tuple[int, int, int]]] = {}
    for (start, shard), cell in sorted(traffic.cells.items(), key=lambda each: each[0][::-1]):
        boxes = levels.setdefault(level_of(cell, most), [])
        row, end = rows.index(shard), start + traffic.axis.step_ns
        if boxes and boxes[-1][0] == row and boxes[-1][2] == start:
            boxes[-1] = (row, boxes[-1][1], end)
        else:
            boxes.append((row, start, end))
    for level, boxes in levels.items():
        _boxes(ax, boxes, f"level{level}")


def _boxes(ax: Axes, boxes: Iterable[tuple[int, int, int]], colour: str) -> None:
    """Add boxes of (row, from, to) as one shape; thousands of elements would make a page slow."""
    shapes = []
    for row, low_ns, high_ns in boxes:
        low, high = _times([low_ns, high_ns])
        top, bottom = row - 0.44, row + 0.44
        shapes.append(Path([(low, top), (high, top), (high, bottom), (low, bottom), (low, top)]))
    if shapes:
        joined = Path.make_compound_path(*shapes)
        ax.add_patch(PathPatch(joined, facecolor=_COLOURS[colour], linewidth=0))


def _times(times_ns: Sequence[int]) -> list[float]:
    """Return times as matplotlib counts them."""
    moments = [moment(ns) for ns in times_ns]
    return [float(each) for each in date2num(moments)]  # type: ignore[no-untyped-call]


def _time_axis(ax: Axes, low_ns: int, high_ns: int) -> None:
    locator = AutoDateLocator(minticks=2, maxticks=_MAX_TICKS)  # type: ignore[no-untyped-call]
    ax.set_xlim(*_times([low_ns, high_ns]))
    ax.xaxis.set_major_locator(locator)
    text = _TIME_TEXTS[sum(high_ns - low_ns > span_ns for span_ns in _TIME_SPANS_NS)]
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(_moment(value))))


def _moment(value: float) -> datetime:
    found: datetime = num2date(value)  # type: ignore[no-untyped-call]
    return found


def _count_axis(ax: Axes) -> None:
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
    ax.yaxis.grid(True)


def _drawn(
    name: str,
    title: str,
    draw: Callable[[Axes], None],
    height_px: int = _HEIGHT_PX,
    *,
    left_px: int = _LEFT_PX,
    bottom_px: int = _BOTTOM_PX,
    font_px: int = 12,
    tips: Sequence[str] = (),
) -> str:
    """Return a chart; each of the ``tips`` shows under the pointer over its part of the width."""
    style: Any = {**_STYLE, "svg.hashsalt": name, "font.size": font_px}
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH_PX / _DPI, height_px / _DPI), dpi=_DPI)
        figure.patch.set_alpha(0)
        box = (
            left_px / _WIDTH_PX,
            bottom_px / height_px,
            1 - (left_px + _RIGHT_PX) / _WIDTH_PX,
            1 - (_TOP_PX + bottom_px) / height_px,
        )
        ax = figure.add_axes(box)
        ax.patch.set_alpha(0)
        draw(ax)
        over = _tips(tips, left_px, _WIDTH_PX - left_px - _RIGHT_PX, height_px - bottom_px)
        return _svg(figure, name, title, over)


def _tips(texts: Sequence[str], left_px: int, width_px: int, height_px: int) -> str:
    """Return areas with a text under the pointer; the texts are made of numbers alone."""
    step_px = width_px / max(1, len(texts))
    areas = (
        f'<rect x="{left_px + place * step_px:.1f}" y="0" width="{step_px:.1f}"'
        f' height="{height_px}"><title>{text}</title></rect>'
        for place, text in enumerate(texts)
    )
    return f'<g fill="transparent" aria-hidden="true">{"".join(areas)}</g>' if texts else ""


def _svg(figure: Figure, name: str, title: str, over: str) -> str:
    """Return a figure as an element of a page, with unique IDs and the colours of the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=_METADATA)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL
    )
    text = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", text, count=5)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    for variable, colour in _COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    text = text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    return text.replace("</svg>", f"{over}</svg>").strip()


def lateness_labels(edges_s: Sequence[float]) -> list[str]:
    """Return the labels of the classes of lateness."""
    usual = [f"≤ {span(edge)}" for edge in edges_s[1:]]
    return ["before its time", *usual, f"> {span(edges_s[-1])}"]
