"""`archive --follow`: new messages into the archive as they come, until interrupted.

This is a Structured Streaming query over the commits of the database. A micro-batch is added in one
commit, without the messages that the archive holds. So a batch that is repeated after a crash
changes nothing, and checkpoints only spare work.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from store.db.locks import ARCHIVING
from store.pipeline.archive import ArchiveJob, ArchiveReport, archive_locked, mark_hours
from store.pipeline.columns import NAMES
from store.pipeline.database import connected, lock_archiving, read_archived, read_state
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from store.pipeline.limits import HOUR_NS
from store.pipeline.paths import for_spark, on_store
from store.pipeline.scan import start_of
from store.pipeline.source import FORMAT, read_options
from store.pipeline.writing import ArchiveWriter

INTERVAL_S: Final = 60
"""The time between two micro-batches; each becomes one commit with a file or more."""

_LOOK_S: Final = 1
_COMPACT_EVERY_S: Final = 3_600
"""The time between two compactions."""

_VACUUM_EVERY_S: Final = 24 * 3_600
_HOLDS_LOCK: Final[LiteralString] = """
select exists (
    select from pg_locks where locktype = 'advisory' and granted and pid = %s
    and database = (select oid from pg_database where datname = current_database())
    and (classid::bigint << 32) | objid::bigint = %s)
"""


@dataclass
class BatchWriter:
    """Adds micro-batches to an archive, in the process in which Spark calls it.

    Behind a Spark Connect server that is another process, maybe on another machine, to which this
    is sent: so it has only names, and opens what it needs. ``lock_pid`` is the server process of
    the database that holds the lock of the job: when it is gone, so is the job.
    """

    url: str
    path: str
    lock_pid: int
    mark_here: bool = False
    _vacuumed_s: float = field(default_factory=time.time)
    _compacted_s: float = field(default_factory=time.time)
    _archive: DeltaArchive | None = None  # kept, so that only new commits are read

    def __call__(self, rows: DataFrame, _batch: int) -> None:
        """Add the messages of a batch; the archive may hold some.

        Raises:
            PipelineError: as `ArchiveWriter.append`, or the job that began the stream is gone.
        """
        if self._archive is None:
            self._archive = DeltaArchive(self.path).open_for_writing()
        archive = self._archive.renew()
        job = ArchiveJob(self.url, archive, mark_here=self.mark_here)
        with connected(self.url) as connection:
            self._require_lock(connection)
            writer = ArchiveWriter(rows.sparkSession, archive)
            persisted = rows.persist()
            try:
                starts = persisted.select(start_of(HOUR_NS)).distinct().collect()
                state = read_state(connection)
                writer.append(persisted, [row["start_ns"] for row in starts], state, is_last=False)
            finally:
                persisted.unpersist()
            mark_hours(connection, job, state, writer, ArchiveReport(state.position))
        if time.time() - self._compacted_s >= _COMPACT_EVERY_S:
            writer.compact()
            self._compacted_s = time.time()
        if time.time() - self._vacuumed_s >= _VACUUM_EVERY_S:
            archive.vacuum()
            archive.manifest.roll()
            self._vacuumed_s = time.time()

    def _require_lock(self, connection: psycopg.Connection[Any]) -> None:
        if connection.execute(_HOLDS_LOCK, (self.lock_pid, ARCHIVING)).fetchone() != (True,):
            raise PipelineError(
                "The job that began to follow the database is gone, or has lost its connection:"
                " begin again."
            )


class Following:
    """A stream into an archive; `stop` may be called from any thread."""

    def __init__(
        self,
        session: SparkSession,
        job: ArchiveJob,
        connection: psycopg.Connection[Any],
        interval_s: int,
    ) -> None:
        self._job = job
        self._connection = connection
        self._marks_before = read_archived(connection)
        self._first = archive_locked(session, job, connection)
        self._archive = DeltaArchive(job.archive.path).open()
        self._paths = self._archive.listing.paths()
        self._messages = self._archive.listing.messages
        try:
            self.query = self._start(session, interval_s)
        except SPARK_ERRORS as error:
            raise of_spark(error) from error

    def wait(self) -> ArchiveReport:
        """Wait until the stream is stopped; return what was archived since it began.

        Raises:
            PipelineError: it ended by itself.
        """
        reported, position = self._first.published, self._first.position
        try:
            while not self.query.awaitTermination(_LOOK_S):
                # To look is to read all marks.
                if self._position() == position:
                    continue
                found = self.so_far()
                position = found.position
                if found.published > reported:
                    self._job.say(
                        f"archive: {found.published - reported:,} messages more,"
                        f" {found.published:,} in all"
                    )
                    reported = found.published
        except SPARK_ERRORS as error:
            raise of_spark(error) from error
        return self.so_far()

    def so_far(self) -> ArchiveReport:
        """Return what was archived since this began."""
        first, listing = self._first, self._archive.renew().listing
        marks = read_archived(self._connection)
        return ArchiveReport(
            self._position(),
            published=first.published + listing.messages - self._messages,
            files=first.files + len(listing.paths() - self._paths),
            compacted=first.compacted,
            removed=first.removed,
            marked=sorted(
                hour for hour, each in marks.items() if self._marks_before.get(hour) != each
            ),
            kept=first.kept,
            elsewhere=first.elsewhere,
            claims=first.claims,
        )

    def stop(self) -> None:
        """End the stream; the next run repeats what is under way."""
        self.query.stop()

    def _position(self) -> int:
        progress = self.query.lastProgress
        ends = [each["endOffset"] for each in progress["sources"]] if progress else []
        offset = json.loads(ends[0]) if ends and ends[0] else None
        return int(offset["position"]) if offset else self._first.position

    def _start(self, session: SparkSession, interval_s: int) -> StreamingQuery:
        job = self._job
        options = read_options(
            job.url,
            columns=",".join(NAMES),
            start=self._first.position,
            connections=job.connections,
        )
        rows = session.readStream.format(FORMAT).options(**options).load()
        store_id = read_state(self._connection, 0, 0).store_id
        lock_pid = self._connection.info.backend_pid
        add = BatchWriter(job.url, job.archive.path, lock_pid, job.mark_here)
        return (
            rows.writeStream.foreachBatch(add)
            .option("checkpointLocation", _checkpoint(job.archive.path, store_id))
            .trigger(processingTime=f"{interval_s} seconds")
            .start()
        )


def follow(session: SparkSession, job: ArchiveJob, interval_s: int = INTERVAL_S) -> ArchiveReport:
    """Archive what the database holds, then what is published, until interrupted.

    Raises:
        PipelineError: as `store.pipeline.archive.archive`.
    """
    with connected(job.url) as connection:
        lock_archiving(connection)
        following = Following(session, job, connection, interval_s)
        try:
            return following.wait()
        except KeyboardInterrupt:
            following.stop()
            return following.so_far()


def _checkpoint(archive: str, store_id: str) -> str:
    """Return the directory of the checkpoint, which only spares work.

    On object stores Spark would need Hadoop's libraries: then it is a temporary directory.
    """
    if on_store(archive):
        return for_spark(f"{tempfile.gettempdir()}/storenode-stream-{store_id}-{uuid.uuid4().hex}")
    return for_spark(f"{archive}/stream-{store_id}")
