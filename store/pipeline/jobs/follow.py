"""`archive --follow`: what is published goes into the archive as it comes, until interrupted.

A Structured Streaming query over the commits of the database. A micro-batch is added as any other
run adds: without what the lake has already, in one commit. So a batch that is repeated after a
crash changes nothing, and checkpoints only spare work.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from store.db.locks import ARCHIVING
from store.pipeline.appending import Appender
from store.pipeline.columns import NAMES
from store.pipeline.database import connected, lock_archiving, read_archived, read_state
from store.pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from store.pipeline.fingerprints import start_of
from store.pipeline.jobs.archive import Archived, Archiving, archive_locked, note
from store.pipeline.lake import Lake
from store.pipeline.limits import HOUR_NS
from store.pipeline.paths import for_spark, on_store
from store.pipeline.source import FORMAT, read_options

INTERVAL_S: Final = 60
"""How often new messages are looked for: each time they become one commit and a file or more."""

_LOOK_S: Final = 1
_TEND_EVERY_S: Final = 3_600
"""How often small files are compacted and the manifest gets an entry."""

_VACUUM_EVERY_S: Final = 24 * 3_600
_KEEPS: Final[LiteralString] = """
select exists (
    select from pg_locks where locktype = 'advisory' and granted and pid = %s
    and database = (select oid from pg_database where datname = current_database())
    and (classid::bigint << 32) | objid::bigint = %s)
"""


@dataclass
class Batches:
    """Adds micro-batches to an archive, in the process in which Spark calls for it.

    Behind a Spark Connect server that is another process, maybe on another machine, and this is
    sent there: so it takes names along, and opens what it needs for every batch. ``keeper`` is the
    server process of the database that holds the lock of the job: when it is gone, so is the one
    who began the stream. ``entries`` are those of the manifest when it began.
    """

    url: str
    path: str
    keeper: int
    mark_here: bool = False
    entries: int | None = None
    _vacuumed_s: float = field(default_factory=time.time)
    _tended_s: float = field(default_factory=time.time)
    _lake: Lake | None = None  # of a batch before: its state is read on, and not anew

    def __call__(self, rows: DataFrame, _batch: int) -> None:
        """Add the messages of a batch; some may be there already.

        Raises:
            PipelineError: as `Appender.append`, or nobody waits for the stream any more.
        """
        if self._lake is None:
            self._lake = Lake(self.path)
            self._lake.entries = self.entries
        lake = self._lake.renew()
        job = Archiving(self.url, lake, mark_here=self.mark_here)
        with connected(self.url) as connection:
            self._require_keeper(connection)
            appender = Appender(rows.sparkSession, lake)
            held = rows.persist()
            try:
                starts = held.select(start_of(HOUR_NS)).distinct().collect()
                state = read_state(connection)
                appender.append([], held, [row["start_ns"] for row in starts], state)
            finally:
                held.unpersist()
            note(connection, job, state, appender, Archived(state.position))
        self._tend(appender)
        self._vacuum(lake)

    def _require_keeper(self, connection: psycopg.Connection[Any]) -> None:
        if connection.execute(_KEEPS, (self.keeper, ARCHIVING)).fetchone() != (True,):
            raise PipelineError(
                "The job that began to follow the database is gone, or has lost its connection:"
                " begin again."
            )

    def _tend(self, appender: Appender) -> None:
        if time.time() - self._tended_s >= _TEND_EVERY_S:
            appender.record()  # before compaction: what it replaces must be in the manifest
            if appender.compact():
                appender.record()
            self._tended_s = time.time()

    def _vacuum(self, lake: Lake) -> None:
        if time.time() - self._vacuumed_s >= _VACUUM_EVERY_S:
            lake.vacuum()
            self._vacuumed_s = time.time()


class Following:
    """A stream into an archive; `stop` may be called from any thread."""

    def __init__(
        self,
        session: SparkSession,
        job: Archiving,
        connection: psycopg.Connection[Any],
        interval_s: int,
    ) -> None:
        self._job = job
        self._connection = connection
        self._before = read_archived(connection)
        self._first = archive_locked(session, job, connection)
        self._lake = Lake(job.lake.path).open()
        self._paths = self._lake.listing.paths
        self._messages = self._lake.listing.messages
        try:
            self.query = self._start(session, interval_s)
        except SPARK_ERRORS as error:
            raise of_spark(error) from error

    def wait(self) -> Archived:
        """Wait until the stream is stopped; everything that was archived since it began.

        Raises:
            PipelineError: it ended by itself.
        """
        told, position = self._first.published, self._first.position
        try:
            while not self.query.awaitTermination(_LOOK_S):
                # To look is to read all marks.
                if self._position() == position:
                    continue
                found = self.so_far()
                position = found.position
                if found.published > told:
                    self._job.say(
                        f"archive: {found.published - told:,} messages more,"
                        f" {found.published:,} in all"
                    )
                    told = found.published
        except SPARK_ERRORS as error:
            raise of_spark(error) from error
        return self.so_far()

    def so_far(self) -> Archived:
        """What was archived since this began, as archive and database have it."""
        first, listing = self._first, self._lake.renew().listing
        new = pc.invert(pc.is_in(listing.paths, value_set=self._paths))
        marks = read_archived(self._connection)
        before = self._before
        return Archived(
            self._position(),
            published=first.published + listing.messages - self._messages,
            files=first.files + (pc.sum(new).as_py() or 0),
            compacted=first.compacted,
            removed=first.removed,
            marked=sorted(hour for hour, each in marks.items() if before.get(hour) != each),
            kept=first.kept,
            elsewhere=first.elsewhere,
            claims=first.claims,
        )

    def stop(self) -> None:
        """End the stream; what is under way is done again by the next run."""
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
        keeper = self._connection.info.backend_pid
        add = Batches(job.url, job.lake.path, keeper, job.mark_here, job.lake.entries)
        return (
            rows.writeStream.foreachBatch(add)
            .option("checkpointLocation", _checkpoint(job.lake.path, store_id))
            .trigger(processingTime=f"{interval_s} seconds")
            .start()
        )


def follow(session: SparkSession, job: Archiving, interval_s: int = INTERVAL_S) -> Archived:
    """Archive what the database holds, then what is published, until interrupted.

    ``interval_s`` is how often messages are looked for.

    Raises:
        PipelineError: as `store.pipeline.jobs.archive.archive`.
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
    """Where Spark keeps what a stream has read, which only spares work.

    On object stores Spark would need Hadoop's libraries: then it is a temporary directory.
    """
    if on_store(archive):
        return for_spark(f"{tempfile.gettempdir()}/storenode-stream-{store_id}-{uuid.uuid4().hex}")
    return for_spark(f"{archive}/stream-{store_id}")
