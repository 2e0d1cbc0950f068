"""Dropping what retention does not keep: whole partitions, in short transactions, or not at all.

What goes is decided by `store.domain.retention`; here it is done. One transaction per partition of
messages drops that, what follows from it in the other tables, its summaries and unread events,
raises the horizon and adds to the totals of what was dropped. It waits for locks no longer than its
limit, since every query waits behind it meanwhile; what it does not get is left to a later round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql
from psycopg import errors as pg

from store.db.locks import lock_exclusively, set_lock_timeout
from store.db.schema.names import (
    COARSE_TABLES,
    COMMITS_TABLE,
    FINE_TABLE,
    PARTITIONED_TABLES,
    SCHEMA,
)
from store.db.schema.partitions import begin, read_catalog
from store.db.sds.missing import follow_claims, forget_dropped
from store.db.summaries.archived import NotArchived, require_archived
from store.db.summaries.fold import delete_buckets, fold_rest, fold_until, lock_folding
from store.db.writing.unread import drop_unread
from store.domain.partitioning import Bounds, parse_bounds
from store.domain.retention import Drop, Partition, Reason, RetentionPolicy, Step, plan_prune

Connection = AsyncConnection[Any]

DEFAULT_LOCK_TIMEOUT_MS: Final = 250
"""How long queries may queue behind a drop."""

_INVENTORY: Final[LiteralString] = """
select p.relname::text, c.relname::text, pg_get_expr(c.relpartbound, c.oid),
       pg_total_relation_size(c.oid), c.reltuples::bigint
from pg_inherits i
join pg_class p on p.oid = i.inhparent
join pg_class c on c.oid = i.inhrelid
where p.relnamespace = 'storenode'::regnamespace and p.relkind = 'p' and not i.inhdetachpending
  and c.relkind = 'r'
"""
_STORE: Final[LiteralString] = """
select horizon_ns, pg_total_relation_size('storenode.buckets') from storenode.store
"""
_NOTE: Final = """
update storenode.store set horizon_ns = greatest(horizon_ns, %s),
       pruned_messages = pruned_messages + %s, folded_messages = folded_messages + %s
