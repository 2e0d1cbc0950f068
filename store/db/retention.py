"""Retention: dropping whole partitions, in short transactions, or not at all; and its limits.

`store.domain.retention` decides which partitions go. One transaction per partition of messages
drops that, what follows from it in the other tables, its summaries and unread events, and raises
the horizon. It waits for locks no longer than its limit, since every query waits behind it
meanwhile; a later round tries again.

A job of the pipeline notes in ``storenode.archived`` what an hour was when the archive had exactly
that. The note is valid as long as it agrees with the hour's bucket, so a message that arrives late
makes it invalid.

A dropped partition does not come back, and ``--retention 30m`` for ``30d`` is a slip of one letter.
So the database holds the limits that its store has agreed to. A node replaces them by its own when
it starts; it does not start where its own would drop much that the agreed ones keep
(`store.domain.retention.find_excess`), unless an operator confirms them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from psycopg import errors as pg
from psycopg import sql

from store.db.buckets import delete_buckets, fold_rest, fold_until
from store.db.connection import Connection, fetch_rows
from store.db.feed import newest
from store.db.locks import FOLDING, lock_exclusively, set_lock_timeout
from store.db.partitions import Catalog, begin, read_catalog
from store.db.statements import (
    COARSE_TABLES,
    COMMITS_TABLE,
    FINE_TABLE,
    PARTITIONED_TABLES,
    SCHEMA,
    SQL,
)
from store.domain.partitioning import HOUR_NS, UNBOUNDED_HIGH, UNBOUNDED_LOW
from store.domain.retention import (
    Drop,
    DropReason,
    Excess,
    Partition,
    PrunePlan,
    PruneStep,
    RetentionPolicy,
    find_excess,
    plan_prune,
)
from storenode.message.limits import NS_PER_S

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class NotArchivedError(Exception):
    """A partition must stay; the text says why, and what to do."""


DEFAULT_LOCK_TIMEOUT_MS: Final = 250
"""The time that queries may queue behind a drop."""


def _plan(catalog: Catalog, policy: RetentionPolicy, now_ns: int) -> PrunePlan:
    commits_bytes = sum(each.size_bytes for each in catalog.of(COMMITS_TABLE))
    return plan_prune(
        catalog.of(FINE_TABLE),
        [catalog.of(table) for table in COARSE_TABLES],
        policy=policy,
        now_ns=now_ns,
        horizon_ns=catalog.horizon_ns,
        other_bytes=catalog.summaries_bytes + commits_bytes,
    )


@dataclass(frozen=True)
class PruneReport:
    """The partitions that were dropped, or would be in a dry run.

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
    catalog = await read_catalog(connection, with_sizes=True)
    plan = _plan(catalog, policy, now_ns)
    dropped, problems = list[Drop](), list[str]()
    horizon_ns, commits = catalog.horizon_ns, catalog.of(COMMITS_TABLE)
    # The commits go with the first step that lets them.
    for step in plan.steps or (PruneStep((), horizon_ns),):
        behind = await _commits_behind(connection, commits, step.horizon_ns)
        drops: Sequence[Drop] = [*step.drops, *(Drop(each, DropReason.FOLLOWS) for each in behind)]
        if not drops:
            continue
        try:
            if dry_run:
                await _require_archived(connection, drops, policy)
            else:
                drops = await _drop(connection, drops, step.horizon_ns, policy, lock_timeout_ms)
            dropped += drops
        except NotArchivedError as error:
            problems.append(str(error))
            break
        except pg.LockNotAvailable:
            names = ", ".join(each.partition.name for each in drops)
            problems.append(
                f"{names} could not be dropped: another session held a lock for more than"
                f" {lock_timeout_ms} ms; a later round tries again"
            )
            break
        horizon_ns, commits = step.horizon_ns, commits[len(behind) :]
    if plan.left_over_bytes > 0 and policy.size_bytes is not None:
        problems.append(
            f"the limit of {policy.size_bytes} bytes is passed by {plan.left_over_bytes} without"
            " anything left that may go: the current partition and what looks its messages up"
            " stay, so raise the limit"
        )
    return PruneReport(tuple(dropped), horizon_ns, catalog.size_bytes, tuple(problems))


async def _commits_behind(
    connection: Connection, commits: Iterable[Partition], horizon_ns: int
) -> list[Partition]:
    """Return the first partitions of commits that are only about messages behind the horizon.

    Below a position that is visible none can appear any more, so a partition below the newest
    commit's is complete.
    """
    reached, _ = await newest(connection)
    found: list[Partition] = []
    for each in commits:
        if each.bounds.high > reached:
            break
        statement = sql.SQL("select exists (select from {} where max_ts >= {})").format(
            sql.Identifier(SCHEMA, each.name), sql.Literal(horizon_ns)
        )
        if await fetch_rows(connection, statement, prepare=False) != [(False,)]:
            break
        found.append(each)
    return found


