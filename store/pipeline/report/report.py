"""`report`: how a place has fared, as a page for people.

The messages are an archive's, or without one a database's. A database beside an archive adds what
only it has: how late messages were stored, and which hours are not the same.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from pyspark.sql import SparkSession

from store.domain.partitioning import Bounds
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.audit.summary import AuditReport
from store.pipeline.database import FOREVER, State, connected, read_state
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from store.pipeline.fingerprints import NOTHING, Fingerprints, coarser, differing
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_CONNECTIONS, MAX_LISTED
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages, MessageSet
from store.pipeline.paths import require_new
from store.pipeline.progress import Say, shown, silent
from store.pipeline.report.arrivals import LatenessSummary, arrivals_of
from store.pipeline.report.figures import (
    ArchiveComparison,
    ChannelPast,
    Completeness,
    Difference,
    Gathered,
    MissingParent,
    Place,
    ReportedPeer,
)
from store.pipeline.report.limits import MAX_PEERS
from store.pipeline.report.outlook import Limits, outlook_of
from store.pipeline.report.page import page_of
from store.pipeline.report.traffic import Traffic, sized_messages, traffic_of
from store.pipeline.writing import known_hours

_MODE: Final = 0o644
_STORED_BYTES: Final = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
from pg_class c where c.relnamespace = 'storenode'::regnamespace and c.relkind = 'r'
"""


@dataclass(frozen=True)
class ReportJob:
    """An output, and a range of an archive or a database in nanoseconds, the end exclusive.

    ``archive`` None: the report is on the database. ``limits`` are what is meant to be kept:
    ``disk_bytes`` is of the archive if there is one. ``node`` names the node that ``peers`` were
    requested from; None: there was none. ``audit``: look for causal gaps, too.
    """

    output: Path
    archive: DeltaArchive | None
    url: str | None
    low_ns: int = 0
    high_ns: int = FOREVER
    limits: Limits = field(default_factory=Limits)
    node: str | None = None
    peers: Sequence[ReportedPeer] = ()
    connections: int = MAX_CONNECTIONS
    say: Say = silent
    audit: bool = True


@dataclass(frozen=True)
class PageReport:
    """The figures, and the page that was written."""

    gathered: Gathered
    output: Path

    @property
    def sound(self) -> bool:
        """The constant True: a report has no verdict."""
        return True

    def as_json(self) -> dict[str, Any]:
        """Return the figures behind the page."""
        return {"output": str(self.output), **self.gathered.as_json()}

    def lines(self) -> list[str]:
        """Return where the page is."""
        traffic = self.gathered.traffic
        messages = 0 if traffic is None else traffic.messages
        return [f"The report on {messages:,} messages is in {self.output}: open it in a browser."]


def report(session: SparkSession, job: ReportJob) -> PageReport:
    """Gather the figures and write the page, whole or not at all.

    Raises:
        PipelineError: the output is there already or cannot be written, or a place does not serve.
    """
    require_output(job.output)
    try:
        gathering = _Gathering(session, job)
        completeness = gathering.audited() if job.audit else None
        with shown(session, job.say, "report"):
            gathered = gathering.gather(completeness)
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    _write(job.output, page_of(gathered))
    return PageReport(gathered, job.output)


def require_output(output: Path) -> None:
    """Raise unless the page can be written.

    Raises:
        PipelineError: as `store.pipeline.paths.require_new`.
    """
    require_new(output, "the report")


