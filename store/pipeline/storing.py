"""Rows of Spark into a store node's database: how a restore writes.

Every row goes through the node's own admission and writer, so a message that comes back has its
indexes, its SDS metadata, its place in the commit order and its part of the summaries, and nodes
that serve see it at once. What is there already is left alone: tasks may be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa

from store.db.pool import Database, PoolSettings
from store.db.schema.partitions import PartitionMap
from store.db.writing.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.messages.transfer import MalformedMessage
from store.pipeline.encode import COLUMNS, encoded
from store.pipeline.errors import UNREACHABLE, PipelineError
from store.pipeline.limits import RESTORE_BATCH_BYTES, RESTORE_BATCH_MESSAGES
from storenode.message.rules import CONFLICT, Policy

_NO_LIMIT: Final = 2**31 - 1
_POOLS: Final = PoolSettings(write_connections=2, read_connections=1, bulk_connections=1)

POLICY: Final = Policy(
    max_drift_ns=None,
    max_message_bytes=_NO_LIMIT,
    max_meta_bytes=_NO_LIMIT,
    max_topic_bytes=_NO_LIMIT,
)
"""What was stored once was admitted once, perhaps under other limits."""


@dataclass
class Stored:
    """The counts of one task: messages that it was given, new ones, and conflicts.

    A conflict is not stored, since another message in the database has its hash; the task's log has
    the digests of both.
    """

    given: int = 0
    new: int = 0
    conflicts: int = 0


def store_task(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Store the rows of a Spark task, and yield one row with its conflicts."""
    stored = asyncio.run(store_rows(url, batches))
    yield pa.RecordBatch.from_pydict({"conflicts": [stored.conflicts]})


async def store_rows(url: str, batches: Iterator[pa.RecordBatch]) -> Stored:
    """Store rows that have `COLUMNS`.

    Raises:
        PipelineError: a row is not the message that its hash names, or the database does not serve.
    """
    stored = Stored()
    try:
        async with _writer(url) as writer:
            for batch in batches:
                for rows in _portions(batch):
                    added, refused = await _store(writer, rows)
                    stored.given += len(rows)
                    stored.new += added
                    stored.conflicts += refused
    except (StoreUnavailable, StoreBusy) as error:
        raise PipelineError(f"The database could not be reached: {error}.", UNREACHABLE) from error
    except psycopg.Error as error:
        text = str(error).strip().splitlines()
        raise PipelineError(f"The database refused ({text[0] if text else error}).") from error
    return stored


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
    rows: list[dict[str, Any]] = []
    size = 0
    for row in batch.select(list(COLUMNS)).to_pylist():
        if rows and (
            len(rows) >= RESTORE_BATCH_MESSAGES or size + len(row["payload"]) > RESTORE_BATCH_BYTES
        ):
            yield rows
            rows, size = [], 0
        rows.append(row)
        size += len(row["payload"])
    if rows:
        yield rows


async def _store(writer: DatabaseWriter, rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Store rows; return the numbers of new messages and of conflicts."""
    admission = Admission(POLICY, time.time_ns(), Source.RESTORE)
    try:
        admission.admit([encoded(row) for row in rows])
    except (MalformedMessage, ValueError) as error:
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
    return sum(stored), len(published.refusals) + len(stored.conflicts)
