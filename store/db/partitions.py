"""Partitions as the database has them, and making those that are missing.

Postgres's catalog is the only list of partitions; `PartitionMap` is a view of it that may be old.
Creation is serialised over all nodes by an advisory lock and planned again under it. New partitions
are made as tables of their own and attached, which locks out neither readers nor writers
(PostgreSQL manual, "Table Partitioning", "Partition Maintenance").

Functions here begin their own transactions: pass a connection that is not in one. Besides what is
said, they raise `psycopg.Error`; `psycopg.errors.LockNotAvailable` means that trying again later is
all there is to do.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import sql

from store.db.connection import Connection, fetch_rows
from store.db.locks import PARTITIONS, set_lock_timeout
from store.db.statements import COARSE_TABLES, COMMITS_TABLE, FINE_TABLE, SCHEMA, SQL
from store.domain import partitioning as rules
from store.domain.partitioning import Bounds, Cover, partition_name
from store.domain.retention import Partition

CREATE_LOCK_TIMEOUT_MS: Final = 2_000
"""The time that the creation of partitions waits for a lock before it gives up."""

# Rows are only ever added, so that a few percent more are much.
_CREATE: Final[LiteralString] = (
    "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES"
    " INCLUDING STORAGE) WITH (autovacuum_analyze_scale_factor = 0.05,"
    " autovacuum_vacuum_insert_scale_factor = 0.1)"
)
_ATTACH: Final[LiteralString] = "ALTER TABLE {} ATTACH PARTITION {} FOR VALUES {}"


@dataclass(frozen=True)
class Catalog:
    """The partitions of all tables, and what else decides which are needed.

    ``position``: the newest position that was given out; ``summaries_bytes``: the size of buckets.
    """

    partitions: tuple[Partition, ...]
    position: int = 0
    horizon_ns: int = 0
    summaries_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of all tables with their indexes; 0 where no sizes were read."""
        return self.summaries_bytes + sum(each.size_bytes for each in self.partitions)

    def of(self, table: str) -> list[Partition]:
        """Return the partitions of one table, lowest first."""
        found = [each for each in self.partitions if each.table == table]
        return sorted(found, key=lambda each: each.bounds)

    def bounds(self, table: str) -> list[Bounds]:
        """Return the bounds of one table's partitions, ascending."""
        return [each.bounds for each in self.of(table)]


class PartitionMap:
    """The partitions as last seen, which makes those that a writer needs.

    ``now_ns`` is a clock in nanoseconds since the epoch; ``retention_ns``, None for endless,
    decides how wide new partitions of the lookup tables are. `generation` changes whenever a
    refresh finds other partitions than before, also when one was dropped and made again.
    """

    def __init__(self, now_ns: Callable[[], int], retention_ns: int | None = None) -> None:
        self.generation = 0
        self._now_ns = now_ns
        self._retention_ns = retention_ns
        self._seen: frozenset[Partition] | None = None
        self._fine = Cover(())
        self._coarse = [Cover(())]
        self._commits_are_short = True

    def covers(self, first_ns: int, last_ns: int) -> bool:
        """Return True if all timestamps from ``first_ns`` to ``last_ns`` have all partitions."""
        return self._fine.spans(first_ns, last_ns) and all(
            each.spans(first_ns, last_ns) for each in self._coarse
        )

    def coarse_lower(self, ts: int) -> int:
        """Return the lower bound, at least 0, of the partition of ``topics`` for a timestamp.

        Raises:
            LookupError: there is none: `ensure` comes first.
        """
        bounds = self._coarse[-1].find(ts)
        if bounds is None:
            raise LookupError(f"no partition of topics contains {ts}: ensure it first")
        return max(0, bounds.low)

    async def refresh(self, connection: Connection) -> None:
        """Read the catalog."""
        catalog = await read_catalog(connection)
        self._commits_are_short = bool(
            rules.plan_commits(catalog.bounds(COMMITS_TABLE), catalog.position)
        )
        seen = frozenset(catalog.partitions)
        if seen == self._seen:
            return
        self._seen = seen
        self._fine = Cover(catalog.bounds(FINE_TABLE))
        self._coarse = [Cover(catalog.bounds(table)) for table in COARSE_TABLES]
        self.generation += 1

    async def ensure(self, connection: Connection, timestamps: Sequence[int]) -> None:
        """Make sure that messages with these timestamps can be written, and their commit too.

        Costs two lookups when all is in the map; else the catalog is read, and missing partitions
        are created. The map is right about these timestamps afterwards, unless a partition was
        dropped since: the insert then fails (`store.db.errors.is_missing_partition`) and `refresh`
        comes before another try.
        """
        is_long = not self._commits_are_short
        if is_long and self.covers(min(timestamps, default=1), max(timestamps, default=1)):
            return
        if self._is_ready_for(timestamps):
            return
        await self.refresh(connection)
        if not self._is_ready_for(timestamps):
            await ensure_for(connection, timestamps, self._now_ns(), self._retention_ns)
            await self.refresh(connection)

    def _is_ready_for(self, timestamps: Sequence[int]) -> bool:
        return not self._commits_are_short and all(self.covers(ts, ts) for ts in set(timestamps))


