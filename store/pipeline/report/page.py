"""The page of a report: one HTML file, with every figure also in a table.

Names that strangers chose pass `store.pipeline.report.text.shown` and then Jinja's escaping. No
script runs, and the page's own policy forbids it to load any resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from store.pipeline.limits import HOUR_NS
from store.pipeline.report import charts, text
from store.pipeline.report.figures import EDGES_S, Figures, axis_in
from store.pipeline.report.text import count, shard_name, shown, span, time
from storenode.message.limits import NS_PER_S

GOOD: Final = "good"
WARNING: Final = "warning"
NOTE: Final = "note"
_TOP: Final = 15
"""Rows of a table that are shown at once; the others are folded away."""

_LATE_S: Final = 60.0
_LATE_SHARE: Final = 0.05
"""From this share on, messages that are later than `_LATE_S` are a warning."""


class ReportFinding(NamedTuple):
    """A sentence of a report: good, a warning or a note; ``part`` is the section it links to."""

    kind: str
    text: str
    part: str


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
    filters = (text.shown, text.shard_name, text.span, text.time)
    environment.filters |= {each.__name__: each for each in filters}
    environment.filters |= {"number": lambda value: f"{value:,.0f}", "percent": "{:.1%}".format}
    environment.globals |= {"count": text.count, "top": _TOP, "hour_ns": HOUR_NS}
    found = findings_of(figures)
    context = {**figures, "findings": found, "parts": {each.part: each for each in reversed(found)}}
    if figures["traffic"] is not None:
        context |= _drawn(figures)
    return environment.get_template("page.html").render(context) + "\n"


def _drawn(figures: Figures) -> dict[str, Any]:
    """Return the charts, which contain nothing that strangers chose, and what belongs to them."""
    traffic, lateness = figures["traffic"], figures["lateness"]
    axis = axis_in(traffic)
    drawn = {
        "steps": charts.draw_steps(traffic),
        "heat": charts.draw_heat(traffic),
    }
    labels = ["before its time", *(f"≤ {span(edge)}" for edge in EDGES_S[1:])]
    labels.append(f"> {span(EDGES_S[-1])}")
    shards = {cell["shard"]: [0, 0] for cell in traffic["cells"]}
    for cell in traffic["cells"]:
        shards[cell["shard"]][0] += cell["messages"]
        shards[cell["shard"]][1] += cell["active_hours"]
    return {
        "charts": {name: Markup(chart) for name, chart in drawn.items()},  # noqa: S704 - see above
        "levels": charts.level_edges(traffic),
        "labels": labels,
        "live": live_messages(lateness) if lateness is not None else 0,
        "hours": (axis.last_ns - axis.first_ns) // HOUR_NS,
        "shards": sorted(shards.items()),
        "step": span(axis.step_ns / NS_PER_S),
        "busiest": max(traffic["steps"], key=lambda each: each["messages"]),
    }


def live_messages(lateness: Figures) -> int:
    """Return the number of messages that clients and gossip brought."""
    return sum(each["messages"] for each in lateness["classes"])


def findings_of(figures: Figures) -> list[ReportFinding]:
    """Return all findings, warnings first."""
    found = list(_findings(figures))
    return sorted(found, key=lambda each: (WARNING, GOOD, NOTE).index(each.kind))


def _findings(figures: Figures) -> Iterator[ReportFinding]:
    if figures["completeness"] is not None:
        yield completeness_finding(figures["completeness"])
    traffic = figures["traffic"]
    if traffic is None:
        yield ReportFinding(
            WARNING, f"{shown(figures['name'])} holds no messages of this time.", "top"
        )
    else:
        yield gap_finding(traffic)
    if figures["lateness"] is not None:
        yield lateness_finding(figures["lateness"])
    if traffic is not None and traffic["not_drawn"]:
        messages = count(traffic["not_drawn"], "message")
        sentence = f"{messages} with a timestamp far from all others: counted, and not drawn."
        yield ReportFinding(NOTE, sentence, "traffic")


def gap_finding(traffic: Figures) -> ReportFinding:
    """Return the finding on silent hours of shards."""
    if not traffic["gap_count"]:
        text = "No shard was silent for longer than its traffic explains."
        return ReportFinding(GOOD, text, "gaps")
    worst = traffic["gaps"][0]
    text = (
        f"{count(traffic['gap_count'], 'gap')}: the greatest in {shard_name(worst['shard'])},"
        f" {count(worst['hours'], 'hour')} from {time(worst['start_ns'])}, where about"
        f" {count(worst['expected_messages'], 'message')} would have been usual."
    )
    return ReportFinding(WARNING, text, "gaps")


def completeness_finding(found: Figures) -> ReportFinding:
    """Return the finding on missing parents and incomplete pasts."""
    part = "completeness"
    if not found["channels"]:
        return ReportFinding(NOTE, "No message is one of SDS, so none names others.", part)
    if not (found["missing"] or found["incomplete"] or found["faults"]):
        channels = count(found["channels"], "channel")
        return ReportFinding(
            GOOD, f"Every message that another names is held, in {channels}.", part
        )
    since = ""
    dated = [each for each in found["least_complete"] if each["missing_since"] is not None]
    if dated:
        first = min(dated, key=lambda each: int(each["missing_since"]))
        since = f", first named {time(first['missing_since'])} in {shown(first['channel'])}"
    past = f"; {count(found['incomplete'], 'message')} with an incomplete past"
    faults = f"; {count(found['faults'], 'contradiction')}" if found["faults"] else ""
    verb = "is" if found["missing"] == 1 else "are"
    missing = f"{count(found['missing'], 'message')} that others name as parents {verb} missing"
    return ReportFinding(WARNING, f"{missing}{since}{past}{faults}.", part)


def lateness_finding(lateness: Figures) -> ReportFinding:
    """Return the finding on the lateness of new messages."""
    live = live_messages(lateness)
    if not live:
        text = "Of no message is it known when a client or gossip brought it."
        return ReportFinding(NOTE, text, "lateness")

    def within(seconds: float) -> float:
        classes = lateness["classes"][: EDGES_S.index(seconds) + 1]
        share: float = sum(each["messages"] for each in classes) / live
        return share

    late = 1 - within(_LATE_S)
    latest = f", and {late:.1%} later than {span(_LATE_S)}" if late else ""
    text = (
        f"{within(1.0):.1%} of {count(live, 'message')} that clients and gossip brought were stored"
        f" within a second of their timestamp{latest}."
    )
    return ReportFinding(WARNING if late >= _LATE_SHARE else GOOD, text, "lateness")