async def _drop(
    connection: Connection,
    drops: Sequence[Drop],
    horizon_ns: int,
    policy: RetentionPolicy,
    lock_timeout_ms: int,
) -> Sequence[Drop]:
    """Drop what another node has not dropped meanwhile, in one transaction, and return that.

    Summaries go in the same transaction, and all that is committed is folded in it, so that no
    delta is left that is about what goes, or lies in a partition of commits that goes, and what
    goes is not missing to what has named it before. The greater part of that is done before any
    lock is taken.

    Raises:
        NotArchivedError: something came late just now.
        psycopg.errors.LockNotAvailable: another session kept a lock.
    """
    await fold_until(connection)
    await _require_archived(connection, drops, policy)
    async with connection.transaction():
        await set_lock_timeout(connection, lock_timeout_ms)
        await connection.execute(SQL.partitions.lock, (FOLDING,))
        await begin(connection, lock_timeout_ms)
        there = {(each.table, each.bounds) for each in (await read_catalog(connection)).partitions}
        left = [each for each in drops if (each.partition.table, each.partition.bounds) in there]
        gone = [each.partition.bounds for each in left if each.partition.table == FINE_TABLE]
        if not policy.requires_archive:
            await delete_buckets(connection, gone)
        involved = {each.partition.table for each in left}
        tables = [table for table in PARTITIONED_TABLES if table in involved]
        names = [each.partition.name for each in left]
        await lock_exclusively(connection, [*tables, *names], lock_timeout_ms)
        # All writers to what goes have committed now, and no other can write to it.
        await fold_rest(connection)
        await _require_archived(connection, left, policy)
        await delete_buckets(connection, gone)
        for name in names:
            statement = sql.SQL("DROP TABLE {}").format(sql.Identifier(SCHEMA, name))
            await connection.execute(statement, prepare=False)
        for bounds in gone:
            await connection.execute(SQL.stores.drop_unread, (bounds.low, bounds.high))
        await connection.execute(SQL.stores.raise_horizon, (horizon_ns,))
    await connection.execute(SQL.sds.delete_dropped)
    return left


async def _require_archived(
    connection: Connection, drops: Iterable[Drop], policy: RetentionPolicy
) -> None:
    """Make sure that what goes is archived as it is, if the policy requires that.

    To be sure until the end of a transaction, no session may be able to write to the partitions,
    and everything must be folded.

    Raises:
        NotArchivedError: an hour is not.
    """
    partitions = [each.partition for each in drops if each.partition.table == FINE_TABLE]
    for each in partitions if policy.requires_archive else ():
        low = max(each.bounds.low, UNBOUNDED_LOW + HOUR_NS) - HOUR_NS
        given = {"low": low, "high": min(each.bounds.high, UNBOUNDED_HIGH - 1)}
        ((hours, first_ns),) = await fetch_rows(connection, SQL.buckets.count_unarchived, given)
        if hours:
            moment = _EPOCH + timedelta(seconds=first_ns // NS_PER_S)
            raise NotArchivedError(
                f"partition {each.name} stays, since it is not archived in full"
                f" (hours not archived: {hours}, the first {moment:%Y-%m-%dT%H}:00Z):"
                " run `storenode pipeline archive`"
            )


# The limits


@dataclass(frozen=True, slots=True)
class RetentionReview:
    """The effect that limits would have on a store.

    Attributes:
        agreed: The limits that the store has agreed to; None: none yet.
        due: All partitions of messages that the limits would drop.
        excess: What must be confirmed before; None: nothing.
        horizon_ns: The horizon of the store.
    """

    agreed: RetentionPolicy | None
    due: Excess | None
    excess: Excess | None
    horizon_ns: int


async def read_agreed(connection: Connection) -> RetentionPolicy | None:
    """Return the limits that the store has agreed to; None: none yet."""
    ((age_ns, size_bytes),) = await fetch_rows(connection, SQL.stores.read_agreed)
    return None if age_ns is None else RetentionPolicy(age_ns or None, size_bytes or None)


async def agree(connection: Connection, policy: RetentionPolicy) -> None:
    """Let the store agree to limits; raises `psycopg.Error`."""
    await connection.execute(SQL.stores.agree, (policy.age_ns or 0, policy.size_bytes or 0))


async def reopen(connection: Connection, horizon_ns: int) -> None:
    """Lower the horizon, so that older messages are admitted; raises `psycopg.Error`."""
    await connection.execute(SQL.stores.lower_horizon, (horizon_ns,))


async def review(connection: Connection, policy: RetentionPolicy, now_ns: int) -> RetentionReview:
    """Return what limits would drop now; reads the catalog alone. Raises `psycopg.Error`."""
    agreed = await read_agreed(connection)
    catalog = await read_catalog(connection, with_sizes=True)
    fine, plan = catalog.of(FINE_TABLE), _plan(catalog, policy, now_ns)
    expected = None if agreed is None else _plan(catalog, agreed, now_ns)
    due = Excess.of(plan.messages(), fine)
    return RetentionReview(agreed, due, find_excess(plan, expected, fine), catalog.horizon_ns)
