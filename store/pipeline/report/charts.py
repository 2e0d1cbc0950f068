"""The charts of a report: inline SVG by matplotlib, with the colours of the page's style.

Text stays text, so it can be searched and read aloud. No chart has a name that strangers chose.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import EngFormatter, MaxNLocator

from store.pipeline.report.figures import Figures, axis_in
from store.pipeline.report.text import moment, shard_name

LEVELS: Final = 5
"""Shades of the heat map."""

_WIDTH_PX: Final = 880
_HEIGHT_PX: Final = 210
_TOP_PX: Final = 12
_RIGHT_PX: Final = 14
_BOTTOM_PX: Final = 26
_DPI: Final = 72
_COUNTS: Final = EngFormatter(sep="")

# These colours are placeholders, which are replaced by variables of the page's style.
_COLOURS: Final[Mapping[str, str]] = {
    "muted": "#020304",
    "grid": "#030405",
    "series": "#040506",
    **{f"level{level}": f"#08090{level}" for level in range(1, LEVELS + 1)},
}
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
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
    "ytick.major.size": 0,
    "grid.color": _COLOURS["grid"],
    "grid.linewidth": 1,
}


def draw_steps(traffic: Figures) -> str:
    """Return a chart of the messages per step of the axis."""
    axis = axis_in(traffic)
    values = [each["messages"] for each in traffic["steps"]]

    def draw(ax: Axes) -> None:
        ax.stairs(values, _times([*axis.starts, axis.high_ns]), fill=True, color=_COLOURS["series"])
        ax.set_ylim(0, 1.08 * max(values))
        _count_axis(ax)
        _time_axis(ax, axis.low_ns, axis.high_ns)

    title = f"Messages over time; the most in one step are {max(values):,}"
    return _drawn("steps", title, draw)


def draw_heat(traffic: Figures) -> str:
    """Return a heat map of shards by time."""
    axis = axis_in(traffic)
    shards = sorted({cell["shard"] for cell in traffic["cells"]})
    most = max(map(_rate, traffic["cells"]))
    boxes: dict[str, list[tuple[int, int, int]]] = {}
    for cell in traffic["cells"]:
        level = math.ceil(LEVELS * math.sqrt(_rate(cell) / most))
        start_ns = cell["start_ns"]
        box = (shards.index(cell["shard"]), start_ns, start_ns + axis.step_ns)
        boxes.setdefault(f"level{max(1, level)}", []).append(box)

    def draw(ax: Axes) -> None:
        for colour in _COLOURS.keys() & boxes.keys():
            _draw_boxes(ax, boxes[colour], _COLOURS[colour])
        labels = [shard_name(each).removeprefix("shard ") for each in shards]
        ax.set_yticks(range(len(shards)), labels)
        ax.set_ylim(len(shards) - 0.5, -0.5)
        _time_axis(ax, axis.low_ns, axis.high_ns)

    row_px = 20 if len(shards) <= 16 else 13
    height_px = row_px * len(shards) + _TOP_PX + _BOTTOM_PX
    title = f"Messages of {len(shards)} shards over time"
    return _drawn("heat", title, draw, height_px, left_px=96, font_px=min(12, row_px - 2))


def level_edges(traffic: Figures) -> list[tuple[int, str]]:
    """Return the shades, and the greatest number of messages an hour that each stands for."""
    most = max(map(_rate, traffic["cells"]))
    edges = (most * (level / LEVELS) ** 2 for level in range(1, LEVELS + 1))
    return [(level, _COUNTS(float(f"{edge:.2g}"))) for level, edge in enumerate(edges, 1)]


def _rate(cell: Figures) -> float:
    rate: float = cell["messages"] / max(1, cell["active_hours"])
    return rate


def _draw_boxes(ax: Axes, boxes: Iterable[tuple[int, int, int]], colour: str) -> None:
    """Draw boxes of (row, from, to) as one shape; thousands of elements would make a page slow."""
    shapes = []
    for row, low_ns, high_ns in boxes:
        low, high = _times([low_ns, high_ns])
        top, bottom = row - 0.44, row + 0.44
        shapes.append(Path([(low, top), (high, top), (high, bottom), (low, bottom), (low, top)]))
    joined = Path.make_compound_path(*shapes)
    ax.add_patch(PathPatch(joined, facecolor=colour, linewidth=0))


def _times(times_ns: Sequence[int]) -> list[float]:
    """Return times as matplotlib counts them."""
    moments = [moment(ns) for ns in times_ns]
    return [float(each) for each in date2num(moments)]  # type: ignore[no-untyped-call]


def _time_axis(ax: Axes, low_ns: int, high_ns: int) -> None:
    ax.set_xlim(*_times([low_ns, high_ns]))
    locator = AutoDateLocator(minticks=2, maxticks=9)  # type: ignore[no-untyped-call]
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]


def _count_axis(ax: Axes) -> None:
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_formatter(_COUNTS)
    ax.yaxis.grid(True)


def _drawn(
    name: str,
    title: str,
    draw: Callable[[Axes], None],
    height_px: int = _HEIGHT_PX,
    *,
    left_px: int = 54,
    font_px: int = 12,
) -> str:
    """Return a chart as an SVG element with unique IDs and the colours of the page."""
    style: Any = {**_STYLE, "svg.hashsalt": name, "font.size": font_px}
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH_PX / _DPI, height_px / _DPI), dpi=_DPI)
        figure.patch.set_alpha(0)
        width = 1 - (left_px + _RIGHT_PX) / _WIDTH_PX
        height = 1 - (_TOP_PX + _BOTTOM_PX) / height_px
        ax = figure.add_axes((left_px / _WIDTH_PX, _BOTTOM_PX / height_px, width, height))
        ax.patch.set_alpha(0)
        draw(ax)
        file = io.StringIO()
        metadata: Any = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=metadata)
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
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip()