"""
# Rows are counted while everybody works on; once the drop holds its locks, only what later commits
# have added is counted. That is exact: what the first count did not see has a later commit.
_COUNT: Final[LiteralString] = """
select count(*), (select coalesce(max(position), 0) from storenode.commits) from {}
"""
_ADDED: Final[LiteralString] = """
select count(*) from storenode.commits c join {} m on m.batch = c.batch
where c.position > %s and c.max_ts >= %s and c.min_ts < %s
"""
_SUM: Final[LiteralString] = "select coalesce(sum(messages), 0)::bigint from {}"
_NEWEST_POSITION: Final[LiteralString] = "select max(position) from storenode.commits"


@dataclass(frozen=True)
class Inventory:
    """All partitions with their sizes, the horizon (nanoseconds), and the size of summaries."""

    partitions: tuple[Partition, ...]
    horizon_ns: int
    summaries_bytes: int

    def of(self, table: str) -> list[Partition]:
        """The partitions of one table, lowest first."""
        found = [each for each in self.partitions if each.table == table]
        return sorted(found, key=lambda each: each.bounds.low)

    @property
    def size_bytes(self) -> int:
        """Size of all tables with their indexes."""
        return self.summaries_bytes + sum(each.size_bytes for each in self.partitions)


@dataclass(frozen=True)
class PruneReport:
    """What was dropped, or would be in a dry run.

    ``problems`` are sentences about what could not be done. Sizes are those from before.
    """

    dropped: tuple[Drop, ...]
    horizon_ns: int
    size_bytes: int
    problems: tuple[str, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """Size of what was dropped."""
        return sum(each.partition.size_bytes for each in self.dropped)


async def read_inventory(connection: Connection) -> Inventory:
    """Read which partitions there are and how large they are."""
    found = []
    for table, name, text, size_bytes, rows in await _rows(connection, _INVENTORY):
        # A partition that is dropped meanwhile has neither bounds nor a size.
        bounds = None if text is None or size_bytes is None else parse_bounds(text)
        if bounds is not None:
            found.append(Partition(table, name, bounds, size_bytes, rows))
    ((horizon_ns, summaries_bytes),) = await _rows(connection, _STORE)
    return Inventory(tuple(found), horizon_ns, summaries_bytes)


async def prune(
    connection: Connection,
    policy: RetentionPolicy,
    now_ns: int,
    *,
    dry_run: bool = False,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> PruneReport:
    """Drop the partitions that the policy does not keep; never the current one.

    ``connection`` must not be in a transaction. Lock timeouts end the work early and are a
    problem of the report; other errors of the database are raised (`psycopg.Error`).
    """
    inventory = await read_inventory(connection)
    plan = plan_prune(
        inventory.of(FINE_TABLE),
        [inventory.of(table) for table in COARSE_TABLES],
        policy=policy,
        now_ns=now_ns,
        horizon_ns=inventory.horizon_ns,
        other_bytes=inventory.summaries_bytes
        + sum(each.size_bytes for each in inventory.of(COMMITS_TABLE)),
    )
    work = _Prune(
        connection,
        inventory,
        dry_run=dry_run,
        lock_timeout_ms=lock_timeout_ms,
        requires_archive=policy.requires_archive,
    )
    await work.run(plan.steps)
    if plan.left_over_bytes > 0 and policy.size_bytes is not None:
        work.problems.append(
            f"the limit of {policy.size_bytes} bytes is passed by {plan.left_over_bytes} without"
            " anything left that may go: the current partition and what looks its messages up"
            " stay, so raise the limit"
        )
    return PruneReport(
        tuple(work.dropped), work.horizon_ns, inventory.size_bytes, tuple(work.problems)
    )


class _Prune:
    def __init__(
        self,
        connection: Connection,
        inventory: Inventory,
        *,
        dry_run: bool,
        lock_timeout_ms: int,
        requires_archive: bool,
    ) -> None:
        self.dropped: list[Drop] = []
        self.problems: list[str] = []
        self.horizon_ns = inventory.horizon_ns
        self._connection = connection
        self._dry_run = dry_run
        self._lock_timeout_ms = lock_timeout_ms
        self._requires_archive = requires_archive
        self._commits = inventory.of(COMMITS_TABLE)

    async def run(self, steps: tuple[Step, ...]) -> None:
        """Take the steps in order; the commits go with the first that lets them."""
        for step in steps or (Step((), self.horizon_ns),):
            commits = await self._commits_behind(step.horizon_ns)
            drops = (*step.drops, *(Drop(each, Reason.FOLLOWS) for each in commits))
            if not drops:
                continue
            try:
                if self._dry_run:
                    await self._require_archived(drops)
                    self.dropped += drops
                else:
                    self.dropped += await self._drop(drops, step.horizon_ns)
            except NotArchived as error:
                self.problems.append(str(error))
                return
            except pg.LockNotAvailable:
                names = ", ".join(each.partition.name for each in drops)
                self.problems.append(
                    f"{names} could not be dropped: another session held a lock for more than"
                    f" {self._lock_timeout_ms} ms; a later round tries again"
                )
                return
            self.horizon_ns = step.horizon_ns
            self._commits = self._commits[len(commits) :]

    async def _commits_behind(self, horizon_ns: int) -> list[Partition]:
        """Partitions of commits, lowest first, that are only about messages behind the horizon.

        Below a position that is visible none can appear any more, so a partition below the newest
        commit's is complete.
        """
        ((newest,),) = await _rows(self._connection, _NEWEST_POSITION)
        found: list[Partition] = []
        for each in self._commits:
            if newest is None or each.bounds.high > newest:
                break
            statement = sql.SQL("select exists (select from {} where max_ts >= {})").format(
                sql.Identifier(SCHEMA, each.name), sql.Literal(horizon_ns)
            )
            cursor = await self._connection.execute(statement, prepare=False)
            if await cursor.fetchone() != (False,):
                break
            found.append(each)
        return found

    async def _drop(self, drops: tuple[Drop, ...], horizon_ns: int) -> list[Drop]:
        """Drop what another node has not dropped meanwhile, and return that.

        Summaries go in the same transaction, and all that is committed is folded in it, so that no
        delta is left that is about what goes, or lies in a partition of commits that goes. The
        greater part of that is done before any lock is taken.

        Raises:
            NotArchived: what goes is not archived, or something came late just now.
        """
        counts = await _count_messages(self._connection, [each.partition for each in drops])
        await fold_until(self._connection)
        # What goes is not missing to what has named it before.
        await follow_claims(self._connection)
        await self._require_archived(drops)
        async with self._connection.transaction():
            await set_lock_timeout(self._connection, self._lock_timeout_ms)
            await lock_folding(self._connection)
            await begin(self._connection, self._lock_timeout_ms)
            catalog = await read_catalog(self._connection)
            left = [
                each
                for each in drops
                if catalog.find(each.partition.table, each.partition.bounds) is not None
                and (each.partition.name in counts or each.partition.table in COARSE_TABLES)
            ]
            gone = [each.partition.bounds for each in left if each.partition.table == FINE_TABLE]
            if not self._requires_archive:
                await self._delete_buckets(gone)
            involved = {each.partition.table for each in left}
            tables = [table for table in PARTITIONED_TABLES if table in involved]
            names = [each.partition.name for each in left]
            await lock_exclusively(self._connection, [*tables, *names], self._lock_timeout_ms)
            # All writers to what goes have committed now, and no other can write to it.
            if self._requires_archive:
                await fold_rest(self._connection)
                await self._require_archived(left)
                await self._delete_buckets(gone)
            else:
                await fold_rest(self._connection, without=gone)
            pruned, folded = await self._totals(left, counts)
            for name in names:
                statement = sql.SQL("DROP TABLE {}").format(sql.Identifier(SCHEMA, name))
                await self._connection.execute(statement, prepare=False)
            for bounds in gone:
                await drop_unread(self._connection, bounds)
            await self._connection.execute(_NOTE, (horizon_ns, pruned, folded))
        await forget_dropped(self._connection)
        return left

    async def _require_archived(self, drops: Iterable[Drop]) -> None:
        if self._requires_archive:
            for each in drops:
                if each.partition.table == FINE_TABLE:
                    await require_archived(self._connection, each.partition)

    async def _delete_buckets(self, gone: Iterable[Bounds]) -> None:
        for bounds in gone:
            await delete_buckets(self._connection, bounds)

    async def _totals(self, drops: list[Drop], counts: dict[str, _MessageCount]) -> tuple[int, int]:
        pruned = folded = 0
        for each in drops:
            partition = each.partition
            if partition.table == FINE_TABLE:
                counted = counts[partition.name]
                pruned += counted.messages + await _added_since(
                    self._connection, partition, counted
                )
            elif partition.table == COMMITS_TABLE:
                folded += counts[partition.name].messages
        return pruned, folded


async def _rows(connection: Connection, statement: LiteralString) -> list[tuple[Any, ...]]:
    return await (await connection.execute(statement)).fetchall()


@dataclass(frozen=True, slots=True)
class _MessageCount:
    """The messages that a partition stands for: in it, or counted by its rows of commits.

    ``position`` is the newest commit that the count saw.
    """

    messages: int
    position: int


async def _count_messages(
    connection: Connection, partitions: Iterable[Partition]
) -> dict[str, _MessageCount]:
    """Count those of messages and commits, by name; one that is gone is left out."""
    found = {}
    for each in partitions:
        if each.table not in (FINE_TABLE, COMMITS_TABLE):
            continue
        try:
            found[each.name] = await _counted(connection, each)
        except pg.UndefinedTable:
            continue
    return found


async def _added_since(connection: Connection, partition: Partition, counted: _MessageCount) -> int:
    statement = sql.SQL(_ADDED).format(sql.Identifier(SCHEMA, partition.name))
    given = (counted.position, partition.bounds.low, partition.bounds.high)
    cursor = await connection.execute(statement, given, prepare=False)
    ((added,),) = await cursor.fetchall()
    return int(added)


async def _counted(connection: Connection, partition: Partition) -> _MessageCount:
    statement = _COUNT if partition.table == FINE_TABLE else _SUM
    name = sql.Identifier(SCHEMA, partition.name)
    cursor = await connection.execute(sql.SQL(statement).format(name), prepare=False)
    (row,) = await cursor.fetchall()
    # Commits that may go are complete: nothing is added to them any more.
    return _MessageCount(row[0], row[1] if len(row) > 1 else 0)
