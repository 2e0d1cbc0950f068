"""`restore`: store messages of an archive in a store node's database.

All messages are verified before the first one is stored. Every row goes through the node's own
admission and writer, so a message that comes back has its indexes, its SDS metadata, its place in
the commit order and its part of the summaries, and nodes that serve see it at once. Messages that
the database has are skipped, so tasks and a restore that was killed may be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from store.db.locks import RESTORING
from store.db.partitions import PartitionMap
from store.db.pool import Database, PoolSettings
from store.db.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.ports import NotServingError, Source
from store.messages.transfer import MalformedMessageError
from store.pipeline.columns import NAMES
from store.pipeline.database import FOREVER, connected, lock, read_store, restored_since
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import (
    UNREACHABLE,
    USAGE,
    PipelineError,
    of_database,
    of_store,
    spark_errors,
)
from store.pipeline.files import checked, for_reading, listed
from store.pipeline.limits import MAX_CONNECTIONS, RESTORE_BATCH_BYTES, RESTORE_BATCH_MESSAGES
from store.pipeline.parquet import KEY, read_files, read_rows, require_whole
from store.pipeline.reports import JobReport
from store.pipeline.spark import logged
from store.pipeline.verify import count_faults
from storenode.message.rules import CONFLICT, Policy
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

_OPTIONAL: Final = ("version", "meta", "rate_limit_proof", "ephemeral")
COLUMNS: Final = ("ts", "hash", "pubsub_topic", "content_topic", "payload", *_OPTIONAL)
"""The columns that a message is made of."""


def encoded(row: Mapping[str, Any]) -> bytes:
    """Encode the ``WakuMessageAndTopic`` of a row.

    Raises:
        ValueError: a number is out of range.
    """
    optional = {name: row[name] for name in _OPTIONAL if row[name] is not None}
    message = WakuMessage(
        payload=row["payload"], content_topic=row["content_topic"], timestamp=row["ts"], **optional
    )
    item = WakuMessageAndTopic(message=message, pubsub_topic=row["pubsub_topic"])
    return item.SerializeToString()


_NO_LIMIT: Final = 2**31 - 1
_POOLS: Final = PoolSettings(write_connections=2, read_connections=1, bulk_connections=1)

POLICY: Final = Policy(
    max_drift_ns=None,
    max_message_bytes=_NO_LIMIT,
    max_meta_bytes=_NO_LIMIT,
    max_topic_bytes=_NO_LIMIT,
)
"""The policy for restored messages, which were admitted before, perhaps under other limits."""


def store_task(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Store the rows of a Spark task, and yield one row with its conflicts."""
    conflicts = asyncio.run(store_rows(url, batches))
    yield pa.RecordBatch.from_pydict({"conflicts": [conflicts]})


async def store_rows(url: str, batches: Iterator[pa.RecordBatch]) -> int:
    """Store rows that have `COLUMNS`; return how many are conflicts.

    A conflict is not stored, since another message in the database has its hash; the task's log has
    the digests of both.
    """
    try:
        async with _writer(url) as writer:
            portions = (rows for batch in batches for rows in _portions(batch))
            return sum([await _store_batch(writer, rows) for rows in portions])
    except NotServingError as error:
        raise PipelineError(f"The database could not be reached: {error}.", UNREACHABLE) from error
    except psycopg.Error as error:
        raise of_database(error) from error


@asynccontextmanager
async def _writer(url: str) -> AsyncIterator[DatabaseWriter]:
    database = await Database.open(url, _POOLS)
    writer = DatabaseWriter(database, PartitionMap(time.time_ns))
    try:
        await writer.start()
        yield writer
    finally:
        await writer.stop()
        await database.close()


def _portions(batch: pa.RecordBatch) -> Iterator[list[dict[str, Any]]]:
    fitting = RESTORE_BATCH_BYTES * len(batch) // max(1, batch.nbytes)
    size = max(1, min(RESTORE_BATCH_MESSAGES, fitting))
    for start in range(0, len(batch), size):
        yield batch.slice(start, size).to_pylist()


async def _store_batch(writer: DatabaseWriter, rows: list[dict[str, Any]]) -> int:
    """Store rows; return the number of conflicts."""
    admission = Admission(POLICY, time.time_ns(), Source.RESTORE)
    try:
        admission.admit([encoded(row) for row in rows])
    except (MalformedMessageError, ValueError) as error:
        raise PipelineError(f"A row of the archive is no message: {error}.") from error
    published = admission.admitted
    for place, row in enumerate(rows):
        refusal = published.refusals.get(place)
        if refusal is not None and refusal is not CONFLICT:
            raise PipelineError(
                f"The archived message {row['hash'].hex()} cannot be stored: {refusal.sentence}."
            )
        if published.hashes[place] != row["hash"]:
            raise PipelineError(
                f"The archived message {row['hash'].hex()} is not what its hash names: run"
                " `storenode pipeline verify` on the archive."
            )
    stored = await writer.store(published.batch, Source.RESTORE)
    return len(published.refusals) + len(stored.conflicts)


