"""`archive`: copy the messages that an archive lacks from a database, each once.

Hours are compared by their fingerprints. Of those that differ, the messages that the archive does
not hold are read, written, read back, committed, and then marked in the database, in steps that
are committed one by one. So it does not matter what was archived before, in which order messages
arrived, or where another run was killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.db.locks import ARCHIVING
from store.pipeline import parquet
from store.pipeline.columns import NAMES
from store.pipeline.database import (
    ALL,
    FOREVER,
    DatabaseState,
    connected,
    lock,
    mark_archived,
    other_stores,
    read_marked_archives,
    read_marks,
    read_state,
)
from store.pipeline.delta import DataFile, DeltaArchive
from store.pipeline.errors import PipelineError, spark_errors
from store.pipeline.fingerprints import NOTHING, Fingerprints, collected
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_CONNECTIONS, MAX_LISTED, MIN_PORTION_ROWS
from store.pipeline.manifest import day_of
from store.pipeline.message_sets import recorded_in
from store.pipeline.reports import JobReport, time_text
from store.pipeline.source import in_steps, read_database
from store.pipeline.spark import logged


def read_back(
    session: SparkSession, archive: DeltaArchive, written: Iterable[Row]
) -> tuple[list[DataFile], Fingerprints]:
    """Read files that `write_files` has written; return them, and what they hold by hour."""
    files: dict[str, DataFile] = {}
    for row in written:
        path = f"{archive.messages}/{row['path']}"
        _, shard = (part.partition("=")[2] for part in row["path"].split("/")[:2])
        size, rows = row["size_bytes"], row["rows"]
        files[path] = DataFile(path, day_of(row["path"]), int(shard), size, rows)
    if not files:
        return [], {}
    digests = parquet.file_digests(session, files.values())
    messages = parquet.read_files(session, files.values(), (*parquet.KEY, parquet.PATH.name))
    ends = [F.min("ts").alias("low"), F.max("ts").alias("high")]
    hour_of_file = (parquet.PATH.name, parquet.start_of(HOUR_NS))
    parts = messages.groupBy(*hour_of_file).agg(*parquet.sums(), *ends).collect()
    found: dict[str, list[Row]] = {}
    for part in parts:
        found.setdefault(part["path"], []).append(part)
    done = []
    for path, file in sorted(files.items()):
        hours = found.get(path, [])
        if sum(each["count"] for each in hours) != file.rows or path not in digests:
            raise PipelineError(
                f"{path} does not hold what was written to it: nothing was committed."
            )
        low, high = min(each["low"] for each in hours), max(each["high"] for each in hours)
        size, digest = digests[path]
        done.append(file._replace(size_bytes=size, min_ts=low, max_ts=high, digest=digest))
    return done, collected(parts)


@dataclass
class ArchiveReport(JobReport):
    """The result of an archive run, or a forecast of it if it was a ``dry_run``.

    ``messages_to_do`` is the forecast; ``messages`` were committed in ``files``.
    ``compacted_files`` small files are gone, and ``removed_files`` old ones were deleted.
    ``hours_marked`` were marked in the database as archived, ``hours_marked_before`` already were.
    ``hours_differing`` hold messages in the archive that the database lacks; ``hours_dropped`` were
    dropped by retention before all of them was read; ``hours_damaged`` are not in the files as they
    were. ``marked_archive``: no hour was marked, since the marks of the database name that archive.
    """

    position: int = 0
    messages_to_do: int = 0
    messages: int = 0
    files: int = 0
    compacted_files: int = 0
    removed_files: int = 0
    hours_marked: int = 0
    hours_marked_before: int = 0
    hours_differing: list[int] = field(default_factory=list)
    hours_dropped: list[int] = field(default_factory=list)
    hours_damaged: list[int] = field(default_factory=list)
    marked_archive: str | None = None
    dry_run: bool = False

    @property
    def sound(self) -> bool:
        """True if every complete hour of the database is marked as archived."""
        faults = (self.hours_differing, self.hours_dropped, self.hours_damaged)
        return not (any(faults) or self.marked_archive)

    def lines(self) -> list[str]:
        """Return the report as text."""
        if self.dry_run:
            to_do = f"{self.messages_to_do:,} messages"
            return [f"Would archive about {to_do}, up to commit {self.position}."]
        lines = [
            (
                f"Archived {self.messages:,} messages in {self.files:,} files, up to commit"
                f" {self.position}."
            ),
            (
                f"Marked {self.hours_marked:,} hours as archived; {self.hours_marked_before:,}"
                " already were."
            ),
        ]
        if self.compacted_files:
            lines.append(f"Made {self.compacted_files:,} small files into larger ones.")
        if self.marked_archive is not None:
            lines.append(
                "No hour was marked as archived: the marks of the database name"
                f" {self.marked_archive}. If this archive is to count for"
                " --retention-requires-archive, too, run this again with --mark-here."
            )
        lines += [
            f"The hour {time_text(hour)} cannot be marked as archived: files of the archive do not"
            " hold it as they did. `storenode pipeline verify` names them."
            for hour in self.hours_damaged[:MAX_LISTED]
        ]
        lines += [
            f"The hour {time_text(hour)} was dropped from the database before all of it was"
            " archived: --retention-requires-archive lets retention wait for the archive."
            for hour in self.hours_dropped[:MAX_LISTED]
        ]
        return lines + [
            f"The hour {time_text(hour)} cannot be marked as archived: the archive has messages of"
            " it that the database lacks. `storenode pipeline diff` lists them, `restore` restores"
            " them."
            for hour in self.hours_differing[:MAX_LISTED]
        ]


@dataclass(frozen=True)
class ArchiveJob:
    """A database, an archive, and a range of time in nanoseconds, the end exclusive.

    ``mark_here``: mark hours also if all marks of the database name other archives.
    """

    url: str
    archive: DeltaArchive
    low_ns: int = 0
    high_ns: int = FOREVER
    connections: int = MAX_CONNECTIONS
    mark_here: bool = False


@spark_errors()
def archive(session: SparkSession, job: ArchiveJob) -> ArchiveReport:
    """Append the messages that the archive lacks, and mark complete hours as archived."""
    with connected(job.url) as connection:
        lock(connection, ARCHIVING, "archiving this database")
        return _Archiver(session, job, connection).run()


def forecast(job: ArchiveJob) -> ArchiveReport:
    """Return about how many messages `archive` would append; change nothing.

    Hours are compared as a whole, so a range of time counts from and to whole hours.
    """
    stored: Fingerprints = recorded_in(job.archive.open()) if job.archive.exists else {}
    with connected(job.url) as connection:
        state = read_state(connection, job.low_ns // HOUR_NS * HOUR_NS, job.high_ns)
    messages = _missing(_hours_to_do(state, stored), stored)
    return ArchiveReport(state.position, messages, dry_run=True)


class _Archiver:
    """A run of `archive`; the connection holds the archiving lock."""

    def __init__(
        self, session: SparkSession, job: ArchiveJob, connection: psycopg.Connection[Any]
    ) -> None:
        self._session = session
        self._job = job
        self._archive = job.archive.open_for_writing()
        self._connection = connection
        self._stored = recorded_in(self._archive)
        self._read_back: set[int] = set()
        self._report = ArchiveReport()

    def run(self) -> ArchiveReport:
        """Archive what the database holds and the archive lacks."""
        other_stores(self._connection, self._archive.path, self._archive.manifest.positions)
        low_ns = self._job.low_ns // HOUR_NS * HOUR_NS
        state = read_state(self._connection, low_ns, self._job.high_ns)
        self._report.position = state.position
        self._append(state, in_steps(_hours_to_do(state, self._stored)))
        self._mark(state)
        self._compact()
        self._report.removed_files = self._archive.vacuum()
        return self._report

    def _append(self, state: DatabaseState, steps: list[Fingerprints]) -> None:
        """Archive hours step by step."""
        is_whole = (self._job.low_ns, self._job.high_ns) == ALL
        for number, hours in enumerate(steps, 1):
            what = f"archive, step {number} of {len(steps)}" if len(steps) > 1 else "archive"
            messages = _missing(hours, self._stored)
            with logged(what, messages):
                rows = self._missing_rows(NAMES, hours, state)
                written, added = self._write(rows, messages)
            if written:
                is_last = is_whole and number == len(steps)
                self._commit(written, added, state if is_last else None)

    def _missing_rows(
        self, names: Sequence[str], hours: Iterable[int], state: DatabaseState
    ) -> DataFrame:
        """Return the messages of some hours of the database that the archive does not hold."""
        rows = read_database(
            self._session,
            self._job.url,
            names,
            position=state.position,
            within=(self._job.low_ns, self._job.high_ns),
            hours=hours,
            connections=self._job.connections,
        )
        partial = [hour for hour in hours if hour in self._stored]
        if not partial:
            return rows
        files = self._archive.files({hour // DAY_NS for hour in partial})
        stored = parquet.read_files(
            self._session, files, parquet.KEY, min(partial), max(partial) + HOUR_NS
        )
        return rows.join(stored, list(parquet.KEY), "left_anti")

    def _write(
        self, rows: DataFrame, messages: int, *, by_hour: bool = True
    ) -> tuple[list[DataFile], Fingerprints]:
        """Write about ``messages`` messages, and read them back; few of them by one task."""
        wanted = max(1, messages // MIN_PORTION_ROWS)
        tasks = min(wanted, parquet.shuffle_partitions(self._session))
        done = parquet.write_files(rows, self._archive.messages, tasks, by_hour=by_hour)
        return read_back(self._session, self._archive, done)

    def _commit(
        self, written: list[DataFile], added: Fingerprints, last: DatabaseState | None
    ) -> None:
        """Commit new files; ``last``: with them, all of that state is archived."""
        grown = {hour: self._stored.get(hour, NOTHING).joined(each) for hour, each in added.items()}
        as_of = None if last is None else (last.store_id, last.position)
        self._archive.commit(written, (), grown, as_of)
        self._read_back |= added.keys() - self._stored.keys()
        self._stored |= grown
        self._report.messages += sum(each.rows for each in written)
        self._report.files += len(written)

    def _mark(self, state: DatabaseState) -> None:
        """Mark complete hours that are the same on both sides; a mark that still holds stays.

        Retention drops hours by their marks. So an archive that the marks do not name marks nothing
        unless ``mark_here`` is set.
        """
        connection, job, stored, result = self._connection, self._job, self._stored, self._report
        path = self._archive.path
        marked = read_marked_archives(connection)
        if marked and path not in marked and not job.mark_here:
            result.marked_archive = marked[0]
            return
        high_ns = min(job.high_ns, time.time_ns())
        sealed = {
            hour: each
            for hour, each in state.hours.items()
            if job.low_ns <= hour and hour + HOUR_NS <= high_ns
        }
        before = read_marks(connection, path if job.mark_here else None)
        new = {hour for hour, each in sealed.items() if before.get(hour) != each}
        equal = {hour for hour in new if stored.get(hour) == sealed[hour]}
        now = self._confirmed(equal)
        result.hours_marked_before = len(sealed) - len(new)
        result.hours_marked = mark_archived(connection, now, path)
        result.hours_damaged = sorted(hour for hour in now if now[hour] != stored[hour])
        differing = sorted(new - equal)
        there = read_state(connection, differing[0], differing[-1] + 1).hours if differing else {}
        result.hours_differing = [hour for hour in differing if hour in there]
        result.hours_dropped = [hour for hour in differing if hour not in there]

    def _confirmed(self, hours: set[int]) -> Fingerprints:
        """Return what the files hold of some hours; those that this has not written are read."""
        days = {hour // DAY_NS for hour in hours - self._read_back}
        found = parquet.fingerprints_of(self._session, self._archive.files(days))
        return {
            hour: self._stored[hour] if hour in self._read_back else found.get(hour, NOTHING)
            for hour in hours
        }

    def _compact(self) -> None:
        """Compact small files."""
        while files := self._archive.crowded():
            messages = sum(each.rows for each in files)
            with logged("compact", messages):
                parquet.require_whole(self._session, self._archive, files)
                rows = parquet.read_files(self._session, files, NAMES)
                written, added = self._write(rows, messages, by_hour=False)
                before = parquet.fingerprints_of(self._session, files)
            if added != before:
                raise PipelineError(
                    "Small files that were compacted did not hold the same, so they stay:"
                    " `storenode pipeline verify` says whether the archive is sound."
                )
            self._archive.commit(written, files, is_new=False)
            self._report.compacted_files += len(files)


def _hours_to_do(state: DatabaseState, stored: Fingerprints) -> Fingerprints:
    """Return the hours of which the database holds something else than the archive."""
    return {hour: each for hour, each in state.hours.items() if stored.get(hour) != each}


def _missing(to_do: Fingerprints, stored: Fingerprints) -> int:
    return sum(
        max(0, each.messages - stored.get(hour, NOTHING).messages) for hour, each in to_do.items()
    )
