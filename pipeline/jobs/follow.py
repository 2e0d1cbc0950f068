"""`archive --follow`: what is published goes into the archive as it comes, until interrupted.

A Structured Streaming query over the commits of the database. A micro-batch is added as any other
run adds: without what the lake has already, in one commit. So a batch that is repeated after a
crash changes nothing, and checkpoints only spare work.
"""

from __future__ import annotations

from typing import Final

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.appending import Appender
from pipeline.database import connected, lock_archiving, read_state
from pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from pipeline.fingerprints import start_of
from pipeline.jobs.archive import Archived, Archiving, archive_locked, note
from pipeline.limits import HOUR_NS
from pipeline.source import FORMAT, read_options

TRIGGER: Final = "5 seconds"
"""How often new commits are looked for."""


class Following:
    """A stream into an archive; `stop` may be called from any thread."""

    def __init__(
        self, session: SparkSession, job: Archiving, connection: psycopg.Connection
    ) -> None:
        self._job = job
        self._connection = connection
        self.result = archive_locked(session, job, connection)
        self._appender = Appender(session, job.lake.open(), job.say)
        self._error: PipelineError | None = None
        self.query = self._start(session)

    def wait(self) -> Archived:
        """Wait until the stream is stopped; everything that was archived since it began.

        Raises:
            PipelineError: it ended by itself.
        """
        try:
            self.query.awaitTermination()
        except SPARK_ERRORS as error:
            raise (self._error or of_spark(error)) from error
        return self.result

    def stop(self) -> None:
        """End the stream; what is under way is done again by the next run."""
        self.query.stop()

    def _start(self, session: SparkSession) -> StreamingQuery:
        job = self._job
        options = read_options(job.url, start=self.result.position, connections=job.connections)
        rows = session.readStream.format(FORMAT).options(**options).load()
        state = read_state(self._connection, 0, 0)
        return (
            rows.writeStream.foreachBatch(self._add)
            .option("checkpointLocation", f"{job.lake.path}/stream-{state.store_id}")
            .trigger(processingTime=TRIGGER)
            .start()
        )

    def _add(self, rows: DataFrame, _batch: int) -> None:
        try:
            self._append(rows)
        except PipelineError as error:
            self._error = error
            raise

    def _append(self, rows: DataFrame) -> None:
        held = rows.persist()
        try:
            hours = [row["start_ns"] for row in held.select(start_of(HOUR_NS)).distinct().collect()]
            state = read_state(self._connection)
            before = self._appender.messages
            self._appender.append(held, hours, state)
        finally:
            held.unpersist()
        added = self._appender.messages - before
        self.result.published += added
        self.result.position = state.position
        note(self._connection, self._job, state, self._appender.held, self.result)
        # What is not the same yet may be in the next batch.
        self.result.differing = []
        self.result.compacted += self._appender.compact()
        self._job.say(f"archive: {added:,} messages more, {self.result.published:,} in all")


def follow(session: SparkSession, job: Archiving) -> Archived:
    """Archive what the database holds, then what is published, until interrupted.

    Raises:
        PipelineError: as `pipeline.jobs.archive.archive`.
    """
    with connected(job.url) as connection:
        lock_archiving(connection)
        following = Following(session, job, connection)
        try:
            return following.wait()
        except KeyboardInterrupt:
            following.stop()
            return following.result
