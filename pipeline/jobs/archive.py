"""`archive`: what a database holds and the lake does not, into the lake, exactly once.

Hours are compared by their fingerprints; of those that differ, whatever the lake lacks is read and
appended. So it does not matter what was archived before, in which order it had arrived, or where
another run was killed. The files are read back before they are published: what they hold together
with what was there must be what the database says.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from pipeline.columns import PARTITIONS, file_columns, spark_schema
from pipeline.database import (
    FOREVER,
    State,
    connected,
    lock_archiving,
    mark_archived,
    read_archived,
    read_state,
)
from pipeline.errors import PipelineError, of_spark
from pipeline.fingerprints import (
    HASH_WORDS,
    NOTHING,
    Fingerprints,
    aggregates,
    collected,
    differing,
    start_of,
)
from pipeline.lake import Lake, Written
from pipeline.limits import DAY_NS, HOUR_NS, MAX_CONNECTIONS, MAX_LISTED
from pipeline.progress import Say, shown, silent
from pipeline.reports import time_text
from pipeline.slices import good_slice_rows, plan_slices, to_text
from pipeline.source import FORMAT, read_options

KEY: Final = ("ts", *HASH_WORDS)
"""The columns that tell messages apart: a timestamp, and a hash as words."""


@dataclass
class Archived:
    """What a run did, or would do when ``dry_run``.

    ``published`` messages went into ``files`` files. ``marked`` hours are noted in the database as
    archived, ``kept`` were noted already. ``differing`` hours are not the same in lake and
    database although everything was exported: the lake holds messages that the database lacks.
    """

    position: int
    to_do: int = 0
    published: int = 0
    files: int = 0
    compacted: int = 0
    marked: list[int] = field(default_factory=list)
    kept: int = 0
    differing: list[int] = field(default_factory=list)
    dry_run: bool = False

    @property
    def sound(self) -> bool:
        """Whether every sealed hour of the database is archived."""
        return not self.differing

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "position": self.position,
            "messages_to_do": self.to_do,
            "messages": self.published,
            "files": self.files,
            "compacted_files": self.compacted,
            "hours_marked": len(self.marked),
            "hours_marked_before": self.kept,
            "hours_differing": [time_text(hour) for hour in self.differing[:MAX_LISTED]],
            "dry_run": self.dry_run,
        }

    def lines(self) -> list[str]:
        """The same in words."""
        if self.dry_run:
            return [f"Would archive {self.to_do:,} messages, up to commit {self.position}."]
        told = [
            (
                f"Archived {self.published:,} messages in {self.files:,} files, up to commit"
                f" {self.position}."
            ),
            f"Noted {len(self.marked):,} hours as archived; {self.kept:,} were.",
        ]
        if self.compacted:
            told.append(f"Made {self.compacted:,} small files into larger ones.")
        return told + [
            f"The hour {time_text(hour)} is not noted: the archive holds messages of it that the"
            " database lacks. `storenode pipeline diff` says which, and `restore` brings them back."
            for hour in self.differing[:MAX_LISTED]
        ]


@dataclass(frozen=True)
class Archiving:
    """Where from and where to, and what part: times in nanoseconds, the end exclusive."""

    url: str
    lake: Lake
    low_ns: int = 0
    high_ns: int = FOREVER
    connections: int = MAX_CONNECTIONS
    dry_run: bool = False
    say: Say = silent


def archive(session: SparkSession, job: Archiving) -> Archived:
    """Bring an archive up to what the database holds now.

    Raises:
        PipelineError: database or lake do not serve, or somebody else archives; what was published
            stays, and nothing is half published.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(connected(job.url))
        lock_archiving(connection)
        return _Run(session, job, connection).run()


