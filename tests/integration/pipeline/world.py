"""The messages of the pipeline's tests, and what else a test reads directly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import psycopg
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.db.buckets import fold_until
from store.pipeline.archive import ArchiveJob, ArchiveReport, archive
from store.pipeline.delta import DeltaArchive
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.verify import VerifyJob, VerifyReport, verify
from storenode.sds import codec
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.database.rows import NOW, TODAY, opened
from tests.integration.database.sample_messages import ANY_AGE, admitted, plain, sds, write
from tests.unit.builders import entry

HOUR = 3_600_000_000_000
DAY = 24 * HOUR
COUNT = 400
FIRST = TODAY - 2 * DAY - 11 * HOUR
"""The messages are spread from here up to some minutes before `NOW`, over four days."""

STEP = (NOW - FIRST) // COUNT

__all__ = ["ANY_AGE", "NOW", "TODAY", "admitted", "plain", "sds", "write"]


def when(number: int) -> int:
    """Return the time of one of the messages."""
    return FIRST + number * STEP


def messages() -> list[WakuMessageAndTopic]:
    """Return plain ones, SDS messages, and one of every odd kind that a node accepts."""
    made = [
        sds(number, when(number), [number - 10, number - 20] if number >= 20 else [])
        if number % 10 == 0
        else plain(number, when(number))
        for number in range(COUNT)
    ]
    return made + odd_ones()


def odd_ones() -> list[WakuMessageAndTopic]:
    """Return messages with fields that are seldom there, at their least and their most."""
    at = NOW - HOUR // 2
    legacy = codec.encode("чат\0", "id\0ё", parents=[("p" * 300, b""), ("q", None)])
    notes = [
        note("a", 1, "alice"),
        note("b", 2, "bob", "a"),
        note("late", 1, "carol", "a", "lost"),
        note("a", 1, "alice", "b"),
    ]
    return [
        entry(b"", timestamp=at + 1),
        entry(b"\0" * 100_000, timestamp=at + 2, pubsub="/waku/2/rs/65535/65535"),
        entry(b"x", timestamp=at + 3, meta=b"", version=0, proof=b"", ephemeral=False),
        entry(b"x", timestamp=at + 4, meta=b"m" * 64, version=2**32 - 1, proof=b"p" * 300),
        entry(b"x", timestamp=at + 5, pubsub="named", content="c" * 1024),
        entry(b"x", timestamp=at + 6, pubsub="ü" * 512, content="/ж/1/ё/proto"),
        entry(legacy, timestamp=at + 7),
        entry(b"x", timestamp=1, pubsub="/waku/2/rs/1/7"),
        *(entry(each, timestamp=at + 10 + number) for number, each in enumerate(notes)),
    ]


def note(name: str, lamport: int, sender: str, *parents: str) -> bytes:
    """Return the payload of a message of the channel `notes`."""
    edges = [(parent, None) for parent in parents]
    return codec.encode("notes", name, sender_id=sender, lamport=lamport, parents=edges)


def batches() -> list[list[WakuMessageAndTopic]]:
    """Return the messages as they are published, in several commits."""
    made = messages()
    return [made[start : start + 100] for start in range(0, len(made), 100)]


def more(url: str, *published: WakuMessageAndTopic) -> None:
    """Publish further messages, in one commit."""
    asyncio.run(write(url, [admitted(list(published))]))


def rows(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the result of a statement, read past the pipeline."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def stored_ids(url: str) -> set[tuple[int, bytes]]:
    """Return the IDs of a database's messages."""
    found = rows(url, "select ts, hash from storenode.messages")
    return {(ts, bytes(digest)) for ts, digest in found}


def published(lake: Path) -> list[str]:
    """Return the files that an archive's newest state names."""
    return [path.removeprefix("file://") for path in DeltaTable(lake / "messages").file_uris()]


def in_lake(lake: Path) -> list[tuple[int, bytes]]:
    """Return the IDs of all rows of an archive in order, by DuckDB."""
    return asked(lake, "select ts, hash from lake order by ts, hash")


def asked(lake: Path, statement: str) -> list[tuple[Any, ...]]:
    """Return the answer of DuckDB about an archive, which is its table ``lake``."""
    with duckdb.connect() as connection:
        files = published(lake)
        connection.read_parquet(files, hive_partitioning=True).create_view("lake")
        return connection.execute(statement).fetchall()


def archived_from(
    spark: SparkSession,
    url: str,
    lake: Path,
    **options: Any,  # noqa: ANN401 - those of the job
) -> ArchiveReport:
    """Archive a database."""
    return archive(spark, ArchiveJob(url, DeltaArchive(str(lake)), **options))


def verified(spark: SparkSession, lake: Path, **options: Any) -> VerifyReport:  # noqa: ANN401
    """Verify an archive."""
    return verify(spark, VerifyJob(DeltaArchive(str(lake)), **options))


def messages_in(spark: SparkSession, lake: Path) -> ArchiveMessages:
    """Return the messages of an archive, to be audited, compared or reported."""
    return ArchiveMessages(spark, DeltaArchive(str(lake)))


def is_locked(url: str, *, granted: bool = True) -> bool:
    """Return True if anybody holds an advisory lock in a database, or waits for one."""
    statement = (
        "select 1 from pg_locks l join pg_database d on d.oid = l.database"
        " where l.locktype = 'advisory' and d.datname = current_database() and granted = %s"
    )
    return bool(rows(url, statement, granted))


def marks(url: str) -> dict[int, int]:
    """Return hours that are marked as archived and still are, with their message counts."""
    asyncio.run(_fold(url))
    found = rows(
        url,
        "select a.start_ns, a.count from storenode.archived a join storenode.buckets b"
        " on b.level = 1 and b.start_ns = a.start_ns"
        " and (a.count, a.x0, a.x1, a.x2, a.x3) = (b.count, b.x0, b.x1, b.x2, b.x3)",
    )
    return dict(found)


async def _fold(url: str) -> None:
    async with await opened(url) as connection:
        await fold_until(connection)


def hours_of(ids: Iterable[tuple[int, bytes]]) -> set[int]:
    """Return the hours that messages are in."""
    return {ts // HOUR * HOUR for ts, _ in ids}
