"""Retention: dropping whole partitions, in short transactions, or not at all; and its brake.

`store.domain.retention` decides which partitions go. One transaction per partition of messages
drops that, what follows from it in the other tables, its summaries and unread events, and raises
the horizon. It waits for locks no longer than its limit, since every query waits behind it
meanwhile; a later round tries again.

A job of the pipeline notes in ``storenode.archived`` what an hour was when the archive had exactly
that. The note is valid as long as it agrees with the hour's bucket, so a message that arrives late
makes it invalid.

A dropped partition does not come back, and ``--retention 30m`` for ``30d`` is a slip of one letter:
lower limits drop much only after a confirmation. So the database holds the limits that its store
has agreed to. A node whose options keep as much, or more, replaces them at its start. One whose
options keep less continues with the agreed limits where its own would drop much at once
(`store.domain.retention.find_excess`), until an operator confirms them. What falls due day by day
under agreed limits is never held. A node that starts and finds more than a week due under agreed
limits holds it as well: a backup of last month may have been restored to save what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    MAX_EXCESS_NS,
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


# The brake


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
    async with connection.transaction():
        await connection.execute(SQL.stores.commit_locally)
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


class RetentionBrake:
    """The limits of retention that a node applies.

    Attributes:
        policy: These limits: those of the node's options, or the agreed ones while these are held.
        excess: The partitions that the options would drop, and that wait for a confirmation;
            None: there are none.
    """

    def __init__(self, wanted: RetentionPolicy, *, confirmed: bool = False) -> None:
        """Make a brake, which must be settled before anything is dropped.

        Args:
            wanted: The limits of the node's options.
            confirmed: An operator has confirmed them.
        """
        self._wanted = wanted
        self._confirmed = confirmed
        self._is_settled = self._is_backlog = False
        self.policy = wanted
        self.excess: Excess | None = None

    async def settle(self, connection: Connection, now_ns: int) -> None:
        """Decide which limits apply: at the start, and again every few seconds.

        Raises:
            psycopg.Error: The database refused; the decision stays what it was.
        """
        starts, wanted = not self._is_settled, self._wanted
        agreed = await read_agreed(connection)
        is_agreed = agreed is not None and wanted.keeps(agreed) and agreed.keeps(wanted)
        excess, is_backlog = None, False
        if not self._confirmed and (starts or not is_agreed or self._is_backlog):
            found = await review(connection, wanted, now_ns)
            # While a node runs, much may be due because a lock has held it; an archive vouches.
            is_long = found.due is not None and found.due.span_ns > MAX_EXCESS_NS
            may_wait = is_agreed and (starts or self._is_backlog)
            is_backlog = may_wait and is_long and not wanted.requires_archive
            excess = found.due if is_backlog else found.excess
        is_longer = agreed is not None and wanted.keeps(agreed)
        # Another node may have agreed to less meanwhile: only a start replaces that.
        if excess is None and not is_agreed and (starts or not is_longer):
            await agree(connection, wanted)
        keeps_all = excess is not None and (is_backlog or agreed is None)
        applied = RetentionPolicy() if keeps_all else wanted if excess is None else agreed
        assert applied is not None
        self.policy = replace(applied, requires_archive=wanted.requires_archive)
        self.excess, self._is_backlog, self._is_settled = excess, is_backlog, True