class _Run:
    def __init__(
        self, session: SparkSession, job: Archiving, connection: psycopg.Connection[Any]
    ) -> None:
        self._session = session
        self._job = job
        self._connection = connection
        self._lake = job.lake

    def run(self) -> Archived:
        job = self._job
        if job.dry_run and not self._lake.exists:
            state = self._state()
            return Archived(state.position, state.messages, dry_run=True)
        self._lake.open() if job.dry_run else self._lake.create()
        held = known_hours(self._session, self._lake, keep=not job.dry_run, say=job.say)
        state = self._state()
        wanted = state.fingerprints
        to_do = {
            hour: wanted[hour]
            for hour in differing(held, wanted)
            if hour in wanted and wanted[hour].messages
        }
        result = Archived(state.position, _missing(to_do, held), dry_run=job.dry_run)
        if job.dry_run:
            return result
        if to_do:
            held = self._export(state, to_do, held, result)
        self._note(state, held, result)
        result.compacted = self._compact()
        return result

    def _state(self) -> State:
        job = self._job
        low = job.low_ns // HOUR_NS * HOUR_NS
        return read_state(self._connection, low, job.high_ns)

    def _export(
        self, state: State, to_do: Fingerprints, held: Fingerprints, result: Archived
    ) -> Fingerprints:
        rows = sum(each.messages for each in to_do.values())
        run = f"run-{uuid.uuid4().hex}"
        try:
            with shown(self._session, self._job.say, "archive", rows):
                found = self._lacking(state, to_do, held, rows)
                write_files(found, f"{self._lake.messages}/{run}")
            written, added = read_back(self._session, self._lake, run)
        except PySparkException as error:
            raise of_spark(error) from error
        if not written:
            return held
        joined = {
            hour: held.get(hour, NOTHING).joined(added.get(hour, NOTHING))
            for hour in held.keys() | added.keys()
        }
        self._lake.publish(written, {"position": str(state.position), "store": state.store_id})
        self._lake.note_hours({hour // DAY_NS for hour in added}, joined)
        result.published = sum(each.rows for each in written)
        result.files = len(written)
        return joined

    def _lacking(
        self, state: State, to_do: Fingerprints, held: Fingerprints, rows: int
    ) -> DataFrame:
        """The messages of some hours, but for those that the lake has."""
        job = self._job
        tasks = max(job.connections, self._session.sparkContext.defaultParallelism)
        slices = plan_slices(
            to_do, state.partitions, job.low_ns, job.high_ns, good_slice_rows(rows, tasks)
        )
        options = read_options(
            job.url, position=state.position, slices=to_text(slices), connections=job.connections
        )
        found = self._session.read.format(FORMAT).options(**options).load()
        partial = [hour for hour in to_do if hour in held]
        return without_known(self._session, self._lake, found, partial)

    def _note(self, state: State, held: Fingerprints, result: Archived) -> None:
        """Mark what is sealed and the same; a mark that is still right stays."""
        job = self._job
        now_ns = time.time_ns()
        sealed = {
            hour: each
            for hour, each in state.fingerprints.items()
            if hour + HOUR_NS <= now_ns and job.low_ns <= hour and hour + HOUR_NS <= job.high_ns
        }
        before = read_archived(self._connection)
        result.kept = sum(before.get(hour) == each for hour, each in sealed.items())
        new = [hour for hour, each in sealed.items() if before.get(hour) != each]
        equal = [hour for hour in new if held.get(hour) == sealed[hour]]
        result.marked = mark_archived(self._connection, held, equal, self._lake.path)
        result.differing = sorted(hour for hour in new if held.get(hour) != sealed[hour])

    def _compact(self) -> int:
        crowded = self._lake.crowded()
        removed = self._lake.compact(crowded) if crowded else 0
        if removed:
            known_hours(self._session, self._lake, keep=True, say=self._job.say)
        return removed


def known_hours(
    session: SparkSession, lake: Lake, *, keep: bool, say: Say = silent
) -> Fingerprints:
    """What a lake holds by hour; days for which that is not known are read.

    ``keep`` notes what was found in the lake.
    """
    unknown = lake.unknown_days()
    hours = lake.hours()
    if unknown:
        files = lake.files(unknown)
        with shown(session, say, "read back", sum(each.rows for each in files)):
            found = fingerprints_of(session, [each.path for each in files], HOUR_NS)
        hours |= found
        if keep:
            lake.note_hours(unknown, found)
    return hours


def fingerprints_of(session: SparkSession, paths: list[str], length_ns: int) -> Fingerprints:
    """The fingerprints of the messages in some files.

    Raises:
        PipelineError: one cannot be read.
    """
    try:
        rows = read_files(session, paths, KEY)
        return collected(rows.groupBy(start_of(length_ns)).agg(*aggregates()).toLocalIterator())
    except PySparkException as error:
        raise of_spark(error) from error


def read_files(session: SparkSession, paths: list[str], names: Iterable[str]) -> DataFrame:
    """Some columns of some files of a lake."""
    return session.read.schema(spark_schema(names)).parquet(*paths)


def without_known(
    session: SparkSession, lake: Lake, found: DataFrame, hours: list[int]
) -> DataFrame:
    """Leave out what the lake has of some hours already."""
    files = [each.path for each in lake.files({hour // DAY_NS for hour in hours})]
    if not files:
        return found
    known = read_files(session, files, KEY).where(
        (F.col("ts") - F.col("ts") % F.lit(HOUR_NS)).isin(hours)
    )
    return found.join(known, list(KEY), "left_anti")


def write_files(rows: DataFrame, path: str) -> None:
    """Write rows with all columns as files by day and shard."""
    ordered = rows.select(*file_columns(), *PARTITIONS)
    ordered.write.mode("append").partitionBy(*PARTITIONS).parquet(path)


def read_back(session: SparkSession, lake: Lake, run: str) -> tuple[list[Written], Fingerprints]:
    """The files that a run has written, and what they hold by hour."""
    folder = f"{lake.messages}/{run}"
    schema = spark_schema(KEY)
    rows = session.read.schema(schema).option("recursiveFileLookup", "true").parquet(folder)
    by_file = (
        rows.groupBy("_metadata.file_path", "_metadata.file_size", start_of(HOUR_NS))
        .agg(*aggregates(), F.min("ts").alias("low"), F.max("ts").alias("high"))
        .collect()
    )
    files: dict[str, Written] = {}
    for row in by_file:
        path = f"{run}/{row['file_path'].split(f'/{run}/', 1)[1]}"
        one = Written(
            path,
            _between(path, "day="),
            int(_between(path, "shard=")),
            row["file_size"],
            row["count"],
            row["low"],
            row["high"],
        )
        files[path] = _joined(files[path], one) if path in files else one
    return sorted(files.values(), key=lambda each: each.path), collected(by_file)


def _joined(one: Written, other: Written) -> Written:
    return Written(
        one.path,
        one.day,
        one.shard,
        one.size_bytes,
        one.rows + other.rows,
        min(one.min_ts, other.min_ts),
        max(one.max_ts, other.max_ts),
    )


def _between(path: str, name: str) -> str:
    try:
        return path.split(name, 1)[1].split("/", 1)[0]
    except IndexError as error:
        raise PipelineError(f"A file was written where none belongs: {path}.") from error


def _missing(to_do: Fingerprints, held: Fingerprints) -> int:
    return sum(
        max(0, each.messages - held.get(hour, NOTHING).messages) for hour, each in to_do.items()
    )
