"""The page of a report: one HTML file, with every figure also in a table.

Names that strangers chose pass `store.pipeline.report.text.shown` and then Jinja's escaping. No
script runs, and the page's own policy forbids it to load any resource.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from store.pipeline.limits import HOUR_NS
from store.pipeline.report import text
from store.pipeline.report.charts import draw_steps
from store.pipeline.report.figures import Figures
from store.pipeline.report.text import count, shown, time

GOOD: Final = "good"
WARNING: Final = "warning"
NOTE: Final = "note"
_TOP: Final = 15
"""Rows of a table that are shown at once; the others are folded away."""


def page_of(figures: Figures) -> str:
    """Return the report as HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (text.shown, text.shard_name, text.time)
    environment.filters |= {each.__name__: each for each in filters}
    environment.filters |= {"number": lambda value: f"{value:,.0f}", "percent": "{:.1%}".format}
    environment.globals |= {"count": text.count, "top": _TOP}
    context = {**figures, "finding": finding_of(figures["completeness"])}
    traffic = figures["traffic"]
    if traffic is not None:
        context |= {
            "chart": Markup(draw_steps(traffic)),  # noqa: S704 - no name of a stranger is in it
            "hours": (traffic["to_ns"] - traffic["from_ns"]) // HOUR_NS,
            "step": text.span(traffic["step_s"]),
            "busiest": max(traffic["steps"], key=lambda each: each["messages"]),
        }
    return environment.get_template("page.html").render(context) + "\n"


def finding_of(found: Figures | None) -> tuple[str, str]:
    """Return the kind and the sentences of the finding on missing parents and incomplete pasts."""
    if found is None:
        return (NOTE, "Missing messages were not looked for (--without-audit).")
    if not found["left_out"]:
        return _finding_of_audited(found)
    large = ", ".join(shown(each["channel"]) for each in found["left_out"])
    others = f" {_finding_of_audited(found)[1]}" if found["channels"] else ""
    return (WARNING, f"Too large to be audited, except in shorter ranges of time: {large}.{others}")


def _finding_of_audited(found: Figures) -> tuple[str, str]:
    if not found["channels"]:
        return (NOTE, "No message is one of SDS, so none names others.")
    if not (found["missing"] or found["incomplete"] or found["faults"]):
        channels = count(found["channels"], "channel")
        return (GOOD, f"Every message that another names is held, in {channels}.")
    since = ""
    dated = [each for each in found["least_complete"] if each["missing_since"] is not None]
    if dated:
        first = min(dated, key=lambda each: int(each["missing_since"]))
        since = f", first named {time(first['missing_since'])} in {shown(first['channel'])}"
    past = f"; {count(found['incomplete'], 'message')} with an incomplete past"
    faults = f"; {count(found['faults'], 'contradiction')}" if found["faults"] else ""
    verb = "is" if found["missing"] == 1 else "are"
    missing = f"{count(found['missing'], 'message')} that others name as parents {verb} missing"
    return (WARNING, f"{missing}{since}{past}{faults}.")