@dataclass
class RestoreReport(JobReport):
    """The number of messages that a run took from the archive, and of those that were new.

    ``conflicts``: those that were not stored since the database has others with their hashes.
    ``is_partial``: log and manifest of the archive do not agree.
    """

    messages: int
    new: int
    conflicts: int = 0
    dry_run: bool = False
    is_partial: bool = False

    @property
    def sound(self) -> bool:
        """True where the database has every message that was to be restored."""
        return not (self.conflicts or self.is_partial)

    def lines(self) -> list[str]:
        """Return the report as text."""
        there = self.messages - self.new - self.conflicts
        found = [f"Restored {self.new:,} messages; {there:,} were there."]
        if self.dry_run:
            found = [f"Would restore {self.messages:,} messages that the database may have or not."]
        if self.is_partial:
            found.append(
                "The archive may lack messages, since its log and manifest do not agree:"
                " `storenode pipeline verify` says which."
            )
        if self.conflicts:
            found.append(
                f"Not restored: {self.conflicts:,} messages whose hashes other messages have in"
                " the database; the log of each task has their digests."
            )
        return found


@dataclass(frozen=True)
class RestoreJob:
    """An archive, a database, and a range of time in nanoseconds, the end exclusive.

    ``diff`` is the output of a diff: only messages that it names are restored.
    """

    archive: DeltaArchive
    url: str
    low_ns: int = 0
    high_ns: int = FOREVER
    diff: str | None = None
    connections: int = MAX_CONNECTIONS
    dry_run: bool = False


@spark_errors()
def restore(session: SparkSession, job: RestoreJob) -> RestoreReport:
    """Store the messages that an archive holds of a range, or of a diff."""
    result = RestoreReport(0, 0, dry_run=job.dry_run)
    rows = _wanted(session, job)
    result.is_partial = job.archive.recorded_hours() is None
    with logged("check"):
        result.messages = _checked(rows)
    if result.messages and not job.dry_run:
        with connected(job.url) as connection:
            lock(connection, RESTORING, "restoring into this database")
            _, _, before = read_store(connection)
            with logged("restore", result.messages):
                result.conflicts = _store(rows, job)
            result.new = restored_since(connection, before)
    return result


def _wanted(session: SparkSession, job: RestoreJob) -> DataFrame:
    files = job.archive.open().files_between(job.low_ns, job.high_ns)
    require_whole(session, job.archive, files)
    rows = read_files(session, files, NAMES, job.low_ns, job.high_ns)
    if job.diff is None:
        return rows
    return rows.join(_ids(session, job.diff), list(KEY), "left_semi")


def require_diff(path: str) -> str:
    """Return the path of the output of a diff, checked without Spark."""
    found = checked(path, "A diff")
    if found.startswith("/") and not Path(found).is_dir():
        raise PipelineError(
            f"{path} cannot be read as the output of a diff: name a directory that"
            " `storenode pipeline diff --output` has written.",
            USAGE,
        )
    return found


def _ids(session: SparkSession, path: str) -> DataFrame:
    folder = require_diff(path)
    try:
        files = [f"{folder}/{each}" for each in listed(folder) if each.endswith(".parquet")]
        for file in files[:1]:
            with for_reading(file) as source:
                if not {*KEY} <= {*pq.read_schema(source).names}:
                    raise PipelineError(f"{path} is not the output of a diff.", USAGE)
    except (OSError, pa.ArrowException) as error:
        raise of_store(folder, error, "directory") from error
    return read_rows(session, files, KEY)


def _checked(rows: DataFrame) -> int:
    """Count the rows, all of which must be the messages that they say."""
    number, faults = count_faults(rows)
    for kind, count in faults.items():
        raise PipelineError(
            f"Nothing was restored, since {count:,} messages of the archive are damaged ({kind}):"
            " `storenode pipeline verify` lists them."
        )
    return number


def _store(rows: DataFrame, job: RestoreJob) -> int:
    """Store the rows, and return how many are conflicts."""
    parts = rows.select(*COLUMNS).coalesce(job.connections)
    stored = parts.mapInArrow(partial(store_task, job.url), "conflicts long").collect()
    return sum(row["conflicts"] for row in stored)
