"""`report`: an HTML page on an archive, or on a database.

A database beside an archive adds how late messages were stored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.database import FOREVER
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.files import require_new, write_text
from store.pipeline.limits import MAX_CONNECTIONS
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages
from store.pipeline.report.figures import (
    Figures,
    completeness_of,
    lateness_of,
    to_json,
    traffic_of,
)
from store.pipeline.report.page import page_of
from store.pipeline.reports import JobReport
from store.pipeline.spark import Say, shown, silent

_TRAFFIC: Final = ("ts", "shard", "pubsub_topic", "content_topic", "payload", "channel")
_LATENESS: Final = ("ts", "committed_ns", "source")


@dataclass(frozen=True)
class ReportJob:
    """An output, and a range of an archive or a database in nanoseconds, the end exclusive.

    ``archive`` None: the report is on the database. ``audit``: look for causal gaps, too.
    """

    output: Path
    archive: DeltaArchive | None
    url: str | None
    low_ns: int = 0
    high_ns: int = FOREVER
    connections: int = MAX_CONNECTIONS
    say: Say = silent
    audit: bool = True


@dataclass
class PageReport(JobReport):
    """The figures, and the page that was written."""

    figures: Figures
    output: Path

    def as_json(self) -> dict[str, Any]:
        """Return the figures behind the page."""
        return {"output": str(self.output), **to_json(self.figures)}

    def lines(self) -> list[str]:
        """Return where the page is."""
        traffic = self.figures["traffic"]
        messages = 0 if traffic is None else traffic["messages"]
        return [f"The report on {messages:,} messages is in {self.output}: open it in a browser."]


def report(session: SparkSession, job: ReportJob) -> PageReport:
    """Gather the figures and write the page, whole or not at all."""
    require_output(job.output)
    try:
        figures = _gathered(session, job)
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    write_text(job.output, "The report", lambda file: file.write(page_of(figures)))
    return PageReport(figures, job.output)


def require_output(output: Path) -> None:
    """Raise unless the page can be written."""
    require_new(output, "the report")


def _gathered(session: SparkSession, job: ReportJob) -> Figures:
    archive = None if job.archive is None else ArchiveMessages(session, job.archive)
    database = None
    if job.url is not None:
        database = DatabaseMessages(session, job.url, "the database", job.connections)
    messages = archive or database
    assert messages is not None
    range_ns = (job.low_ns, job.high_ns)
    completeness = None
    if job.audit:
        completeness = completeness_of(audit(session, AuditJob(messages, *range_ns, say=job.say)))
    with shown(job.say, "report"):
        end_ns = min(job.high_ns, time.time_ns())
        if archive is not None:
            end_ns = min(end_ns, archive.archive.changed_ns)
        rows = messages.messages(_TRAFFIC, *range_ns)
        traffic = traffic_of(session, rows, end_ns)
        lateness = None
        if database is not None and traffic is not None:
            committed = database.messages(_LATENESS, *range_ns)
            lateness = lateness_of(session, committed)
        return {
            "name": messages.name,
            "made_ns": time.time_ns(),
            "traffic": traffic,
            "lateness": lateness,
            "completeness": completeness,
        }
