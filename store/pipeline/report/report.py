"""`report`: an HTML page on an archive, or on a database."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from store.pipeline.audit.audit import audit
from store.pipeline.database import ALL, Range
from store.pipeline.errors import spark_errors
from store.pipeline.files import write_text
from store.pipeline.message_sets import MessageSet
from store.pipeline.report.figures import Figures, completeness_of, to_json, traffic_of
from store.pipeline.report.page import finding_of, page_of
from store.pipeline.reports import JobReport
from store.pipeline.spark import logged

_TRAFFIC: Final = ("ts", "shard", "pubsub_topic", "content_topic", "payload", "channel")


@dataclass
class PageReport(JobReport):
    """The figures, and the page that was written."""

    figures: Figures
    output: Path

    @property
    def sound(self) -> bool:
        """False if the audit left channels out."""
        return not (self.figures["completeness"] or {}).get("left_out")

    def as_json(self) -> dict[str, Any]:
        """Return the figures behind the page."""
        return {"output": str(self.output), **to_json(self.figures)}

    def lines(self) -> list[str]:
        """Return where the page is, and what it warns of if not all was audited."""
        traffic = self.figures["traffic"]
        messages = 0 if traffic is None else traffic["messages"]
        line = f"The report on {messages:,} messages is in {self.output}: open it in a browser."
        return [line] if self.sound else [line, finding_of(self.figures["completeness"])[1]]


@spark_errors()
def report(
    messages: MessageSet,
    output: Path,
    *,
    bounds: Range = ALL,
    is_audited: bool = True,
) -> PageReport:
    """Gather the figures of a range of a set of messages, and write the page, whole or not at all.

    ``bounds`` are times in nanoseconds, the end exclusive. ``is_audited``: look for causal gaps.
    """
    completeness = completeness_of(audit(messages, bounds=bounds)) if is_audited else None
    with logged("report"):
        traffic = traffic_of(messages.session, messages.messages(_TRAFFIC, bounds))
    figures = {
        "name": messages.name,
        "made_ns": time.time_ns(),
        "traffic": traffic,
        "completeness": completeness,
    }
    write_text(output, "The report", [page_of(figures)])
    return PageReport(figures, output)
