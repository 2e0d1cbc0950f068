"""`report`: an HTML page on an archive, or on a database.

A database beside an archive adds how late messages were stored, and which hours differ.
"""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.database import FOREVER
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.files import require_new, write_text
from store.pipeline.fingerprints import NOTHING, Fingerprints, differing
from store.pipeline.limits import HOUR_NS, MAX_CONNECTIONS, MAX_LISTED
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages
from store.pipeline.report.figures import (
    Figures,
    axis_in,
    completeness_of,
    lateness_of,
    to_json,
    traffic_of,
)
from store.pipeline.report.page import page_of
from store.pipeline.reports import JobReport, time_text
from store.pipeline.spark import Say, shown, silent

_TRAFFIC: Final = ("ts", "shard", "pubsub_topic", "content_topic", "payload", "channel")
_NAMES: Final = ("ts", "channel", "sender")
_LATENESS: Final = ("ts", "committed_ns", "source")


@dataclass(frozen=True)
class ReportJob:
    """An output, and a range of an archive or a database in nanoseconds, the end exclusive.

    ``archive`` None: the report is on the database. ``audit``: look for causal gaps, too. ``names``
    is a file for the names of all channels and senders.
    """

    output: Path
    archive: DeltaArchive | None
    url: str | None
    low_ns: int = 0
    high_ns: int = FOREVER
    connections: int = MAX_CONNECTIONS
    say: Say = silent
    audit: bool = True
    names: Path | None = None


@dataclass
class PageReport(JobReport):
    """The figures, and the page that was written."""

    figures: Figures
    output: Path
    names: Path | None

    def as_json(self) -> dict[str, Any]:
        """Return the figures behind the page."""
        return {"output": str(self.output), **to_json(self.figures)}

    def lines(self) -> list[str]:
        """Return where the page is."""
        traffic = self.figures["traffic"]
        messages = 0 if traffic is None else traffic["messages"]
        found = [f"The report on {messages:,} messages is in {self.output}: open it in a browser."]
        if self.names is not None:
            found.append(f"The names of all channels and senders are in {self.names}.")
        return found


def report(session: SparkSession, job: ReportJob) -> PageReport:
    """Gather the figures and write the page, whole or not at all."""
    require_outputs(job.output, job.names)
    try:
        figures = _gathered(session, job)
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    write_text(job.output, "The report", lambda file: file.write(page_of(figures)))
    return PageReport(figures, job.output, job.names)


def require_outputs(output: Path, names: Path | None) -> None:
    """Raise unless the page and the names, if they are wanted, can be written."""
    require_new(output, "the report")
    if names is not None:
        require_new(names, "the names")


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
        compared = None
        if archive is not None:
            stored = archive.hours
            complete_ns = archive.archive.changed_ns
            if database is not None:
                wanted = database.hours
                sealed = {
                    hour: each
                    for hour, each in wanted.items()
                    if job.low_ns <= hour and hour + HOUR_NS <= end_ns
                }
                compared, complete_ns = _compared(stored, sealed)
            end_ns = min(end_ns, complete_ns)
        if job.names is not None:
            _write_names(job.names, messages.messages(_NAMES, *range_ns))
        rows = messages.messages(_TRAFFIC, *range_ns)
        traffic = traffic_of(session, rows, end_ns)
        lateness = None
        if database is not None and traffic is not None:
            committed = database.messages(_LATENESS, *range_ns)
            lateness = lateness_of(session, committed, axis_in(traffic))
        return {
            "name": messages.name,
            "made_ns": time.time_ns(),
            "traffic": traffic,
            "compared": compared,
            "lateness": lateness,
            "completeness": completeness,
        }


def _compared(stored: Fingerprints, sealed: Fingerprints) -> tuple[Figures, int]:
    """Compare complete hours of a database with those of an archive.

    Returns the hours that differ, and the first hour that is later than all of the archive.
    """
    wrong = [hour for hour in differing(sealed, stored) if hour in sealed]
    listed = [
        {"start_ns": hour, "archive": stored.get(hour, NOTHING).messages}
        | {"database": sealed[hour].messages}
        for hour in wrong[-MAX_LISTED:]
    ]
    newest = max(stored, default=0)
    figures = {"hours": len(sealed), "differing": len(wrong), "listed": listed}
    return figures, min((hour for hour in wrong if hour > newest), default=FOREVER)


def _write_names(file: Path, messages: DataFrame) -> None:
    """Write a row of CSV for each channel and sender, as their messages name them."""
    found = (
        messages.where("channel is not null")
        .groupBy("channel", "sender")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.min("ts").alias("first"),
            F.max("ts").alias("last"),
        )
        .orderBy(F.desc("messages"), "channel", "sender")
    )

    def write(opened: TextIO) -> None:
        rows = csv.writer(opened)
        rows.writerow(found.columns)
        for channel, sender, count, first, last in found.toLocalIterator():
            rows.writerow((channel, sender, count, time_text(first), time_text(last)))

    write_text(file, "The names", write)
