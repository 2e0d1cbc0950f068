"""The check of a database: whether it holds what it says it holds.

Reads everything, or a random share of it, and changes nothing. It can run beside nodes that serve.
What is looked for: a schema as migrations leave it; partitions, indexes and sequences that are
sane; every message's hash computed again from its bytes, its rows in the lookup tables, and those
rows' messages; SDS rows that are what the payload says, for every payload that is a readable SDS
message and for no other; commits that account for what is stored; unread events whose messages are
stored; missing parents that are missing.

Rows come in chunks, each by one statement that joins what must agree, so that a check of any size
needs little memory, sees no transaction by halves, and neither writers nor retention wait for it.

Buckets and unfolded deltas together are compared with the messages, minute by minute, and coarser
levels with finer ones; known lattice sums of hours with their messages, those of days with their
hours. Each comparison sees one snapshot, and what is compared just then cannot be dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString, NamedTuple
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, sql

from reconcile.lattice import LatticeSum
from store.db.buckets import (
    added,
    between,
    columns,
    folded_position,
    minutes_of,
    sum_of_time,
    unfolded,
)
from store.db.connection import Connection, fetch_rows
from store.db.locks import MAINTENANCE
from store.db.migrate import differences, require_served
from store.db.partitions import Catalog, read_catalog
from store.db.statements import BUCKETS_TABLE, COARSE_TABLES, COMMITS_TABLE, FINE_TABLE, SCHEMA, SQL
from store.domain.audit import RowFault, SdsRow, StoredMessage, audit, sds_row
from store.domain.partitioning import (
    COMMITS_PER_PARTITION,
    DAY_NS,
    HOUR_NS,
    MAX_COARSE,
    UNBOUNDED_HIGH,
    UNBOUNDED_LOW,
    Bounds,
    Cover,
)
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S

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

NOT_MISSING: Final = "missing parent that is not missing"
NOT_COUNTED: Final = "parent that is missing and is not counted"
WRONG_SUMMARY: Final = "summary differs from its messages"
WRONG_LEVEL: Final = "summary differs from those it is made of"
WRONG_LATTICE: Final = "lattice sum differs from what it is made of"
FOLDED_BEYOND: Final = "folded beyond the newest commit"

_MISSING: Final[LiteralString] = """
select '{}', 'missing_parents', format('%s of channel %s at %s', parent, channel, ts)
from ({}) as found(channel, ts, parent)
"""

_FAULTS: Final[tuple[LiteralString, ...]] = (
    SQL.partitions.check_tables,
    SQL.partitions.check_indexes,
    SQL.stores.check_count,
    SQL.commits.check_sequences,
    SQL.stores.check_unread,
)
"""Statements that find faults: the kind, the table and an example of each."""

_FAULTS_OF_ALL: Final = (
    SQL.commits.check_batches,
    _MISSING.format(NOT_MISSING, SQL.sds.check_not_missing),
    _MISSING.format(NOT_COUNTED, SQL.sds.check_not_counted),
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
    **dict.fromkeys(RowFault, _RESTORE),
    RowFault.NO_HASH_ROW: _REINDEX,
    RowFault.NO_TOPIC_ROW: _REINDEX,
    RowFault.WRONG_TOPIC_ROW: _REINDEX,
    RowFault.NO_SDS_ROW: _REINDEX,
    RowFault.WRONG_SDS_ROW: _REINDEX,
    RowFault.STRANGE_SDS_ROW: _REINDEX,
    RowFault.LOST_SDS_MESSAGE: "it finds nothing and harms nothing; it goes with its partition",
    "wrong schema": "undo what was changed by hand, or restore the database from a backup",
    "wrong store": "restore the database from a backup",
    "default partition": "move its rows away and drop it: it hides partitions that are missing",
    "partition being detached": "finish with ALTER TABLE ... DETACH PARTITION ... FINALIZE",
    "stray table": "drop it, or move it to another schema: its name may be needed",
    "odd bounds": "restore the partition, or drop it if what it holds may go",
    "too many partitions": "drop the oldest ones of hashes, sds and topics alike",
    "uncovered messages": "restart a node: it makes the partitions that are missing",
    "missing partition": "look into the log of the node that does the maintenance",
    "invalid index": "run REINDEX INDEX on it",
    "batch without a commit": "restore the database from a backup: followers miss these messages",
    "commit of fewer messages than are held": "restore the database from a backup",
    WRONG_SUMMARY: _RESUMMARIZE,
    WRONG_LEVEL: _RESUMMARIZE,
    WRONG_LATTICE: _RESUMMARIZE,
    NOT_MISSING: _RECOUNT,
    NOT_COUNTED: _RECOUNT,
    FOLDED_BEYOND: (
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


class _RowTable(NamedTuple):
    """A table that is partitioned by time.

    ``statement`` reads the rows behind a position, which their first columns are, beside what must
    agree with them; ``first`` is the position before all rows.
    """

    statement: LiteralString
    first: tuple[Any, ...]
    chunk_rows: int


_NO_KEY: Final = UUID(int=0)
_ROW_TABLES: Final = {
    "messages": _RowTable(SQL.messages.check_messages, (UNBOUNDED_LOW, b""), MESSAGE_CHUNK_ROWS),
    "hashes": _RowTable(SQL.messages.check_hashes, (-(1 << 63), UNBOUNDED_LOW), INDEX_CHUNK_ROWS),
    "sds": _RowTable(SQL.sds.check_payloads, (_NO_KEY, UNBOUNDED_LOW, b""), INDEX_CHUNK_ROWS),
}


def check(
    url: str,
    *,
    now_ns: Callable[[], int],
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
                await work.run(now_ns())
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

    async def run(self, now_ns: int) -> None:
        """Check everything; ``now_ns`` is the node's clock."""
        for difference in differences(await self._rows(SQL.partitions.describe)):
            self._add("wrong schema", "storenode", difference)
        catalog = await self._check_partitions(now_ns)
        for table in _ROW_TABLES:
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
        finding = self.findings.setdefault((kind, where), Finding(str(kind), where))
        finding.count += 1
        if len(finding.examples) < MAX_EXAMPLES:
            finding.examples.append(example[:MAX_EXAMPLE_CHARS])

    async def _rows(self, statement: str, parameters: Sequence[object] | None = None) -> list[Any]:
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

    # Partitions

    async def _check_partitions(self, now_ns: int) -> Catalog:
        """Check that partitions are complete, sane and of one mind; return them."""
        catalog = await read_catalog(self._connection, with_sizes=True, on_fault=self._add)
        for each in catalog.partitions:
            unit = COMMITS_PER_PARTITION if each.table == COMMITS_TABLE else DAY_NS
            ends = {each.bounds.low, each.bounds.high} - {UNBOUNDED_LOW, UNBOUNDED_HIGH}
            if any(end % unit for end in ends):
                self._add("odd bounds", each.table, each.bounds.clause)
        bounds = {table: catalog.bounds(table) for table in (FINE_TABLE, *COARSE_TABLES)}
        self._check_coarse(bounds, now_ns + DAY_NS)
        if await self._rows(SQL.partitions.is_maintained, (MAINTENANCE,)) == [(True,)]:
            for table, found in bounds.items():
                if not Cover(found).spans(now_ns, now_ns + DAY_NS):
                    self._add("missing partition", table, "for now and the next 24 hours")
        return catalog

    def _check_coarse(self, bounds: dict[str, list[Bounds]], last_ns: int) -> None:
        for table in COARSE_TABLES:
            cover = Cover(bounds[table])
            if len(cover.bounds) > MAX_COARSE:
                self._add("too many partitions", table, f"{len(cover.bounds)} of {MAX_COARSE}")
            for each in bounds[FINE_TABLE]:
                if each.low <= last_ns and not cover.spans(each.low, min(each.high - 1, last_ns)):
                    self._add("uncovered messages", table, each.clause)
        if len({tuple(bounds[table]) for table in COARSE_TABLES}) > 1:
            self._add("odd bounds", "sds", "hashes, sds and topics differ")

    # Rows of the tables that are partitioned by time

    async def _check_table(self, table: str, catalog: Catalog) -> int:
        """Compare all rows of a table, or a share of its pages; return their number."""
        statement, first, size = _ROW_TABLES[table]
        sample, done = "", 0
        if self._sample is not None:
            rows = sum(
                each.rows if each.rows >= 0 else each.size_bytes // _ROW_BYTES
                for each in catalog.of(table)
            )
            share = min(1.0, self._sample / rows) if rows else 1.0
            # The same pages for each chunk.
            sample = f"tablesample system ({100 * share}) repeatable ({random.getrandbits(16)})"
        compare = {
            "messages": self._compare_messages,
            "hashes": self._compare_hashes,
            "sds": self._compare_sds_rows,
        }[table]
        others = catalog.bounds("topics" if table == FINE_TABLE else FINE_TABLE)
        spans = [each.low for each in others], [each.high - 1 for each in others]
        for bounds in catalog.bounds(table):
            text, after = statement.format(sample=sample, bounds=bounds.condition("ts")), first
            while chunk := await self._rows(text, (*after, size, *spans)):
                await compare(chunk)
                after = chunk[-1][: len(first)]
                done += len(chunk)
                self._progress(table, done)
        return done

    async def _compare_messages(self, rows: Sequence[Any]) -> None:
        wanted: dict[tuple[int, bytes], SdsRow] = {}
        for row in rows:
            ts, digest, topic, content_digest, head, payload, tail, has_hash, low, *names = row
            name = _name(ts, digest)
            stored = ts, digest, topic.bytes, content_digest, head, payload, tail
            faults, topics = audit(StoredMessage(*stored))
            for fault in faults:
                self._add(fault, FINE_TABLE, name)
            if not has_hash:
                self._add(RowFault.NO_HASH_ROW, "hashes", name)
            is_named = topics is not None and RowFault.TOPIC not in faults
            if is_named and low is not None and tuple(names) != topics:
                is_absent = names == [None, None]
                fault = RowFault.NO_TOPIC_ROW if is_absent else RowFault.WRONG_TOPIC_ROW
                self._add(fault, "topics", name)
            sds = sds_row(payload)
            if sds is not None:
                wanted[ts, digest] = sds
        if not wanted:
            return
        keys = [row[0].hex() for row in wanted.values()]
        given = (keys, [ts for ts, _ in wanted], [digest for _, digest in wanted])
        rows = await self._rows(SQL.sds.check_rows, given)
        found = {(ts, digest): _plain(columns) for ts, digest, *columns in rows}
        for key, row in wanted.items():
            if key not in found:
                self._add(RowFault.NO_SDS_ROW, "sds", _name(*key))
            elif found[key] != row:
                self._add(RowFault.WRONG_SDS_ROW, "sds", _name(*key))

    async def _compare_hashes(self, rows: Sequence[Any]) -> None:
        for key, ts, is_lost in rows:
            if is_lost:
                self._add(RowFault.LOST_MESSAGE, "hashes", _name(ts, key.to_bytes(8, signed=True)))

    async def _compare_sds_rows(self, rows: Sequence[Any]) -> None:
        for key, ts, digest, payload, is_lost in rows:
            row = None if payload is None else sds_row(payload)
            if is_lost:
                self._add(RowFault.LOST_SDS_MESSAGE, "sds", _name(ts, digest))
            elif payload is not None and (row is None or row[0] != key.bytes):
                self._add(RowFault.STRANGE_SDS_ROW, "sds", _name(ts, digest))

    # Summaries

    async def _check_summaries(self, catalog: Catalog) -> int:
        """Compare summaries with messages; return the number of minutes whose buckets were read.

        A sample takes random hours that together have about that many messages.
        """
        store = await self._rows(SQL.stores.check_folded)
        if not store:
            return 0  # how much is folded was lost, which the check says already
        ((folded, newest),) = store
        if folded > newest:
            self._add(FOLDED_BEYOND, "store", f"folded up to {folded}, committed up to {newest}")
        done = 0
        partitions = {each.bounds: each.name for each in catalog.of(FINE_TABLE)}
        if self._sample is None:
            gaps = Cover(partitions).gaps(UNBOUNDED_LOW, MAX_TIMESTAMP_NS)
            slices = [*partitions.items(), *((each, FINE_TABLE) for each in gaps)]
        else:
            slices = await self._draw_hours(partitions, self._sample)
        for bounds, table in slices:
            done += await self._compare_slice(bounds, table)
            self._progress(BUCKETS_TABLE, done)
        for level, start_ns, finer, said in await self._rows(SQL.buckets.check_levels):
            example = _example(level, start_ns, finer, said, f"by {_LEVEL_NAMES[level - 1]}")
            self._add(WRONG_LEVEL, BUCKETS_TABLE, example)
        for (start_ns,) in await self._rows(SQL.buckets.check_days):
            if await self._is_wrong_day(start_ns):
                self._add(WRONG_LATTICE, BUCKETS_TABLE, _moment(2, start_ns))
        return done

    async def _draw_hours(
        self, partitions: dict[Bounds, str], sample: int
    ) -> list[tuple[Bounds, str]]:
        cover, drawn, messages = Cover(partitions), list[tuple[Bounds, str]](), 0
        hours = await self._rows(SQL.buckets.check_hours)
        random.shuffle(hours)
        for start_ns, count in hours:
            if messages >= sample:
                break
            bounds = cover.find(start_ns)
            if bounds is not None:
                messages += count
                hour = Bounds(start_ns, min(start_ns + HOUR_NS, bounds.high))
                drawn.append((hour, partitions[bounds]))
        return drawn

    async def _compare_slice(self, bounds: Bounds, table: str) -> int:
        """Compare a range of time with the table that has its messages, in one snapshot.

        Returns:
            The number of minutes that have a bucket.
        """
        connection, name = self._connection, sql.Identifier(SCHEMA, table)
        low, last = bounds.low, bounds.high - 1
        statement = sql.SQL(SQL.buckets.check_minutes).format(
            minutes=minutes_of(name, bounds), low=sql.Literal(low), last=sql.Literal(last)
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
                wrong = await self._wrong_hours(bounds, folded)
        except psycopg.errors.UndefinedTable:
            return 0  # retention was faster
        for start_ns, stored, said in rows:
            example = _example(0, start_ns, stored, said, "held")
            self._add(WRONG_SUMMARY, BUCKETS_TABLE, example)
        for start_ns in wrong:
            self._add(WRONG_LATTICE, BUCKETS_TABLE, _moment(1, start_ns))
        return int(buckets)

    async def _wrong_hours(self, bounds: Bounds, folded: int) -> list[int]:
        """Return starts of the whole hours of a range whose known sum is not its messages'."""
        given = (bounds.low, bounds.high - HOUR_NS)
        known = await self._rows(SQL.buckets.check_known_hours, given)
        hours = [start_ns for start_ns, *_ in known]
        late = await added(self._connection, folded, UNBOUNDED_HIGH - 1, hours)
        wrong = []
        for start_ns, count, state in known:
            total = await sum_of_time(self._connection, start_ns, start_ns + HOUR_NS)
            total -= late.get(start_ns, LatticeSum())
            if total != LatticeSum.stored(count, bytes(state)):
                wrong.append(start_ns)
        return wrong

    async def _is_wrong_day(self, start_ns: int) -> bool:
        """Return True if the known sum of a day is not that of its hours, all of them known."""
        rows = await self._rows(SQL.buckets.check_day, (start_ns,))
        total = LatticeSum.total([LatticeSum.stored(n, bytes(state)) for _, n, state in rows])
        return bool(rows) and bytes(rows[0][0]) != total.state_bytes()


def _plain(value: Any) -> Any:  # noqa: ANN401 - a column, or a row of them
    """Return a column as `store.domain.audit.SdsRow` has it: keys as bytes, arrays as tuples."""
    if isinstance(value, UUID):
        return value.bytes
    return tuple(map(_plain, value)) if isinstance(value, list) else value


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