async def read_catalog(connection: Connection, *, with_sizes: bool = False) -> Catalog:
    """Read which partitions exist; their sizes and estimates of their rows only where asked for.

    Partitions without bounds of ours, or that are being detached, are left out.

    Raises:
        ValueError: bounds cannot be read.
    """
    rows = await fetch_rows(connection, SQL.partitions.read_catalog, (with_sizes, with_sizes))
    (numbers,) = await fetch_rows(connection, SQL.stores.read_size)
    found = []
    for table, name, oid, text, is_detaching, size_bytes, row_count in rows:
        # It may be dropped meanwhile.
        bounds = None if text is None or size_bytes is None else rules.parse_bounds(text)
        if bounds is not None and not is_detaching:
            found.append(Partition(table, name, bounds, size_bytes, row_count, oid))
    return Catalog(tuple(found), *numbers)


async def ensure_for(
    connection: Connection, timestamps: Iterable[int], now_ns: int, retention_ns: int | None
) -> None:
    """Make every partition that messages with these timestamps, and their commits, need.

    Raises:
        ValueError: a timestamp is not positive.
    """
    wanted = sorted(set(timestamps))
    async with connection.transaction():
        await begin(connection, CREATE_LOCK_TIMEOUT_MS)
        catalog = await read_catalog(connection)
        fine = catalog.bounds(FINE_TABLE)
        for bounds in rules.plan_messages(fine, wanted, now_ns):
            await _create(connection, FINE_TABLE, bounds)
            fine.append(bounds)
        reached = rules.ends(fine, wanted)
        for table in COARSE_TABLES:
            existing = catalog.bounds(table)
            for bounds in rules.plan_coarse(existing, reached, now_ns, retention_ns):
                await _create(connection, table, bounds)
        for bounds in rules.plan_commits(catalog.bounds(COMMITS_TABLE), catalog.position):
            await _create(connection, COMMITS_TABLE, bounds)


async def ensure_ahead(connection: Connection, now_ns: int, retention_ns: int | None) -> None:
    """Make the partitions of today and the next days, before they are needed."""
    await ensure_for(connection, rules.ahead(now_ns), now_ns, retention_ns)


async def begin(connection: Connection, lock_timeout_ms: int) -> None:
    """Bound all waiting in this transaction and take the lock for changes of partitions."""
    await set_lock_timeout(connection, lock_timeout_ms)
    await connection.execute(SQL.partitions.lock, (PARTITIONS,))


async def _create(connection: Connection, table: str, bounds: Bounds) -> None:
    """Make one partition; an empty table is attached without a scan that matters."""
    parent = sql.Identifier(SCHEMA, table)
    partition = sql.Identifier(SCHEMA, partition_name(table, bounds))
    create = sql.SQL(_CREATE).format(partition, parent)
    attach = sql.SQL(_ATTACH).format(parent, partition, sql.SQL(bounds.clause))
    for statement in (create, attach):
        # A plan of a statement that is never repeated is not worth keeping.
        await connection.execute(statement, prepare=False)
