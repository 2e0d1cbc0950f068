"""The check of a database: whether it holds what it says it holds.

Reads everything, or a random share of it, and changes nothing. It can run beside nodes that serve.
What is looked for: a schema as migrations leave it; partitions, indexes and sequences that are
sane; messages, and the rows about them, that are what a node would write of their bytes today
(`store.domain.admission`), and rows whose messages are there; commits that account for what is
stored; unread events whose messages are stored; missing parents that are missing.

Rows come in chunks, each by one statement that joins what must agree, so that a check of any size
needs little memory, sees no transaction by halves, and neither writers nor retention wait for it.

A check of everything compares buckets and unfolded deltas together with the messages, minute by
minute, coarser levels with finer ones, and known lattice sums with the messages. Each comparison
sees one snapshot, and what is compared just then cannot be dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, sql

from reconcile.lattice import LatticeSum
from store.db.buckets import (
    LEVELS_NS,
    added,
    between,
    columns,
    folded_position,
    minutes_of,
    sum_of_time,
    unfolded,
)
from store.db.connection import Connection, fetch_rows
from store.db.insert import lay_out_sds
from store.db.messages import admit_again, frame_of
from store.db.migrate import differences, require_served
from store.db.partitions import Catalog, read_catalog
from store.db.statements import BUCKETS_TABLE, FINE_TABLE, SCHEMA, SQL
from store.domain.partitioning import (
    DAY_NS,
    HOUR_NS,
    UNBOUNDED_HIGH,
    UNBOUNDED_LOW,
    Bounds,
)
from store.messages.record import COLUMNS, RecordBatch
from store.messages.transfer import transferred
from storenode.message.limits import NS_PER_S
from storenode.sds.codec import decode, sds_key

Progress = Callable[[str, int], None]
"""Receives the table and how many rows of it were compared so far."""

MAX_EXAMPLES: Final = 5
"""Examples that are kept of one kind; the others are counted."""

MAX_EXAMPLE_CHARS: Final = 300

MESSAGE_CHUNK_ROWS: Final = 200
"""Messages read at once: about 30 MB when all of them have the largest size."""

INDEX_CHUNK_ROWS: Final = 2_000
_ROW_BYTES: Final = 256
"""Size of a row where nothing better is known, to guess how many there are."""

_FETCH_ROWS: Final = 1_000
_LEVEL_NAMES: Final = ("minute", "hour", "day")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SNAPSHOT: Final[LiteralString] = "set transaction isolation level repeatable read"
_KEEP: Final[LiteralString] = "lock table only {} in access share mode"

WRONG_SUMMARY: Final = "summary differs from its messages"
WRONG_LEVEL: Final = "summary differs from those it is made of"
WRONG_LATTICE: Final = "lattice sum differs from what it is made of"

_FAULTS: Final[tuple[LiteralString, ...]] = (
    SQL.partitions.check_tables,
    SQL.partitions.check_partitions,
    SQL.partitions.check_indexes,
    SQL.stores.check_count,
    SQL.stores.check_folded,
    SQL.commits.check_sequences,
    SQL.stores.check_unread,
)
"""Statements that find faults: the kind, the table and an example of each."""

_FAULTS_OF_ALL: Final = (
    SQL.commits.check_batches,
    SQL.sds.check_not_missing,
    SQL.sds.check_not_counted,
)
"""The checks that read everything, which a check of a sample leaves out."""

_RESTORE: Final = "restore the message from a backup, or let another node send it again"
_REINDEX: Final = (
    "restore the database from a backup; what was changed by hand must be changed in every table"
)
_RESUMMARIZE: Final = (
    "run `storenode db resummarize`; until then too much or too little of this time is exchanged"
    " with peers"
)
_RECOUNT: Final = (
    "run `storenode db resummarize`; until then `storenode coverage --channel` counts wrongly"
)

ADVICE: Final[dict[str, str]] = {
    "damaged frame": _RESTORE,
    "wrong timestamp": _RESTORE,
    "wrong hash": _RESTORE,
    "wrong topic": _RESTORE,
    "wrong content digest": _RESTORE,
    "row in hashes without a message": _RESTORE,
    "message without a row in hashes": _REINDEX,
    "message without a row in topics": _REINDEX,
    "row in topics has other names": _REINDEX,
    "SDS message without a row in sds": _REINDEX,
    "row in sds differs from its message": _REINDEX,
    "row in sds about a message that is none of SDS": _REINDEX,
    "row in sds without a message": (
        "it finds nothing and harms nothing; it goes with its partition"
    ),
    "wrong schema": "undo what was changed by hand, or restore the database from a backup",
    "wrong store": "restore the database from a backup",
    "default partition": "move its rows away and drop it: it hides partitions that are missing",
    "partition being detached": "finish with ALTER TABLE ... DETACH PARTITION ... FINALIZE",
    "stray table": "drop it, or move it to another schema: its name may be needed",
    "invalid index": "run REINDEX INDEX on it",
    "batch without a commit": "restore the database from a backup: followers miss these messages",
    "commit of fewer messages than are held": "restore the database from a backup",
    WRONG_SUMMARY: _RESUMMARIZE,
    WRONG_LEVEL: _RESUMMARIZE,
    WRONG_LATTICE: _RESUMMARIZE,
    "missing parent that is not missing": _RECOUNT,
    "parent that is missing and is not counted": _RECOUNT,
    "folded beyond the newest commit": (
        "set folded_position of storenode.store to the newest position of storenode.commits, then"
        " run `storenode db resummarize`"
    ),
    "unread event without its message": "delete the row: a missing message cannot be confirmed",
    "store that has confirmed twice": "delete the row, then publish the message again to have it"
    " confirmed",
    "sequence behind its table": "set it with setval() to the largest number that the table has",
}


@dataclass
class Finding:
    """A kind of fault: how often it was found, and the first examples."""

    kind: str
    where: str
    count: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def advice(self) -> str:
        """The advice to the operator."""
        return ADVICE[self.kind]


@dataclass(frozen=True)
class CheckReport:
    """The findings, and how many rows of each table were looked at; ``full``: all of them."""

    findings: list[Finding]
    checked: dict[str, int]
    full: bool


_NO_KEY: Final = UUID(int=0)
_WRONG: Final = ("wrong timestamp", "wrong hash", "wrong topic", "wrong content digest")
_OTHER_NAMES: Final = "row in topics has other names"
_OTHER_SDS: Final = "row in sds differs from its message"


def check(
    url: str,
    *,
    sample: int | None = None,
    progress: Progress = lambda _table, _rows: None,
) -> CheckReport:
    """Check a database; ``sample``: about how many rows of each table to check instead of all.

    Raises:
        SchemaError: the schema is missing, too old or too new to be checked.
        psycopg.OperationalError: the database cannot be reached.
    """
    require_served(url, may_be_empty=True)

    async def run() -> CheckReport:
        async with await AsyncConnection.connect(url, autocommit=True) as connection:
            work = _DatabaseCheck(connection, sample, progress)
            full = sample is None
            try:
                await work.run()
            except psycopg.ProgrammingError:
                if not work.findings:
                    raise
                # A table or column is missing, which the findings say; the rest is not looked at.
                full = False
            return CheckReport(list(work.findings.values()), work.checked, full)

    return asyncio.run(run())


class _DatabaseCheck:
    """A check over one connection in autocommit mode; ``findings`` are by kind and table."""

    def __init__(self, connection: Connection, sample: int | None, progress: Progress) -> None:
        self.findings: dict[tuple[str, str], Finding] = {}
        self.checked: dict[str, int] = {}
        self._connection = connection
        self._sample = sample
        self._progress = progress

    async def run(self) -> None:
        """Check everything."""
        for difference in differences(await self._rows(SQL.partitions.describe)):
            self._add("wrong schema", "storenode", difference)
        catalog = await read_catalog(self._connection, with_sizes=True)
        for table in ("messages", "hashes", "sds"):
            self.checked[table] = await self._check_table(table, catalog)
        for statement in (*_FAULTS, *(_FAULTS_OF_ALL if self._sample is None else ())):
            await self._find(statement)
        self.checked["unread"] = await self._count(SQL.stores.count_unread)
        if self._sample is None:
            self.checked["commits"] = await self._count(SQL.commits.count)
            self.checked["missing_parents"] = await self._count(SQL.sds.count_missing_rows)
            self.checked[BUCKETS_TABLE] = await self._check_summaries(catalog)

    def _add(self, kind: str, where: str, example: str) -> None:
        """Note a fault in the table ``where``."""
        finding = self.findings.setdefault((kind, where), Finding(kind, where))
        finding.count += 1
        if len(finding.examples) < MAX_EXAMPLES:
            finding.examples.append(example[:MAX_EXAMPLE_CHARS])

    async def _rows(
        self,
        statement: str,
        parameters: Mapping[str, object] | Sequence[object] | None = None,
    ) -> list[Any]:
        return await fetch_rows(self._connection, statement, parameters, prepare=False)

    async def _count(self, statement: LiteralString) -> int:
        ((count,),) = await self._rows(statement)
        return int(count)

    async def _find(self, statement: LiteralString) -> None:
        connection = self._connection
        async with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
            cursor.itersize = _FETCH_ROWS
            await cursor.execute(statement)
            async for kind, where, example in cursor:
                self._add(kind, where, example)

    # Rows of the tables that are partitioned by time

    async def _check_table(self, table: str, catalog: Catalog) -> int:
        """Compare all rows of a table, or a share of its pages; return their number.

        A chunk is read from behind a position on, which the first columns of a row are.
        """
        statement, compare, first, size = {
            "messages": (
                SQL.messages.check_messages,
                self._compare_messages,
                (UNBOUNDED_LOW, b""),
                MESSAGE_CHUNK_ROWS,
            ),
            "hashes": (
                SQL.messages.check_hashes,
                self._compare_hashes,
                (-(1 << 63), UNBOUNDED_LOW),
                INDEX_CHUNK_ROWS,
            ),
            "sds": (
                SQL.sds.check_payloads,
                self._compare_sds_rows,
                (_NO_KEY, UNBOUNDED_LOW, b""),
                INDEX_CHUNK_ROWS,
            ),
        }[table]
        sample, done = "", 0
        if self._sample is not None:
            rows = sum(
                each.rows if each.rows >= 0 else each.size_bytes // _ROW_BYTES
                for each in catalog.of(table)
            )
            share = min(1.0, self._sample / rows) if rows else 1.0
            # The same pages for each chunk.
            sample = f"tablesample system ({100 * share}) repeatable ({random.getrandbits(16)})"
        others = catalog.bounds("topics" if table == FINE_TABLE else FINE_TABLE)
        spans = [each.low for each in others], [each.high - 1 for each in others]
        for bounds in catalog.bounds(table):
            span = f"ts between '{bounds.low}'::bigint and '{bounds.high - 1}'::bigint"
            text, after = statement.format(sample=sample, bounds=span), first
            while chunk := await self._rows(text, (*after, size, *spans)):
                await compare(chunk)
                after = chunk[-1][: len(first)]
                done += len(chunk)
                self._progress(table, done)
        return done

    async def _compare_messages(self, rows: Sequence[Any]) -> None:
        """Compare messages, and the rows about them, with what admission makes of their bytes."""
        bodies = [transferred(frame_of(row[1], b"".join(row[4:7]))) for row in rows]
        admitted = admit_again(bodies)
        for place, row in zip(admitted.positions, rows, strict=True):
            ts, digest, topic, _, _, _, _, has_hash, low, *names = row
            name = _name(ts, digest)
            if not has_hash:
                self._add("message without a row in hashes", "hashes", name)
            for fault in faults_of(admitted.batch, place, (ts, digest, topic.bytes, *row[3:7])):
                self._add(fault, FINE_TABLE, name)
            right = admitted.batch.topics.get(topic.bytes)
            if right is not None and low is not None and tuple(names) != right:
                is_absent = names == [None, None]
                fault = "message without a row in topics" if is_absent else _OTHER_NAMES
                self._add(fault, "topics", name)
        if admitted.batch.sds:
            given = await lay_out_sds(admitted.batch)
            for ts, digest, is_absent in await self._rows(SQL.sds.check_rows, given):
                fault = "SDS message without a row in sds" if is_absent else _OTHER_SDS
                self._add(fault, "sds", _name(ts, digest))

    async def _compare_hashes(self, rows: Sequence[Any]) -> None:
        for key, ts, is_lost in rows:
            if is_lost:
                name = _name(ts, key.to_bytes(8, signed=True))
                self._add("row in hashes without a message", "hashes", name)

    async def _compare_sds_rows(self, rows: Sequence[Any]) -> None:
        for key, ts, digest, payload, is_lost in rows:
            if is_lost:
                self._add("row in sds without a message", "sds", _name(ts, digest))
            elif payload is not None:
                found = decode(payload)
                if found is None or sds_key(found.channel_id, found.message_id) != key.bytes:
                    fault = "row in sds about a message that is none of SDS"
                    self._add(fault, "sds", _name(ts, digest))

    # Summaries

    async def _check_summaries(self, catalog: Catalog) -> int:
        """Compare summaries with messages; return the number of minutes whose buckets were read."""
        if not await self._rows(SQL.stores.read_folded):
            return 0  # how much is folded was lost, which the check says already
        fine, done = catalog.of(FINE_TABLE), 0
        # Each with what lies between it and the next one, where there is nothing.
        ends = [*(each.bounds.low for each in fine[1:]), UNBOUNDED_HIGH]
        low = UNBOUNDED_LOW
        for each, high in zip(fine, ends, strict=False):
            done += await self._compare_slice(each.name, Bounds(low, high))
            self._progress(BUCKETS_TABLE, done)
            low = high
        for level, start_ns, finer, said in await self._rows(SQL.buckets.check_levels):
            example = _example(level, start_ns, finer, said, f"by {_LEVEL_NAMES[level - 1]}")
            self._add(WRONG_LEVEL, BUCKETS_TABLE, example)
        return done

    async def _compare_slice(self, partition: str, bounds: Bounds) -> int:
        """Compare a range of time, whose messages are in one partition, in one snapshot.

        Returns:
            The number of minutes that have a bucket.
        """
        connection, name = self._connection, sql.Identifier(SCHEMA, partition)
        low, last = bounds.low, bounds.high - 1
        statement = sql.SQL(SQL.buckets.check_minutes).format(
            minutes=minutes_of(bounds), low=sql.Literal(low), last=sql.Literal(last)
        )
        try:
            async with connection.transaction():
                await connection.execute(_SNAPSHOT)
                # The snapshot begins with the next statement: what is seen there stays.
                await connection.execute(sql.SQL(_KEEP).format(name))
                folded = await folded_position(connection)
                deltas = between(await unfolded(connection, folded), bounds.low, bounds.high)
                ((buckets,),) = await self._rows(SQL.buckets.check_count, (low, last))
                rows = await fetch_rows(connection, statement, columns([deltas]))
                wrong = await self._find_wrong_sums(bounds, folded)
        except psycopg.errors.UndefinedTable:
            return 0  # retention was faster
        for start_ns, stored, said in rows:
            example = _example(0, start_ns, stored, said, "held")
            self._add(WRONG_SUMMARY, BUCKETS_TABLE, example)
        for level, start_ns in wrong:
            self._add(WRONG_LATTICE, BUCKETS_TABLE, _moment(level, start_ns))
        return int(buckets)

    async def _find_wrong_sums(self, bounds: Bounds, folded: int) -> list[tuple[int, int]]:
        """Return level and start of the buckets in a range whose known sum is not their messages'.

        Buckets do not include commits that are not folded yet.
        """
        given = (bounds.low, bounds.high - HOUR_NS, bounds.low, bounds.high - DAY_NS)
        known = await self._rows(SQL.buckets.check_known, given)
        parts = {
            (level, start_ns): range(start_ns, start_ns + LEVELS_NS[level], HOUR_NS)
            for level, start_ns, *_ in known
        }
        hours = sorted(set().union(*parts.values()))
        late = await added(self._connection, folded, UNBOUNDED_HIGH - 1, hours)
        wrong = []
        for level, start_ns, count, state in known:
            end_ns = start_ns + LEVELS_NS[level]
            total = await sum_of_time(self._connection, start_ns, end_ns)
            for hour_ns in late.keys() & parts[level, start_ns]:
                total -= late[hour_ns]
            if total != LatticeSum.stored(count, bytes(state)):
                wrong.append((level, start_ns))
        return wrong


def faults_of(batch: RecordBatch, place: int, row: tuple[Any, ...]) -> list[str]:
    """Return the faults of a row of ``messages``, of which admission makes a place of a batch.

    Args:
        batch: What was admitted.
        place: -1 for a message that is refused.
        row: Its values, in the order of `COLUMNS`.
    """
    right = () if place < 0 else tuple(getattr(batch, column)[place] for column in COLUMNS)
    if row[4:] != right[4:]:
        return ["damaged frame"]
    return [kind for kind, one, other in zip(_WRONG, right, row, strict=False) if one != other]


def _name(ts: int, digest: bytes) -> str:
    return f"{digest.hex()} at {ts}"


def _moment(level: int, start_ns: int) -> str:
    moment = _EPOCH + timedelta(seconds=start_ns // NS_PER_S)
    return f"{_LEVEL_NAMES[level]} {moment:%Y-%m-%dT%H:%M}Z ({start_ns})"


def _example(level: int, start_ns: int, right: int, said: int, right_is: str) -> str:
    name = _moment(level, start_ns)
    if right == said:
        return f"{name}: {said} messages, but of other hashes"
    return f"{name}: {right} messages {right_is}, {said} in the summary"
