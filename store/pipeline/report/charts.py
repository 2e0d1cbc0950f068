"""The chart of a report: inline SVG by matplotlib, with the colours of the page's style.

Text stays text, so it can be searched and read aloud. No chart has a name that strangers chose.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from store.pipeline.report.figures import Figures
from store.pipeline.reports import moment
from storenode.message.limits import NS_PER_S

_SIZE_INCHES: Final = (12.2, 2.9)

# These colours are placeholders, which are replaced by variables of the page's style.
_COLOURS: Final = {"muted": "#020304", "grid": "#030405", "series": "#040506"}
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
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
}


def draw_steps(traffic: Figures) -> str:
    """Return a chart of the messages per step of the time axis, as an SVG element."""
    values = [each["messages"] for each in traffic["steps"]]
    starts = [each["start_ns"] for each in traffic["steps"]]
    moments = [moment(ns) for ns in (*starts, starts[-1] + traffic["step_s"] * NS_PER_S)]
    times = [float(each) for each in date2num(moments)]  # type: ignore[no-untyped-call]
    locator = AutoDateLocator(minticks=2, maxticks=9)  # type: ignore[no-untyped-call]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE_INCHES, dpi=72, layout="constrained")
        ax = figure.add_subplot()
        ax.stairs(values, times, fill=True, color=_COLOURS["series"])
        ax.set_xlim(times[0], times[-1])
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]
        ax.set_ylim(0, 1.08 * max(values))
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        ax.yaxis.set_major_formatter(EngFormatter(sep=""))
        ax.yaxis.grid(visible=True)
        svg = to_svg(figure, _COLOURS, transparent=True)
    svg = re.sub(r"<style.*?</style>|<defs>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", svg, count=5)
    title = f"Messages over time; the most in one step are {max(values):,}"
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip()


def to_svg(figure: Figure, colours: Mapping[str, str], *, transparent: bool = False) -> str:
    """Return a figure as an SVG element, with variables of CSS, by name, in place of colours."""
    file = io.StringIO()
    metadata: Any = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=transparent, metadata=metadata)
    text = re.sub(r"(?s)\A.*?(?=<svg)|<metadata>.*?</metadata>", "", file.getvalue())
    for variable, colour in colours.items():
        text = text.replace(colour, f"var(--{variable})")
    return text