class _Gathering:
    def __init__(self, session: SparkSession, job: ReportJob) -> None:
        self._session = session
        self._job = job
        self._archive = None if job.archive is None else job.archive.open()
        self._state: State | None = None
        self._stored_bytes = 0
        self._lacking_ns = FOREVER
        if job.url is not None:
            with connected(job.url) as connection:
                self._state = read_state(connection)
                self._stored_bytes = _stored_bytes(connection)

    def audited(self) -> Completeness:
        """Return the result of an audit of the same messages."""
        job = self._job
        work = AuditJob(self._messages(), job.low_ns, job.high_ns, say=job.say)
        found = audit(self._session, work)
        return completeness_of(found)

    def gather(self, completeness: Completeness | None) -> Gathered:
        """Gather all other figures."""
        job = self._job
        compared = self._compared()
        traffic = self._traffic(compared)
        return Gathered(
            "the database" if self._archive is None else self._archive.path,
            time.time_ns(),
            traffic,
            compared,
            self._arrivals(traffic),
            tuple(self._places()),
            completeness,
            job.node,
            tuple(job.peers[:MAX_PEERS]),
            len(job.peers),
        )

    def _messages(self) -> MessageSet:
        if self._archive is not None:
            return ArchiveMessages(self._session, self._archive)
        url, connections = self._job.url, self._job.connections
        assert url is not None
        return DatabaseMessages(self._session, url, "the database", connections)

    def _traffic(self, compared: ArchiveComparison | None) -> Traffic | None:
        rows = sized_messages(self._messages(), self._job.low_ns, self._job.high_ns)
        return traffic_of(rows, self._end_ns(compared))

    def _end_ns(self, compared: ArchiveComparison | None) -> int:
        """Return the time up to which all messages are here.

        Of an archive it is that of its newest commit, or beside a database the present or the first
        hour of the database that is after all of the archive.
        """
        end_ns = min(self._job.high_ns, time.time_ns())
        if self._archive is None:
            return end_ns
        if compared is None:
            return min(end_ns, self._archive.changed_ns)
        return min(end_ns, self._lacking_ns)

    def _compared(self) -> ArchiveComparison | None:
        if self._archive is None or self._state is None:
            return None
        stored = known_hours(self._session, self._archive)
        wanted = self._sealed(self._state.fingerprints)
        wrong = [hour for hour in differing(wanted, stored) if hour in wanted]
        newest = max(stored, default=0)
        self._lacking_ns = min((hour for hour in wrong if hour > newest), default=FOREVER)
        listed = (
            Difference(hour, stored.get(hour, NOTHING).messages, wanted[hour].messages)
            for hour in sorted(wrong)[-MAX_LISTED:]
        )
        return ArchiveComparison(len(wanted), len(wrong), tuple(listed))

    def _sealed(self, hours: Fingerprints) -> Fingerprints:
        """Return the complete hours that are wholly in the range of the report."""
        job = self._job
        end_ns = min(job.high_ns, time.time_ns())
        return {
            hour: each
            for hour, each in hours.items()
            if job.low_ns <= hour and hour + HOUR_NS <= end_ns
        }

    def _arrivals(self, traffic: Traffic | None) -> LatenessSummary | None:
        job = self._job
        if job.url is None or self._state is None or traffic is None:
            return None
        bounds = Bounds(job.low_ns, job.high_ns)
        return arrivals_of(
            self._session,
            job.url,
            self._state,
            bounds,
            axis=traffic.axis,
            connections=job.connections,
        )

    def _places(self) -> list[Place]:
        limits = self._job.limits
        places = []
        if self._state is not None:
            disk = limits.disk_bytes if self._archive is None else None
            kept = Limits(limits.retention_ns, limits.retention_bytes, disk)
            days = _by_day(self._state.fingerprints)
            outlook = outlook_of(days, self._stored_bytes, kept)
            places.append(Place("the database", kept, outlook))
        if self._archive is not None:
            files = self._archive.files()
            by_day: dict[int, int] = {}
            for each in files:
                by_day[each.day] = by_day.get(each.day, 0) + each.rows
            kept = Limits(disk_bytes=limits.disk_bytes)
            outlook = outlook_of(by_day, sum(each.size_bytes for each in files), kept)
            places.insert(0, Place("the archive", kept, outlook))
        return places


def completeness_of(found: AuditReport) -> Completeness:
    """Return the result of an audit for a report."""
    counts = found.counts
    pasts = (
        ChannelPast(
            each["channel"],
            each["messages"],
            each["missing"],
            each["incomplete"],
            None if each["last_complete"] is None else each["last_complete"]["ts"],
            each["missing_since"],
            each["naming_senders"],
            tuple(each["named_by"]),
        )
        for each in found.channels
    )
    lost = (
        MissingParent(
            each["channel"],
            each["message_id"],
            each["named_by"],
            each["first_named_by"],
            each["sender"],
            each["ts"],
            each["hint"],
        )
        for each in found.missing
    )
    return Completeness(
        counts["channels"],
        counts["missing"],
        counts["incomplete"],
        counts["violations"] + counts["cycles"] + counts["conflicts"],
        tuple(pasts),
        tuple(lost),
        found.claims.untrue,
    )


def _by_day(hours: Fingerprints) -> dict[int, int]:
    return {start // DAY_NS: each.messages for start, each in coarser(hours, DAY_NS).items()}


def _stored_bytes(connection: psycopg.Connection[Any]) -> int:
    """Return the size of the database's tables on disk, with their indexes."""
    ((size,),) = connection.execute(_STORED_BYTES).fetchall()
    return int(size)


def _write(output: Path, page: str) -> None:
    """Write a file that is there whole or not at all, and never over another."""
    try:
        fd, name = tempfile.mkstemp(prefix=f".{output.name[:64]}-", dir=output.parent)
    except OSError as error:
        raise _unwritable(output, error) from error
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(page)
            os.fchmod(file.fileno(), _MODE)
            file.flush()
            os.fsync(file.fileno())
        _name(Path(name), output)
    except OSError as error:
        raise _unwritable(output, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def _unwritable(output: Path, error: OSError) -> PipelineError:
    return PipelineError(f"The report could not be written to {output} ({error.strerror}).")


def _name(temporary: Path, output: Path) -> None:
    try:
        output.hardlink_to(temporary)
    except FileExistsError:
        require_output(output)
    except OSError:
        # Not every file system has links; between this look and the renaming nobody is likely.
        require_output(output)
        temporary.rename(output)
