"""Everything that a store holds at one moment, as a view over summaries.

One transaction (REPEATABLE READ, read only) on a connection of its own is open for as long as the
view is: buckets, the deltas that are not folded into them yet, and IDs are of one snapshot. The
partitions of messages are locked against being dropped meanwhile, so retention waits for its next
round. What is open for longer than `MAX_VIEW_S` is closed, even if it is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, TypeVar

import numpy as np
import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolTimeout

from reconcile.ids import SyncIds
from reconcile.lattice import LatticeSum
from reconcile.summaries.buckets import TimeBuckets as Buckets
from reconcile.summaries.summary import Loaded, NeedBuckets, NeedHashes, NeedIds, Needs, SummaryView
from store.db.arrays import bigint_column
from store.db.commits.ids import ids_in, ids_with, with_contents
from store.db.commits.pages import newest
from store.db.errors import find_failure
from store.db.pool import Connection, Database
from store.db.reconciliation.lattice_read import LatticeReader
from store.db.summaries.deltas import HASH_WORDS, LEVELS_NS, unpack
from store.db.summaries.fold import MAX_FOLD_COMMITS, fold_until
from store.domain.hub import Place
from store.domain.ports import StoreUnavailable
from store.domain.view import Times
from storenode.message.limits import MAX_TIMESTAMP_NS

MAX_VIEW_S: Final = 660.0
"""How long a view may be open: for a reconciliation, ten minutes, and one to end it."""

LOCK_TIMEOUT_S: Final = 5.0
"""How long a view waits for an exclusive lock on the messages to go away."""

MAX_TOP_BUCKETS: Final = 131_072
"""Hours with messages in them, 15 years of them: about 6 MiB. Where there are more, the longest
buckets are days."""

MAX_DELTA_COMMITS: Final = 4 * MAX_FOLD_COMMITS
"""Commits whose deltas a view adds up by itself; where more are not folded, that is done first."""

_EXPIRED: Final = (
    "the view for this reconciliation was open for too long; reconcile again, over a shorter window"
)
_Result = TypeVar("_Result")
_DELTAS_AT_ONCE: Final = 256
_MINUTE_NS, _HOUR_NS, _DAY_NS = LEVELS_NS
_FINER_NS: Final = {_HOUR_NS: (_MINUTE_NS,), _DAY_NS: (_HOUR_NS, _MINUTE_NS)}

_BEGIN: Final = f"""
begin isolation level repeatable read read only;
set local idle_in_transaction_session_timeout = '{MAX_VIEW_S:.0f}s';
set local lock_timeout = '{LOCK_TIMEOUT_S:.0f}s';
lock table storenode.messages in access share mode
"""
_UNFOLDED: Final = """
select count(*) from (
    select from storenode.commits
    where position > (select folded_position from storenode.store) limit %b::bigint
) as few
"""
_STORE: Final = "select folded_position, horizon_ns from storenode.store"
_DELTAS: Final = """
select position, summary from storenode.commits where position > %b::bigint
order by position limit %b::bigint
"""
_HOURS: Final = """
select count(*) from (
    select from storenode.buckets where level = 1 limit %b::bigint
) as few
"""
_ROW: Final = "||".join(
    f"int8send(b.{column})" for column in ("start_ns", "count", "x0", "x1", "x2", "x3")
)
_ALL: Final = f"""
select string_agg({_ROW}, ''::bytea) from (
    select * from storenode.buckets b where b.level = %(level)b::smallint order by b.start_ns
) b
"""
_INSIDE: Final = f"""
select string_agg({_ROW}, ''::bytea)
from unnest(%(lows)b::bigint[], %(highs)b::bigint[]) as k(low, high)
cross join lateral (
    select * from storenode.buckets b
    where b.level = %(level)b::smallint and b.start_ns >= k.low and b.start_ns <= k.high
    order by b.start_ns offset 0
) b
"""


class ColdView:
    """A `SummaryView` of everything that is held, with the connection that loads for it.

    ``place`` is the newest commit of what is held, ``horizon_ns`` the store's horizon then.
    """

    def __init__(
        self,
        connection: Connection,
        top: Buckets,
        minutes: Buckets,
        *,
        folded: int,
        place: Place,
        horizon_ns: int,
        deadline_s: float,
    ) -> None:
        """``minutes`` are the deltas that no bucket holds yet; ``deadline_s`` by the loop.

        ``folded`` is the position up to which buckets hold them.
        """
        self.view = SummaryView(top, _FINER_NS[top.length_ns])
        self.place = place
        self.horizon_ns = horizon_ns
        self._connection = connection
        self._minutes = minutes
        self._folded = folded
        self._deadline_s = deadline_s

    async def load(self, needs: Needs) -> Loaded:
        """Read what the view needs, with one statement.

        Raises:
            StoreUnavailable: the database does not serve, or the view's time has passed.
        """
        return await self._in_time(partial(self._load, needs))

    async def lattices(self, spans: Sequence[Times]) -> list[LatticeSum] | None:
        """Return what `OpenView.lattices` does."""
        reader = LatticeReader(self._connection, self._folded, self._minutes)
        return await self._in_time(partial(reader.read, spans))

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view with their content digests; raises as `load`."""
        return await self._in_time(partial(with_contents, self._connection, ids))

    async def _in_time(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        if asyncio.get_running_loop().time() >= self._deadline_s:
            raise StoreUnavailable(_EXPIRED)
        try:
            with told():
                async with asyncio.timeout_at(self._deadline_s):
                    return await work()
        except TimeoutError:
            raise StoreUnavailable(_EXPIRED) from None

    async def _load(self, needs: Needs) -> Loaded:
        match needs:
            case NeedBuckets():
                return await self._buckets(needs)
            case NeedIds():
                return await ids_in(
                    self._connection, needs.spans, needs.limit, contents=needs.contents
                )
            case NeedHashes():
                return await ids_with(self._connection, needs.hashes)

    async def _buckets(self, needs: NeedBuckets) -> Buckets:
        # The last slice of a length ends behind the last time that there is.
        rest_ns = needs.parent_ns - 1
        last = np.minimum(needs.parents, MAX_TIMESTAMP_NS - rest_ns) + rest_ns
        parameters = {
            "lows": bigint_column(needs.parents),
            "highs": bigint_column(last),
            "level": LEVELS_NS.index(needs.length_ns),
        }
        folded = await _read_buckets(self._connection, needs.length_ns, _INSIDE, parameters)
        new = self._minutes.within(needs.parents, needs.parent_ns)
        return Buckets.join(needs.length_ns, [folded, new])


@asynccontextmanager
async def cold_view(database: Database, max_view_s: float = MAX_VIEW_S) -> AsyncIterator[ColdView]:
    """Open a view of what is held now, for so many seconds at most.

    Raises:
        StoreUnavailable: the database does not serve.
    """
    deadline_s = asyncio.get_running_loop().time() + max_view_s
    with told():
        connection = await database.connect()
    try:
        with _closing_at(connection, deadline_s):
            with told():
                await _fold_much(connection)
                view = await _open(connection, deadline_s)
            yield view
    finally:
        # Cancelled or not, with a statement under way or not: closing ends the transaction.
        await connection.close()


@contextmanager
def told() -> Iterator[None]:
    """Say in one sentence why the database does not serve.

    Raises:
        StoreUnavailable: that is so.
    """
    try:
        yield
    except (psycopg.Error, PoolTimeout) as error:
        failure = find_failure(error)
        if failure is None:
            raise
        raise StoreUnavailable(failure.sentence) from error


@contextmanager
def _closing_at(connection: Connection, deadline_s: float) -> Iterator[None]:
    """Close a connection at some time although no read is in progress."""
    closing: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    timer = loop.call_at(deadline_s, lambda: closing.append(loop.create_task(connection.close())))
    try:
        yield
    finally:
        timer.cancel()


async def _open(connection: Connection, deadline_s: float) -> ColdView:
    await connection.execute(_BEGIN, prepare=False)
    cursor = await connection.execute(_STORE, binary=True)
    row = await cursor.fetchone()
    assert row is not None
    position, horizon_ns = row
    minutes = await _unfolded(connection, position)  # type: ignore[arg-type]
    length_ns = await _top_length(connection)
    level: dict[str, object] = {"level": LEVELS_NS.index(length_ns)}
    folded = await _read_buckets(connection, length_ns, _ALL, level)
    return ColdView(
        connection,
        Buckets.join(length_ns, [folded, minutes]),
        minutes,
        folded=position,  # type: ignore[arg-type]
        place=await newest(connection),
        horizon_ns=horizon_ns,  # type: ignore[arg-type]
        deadline_s=deadline_s,
    )


async def _fold_much(connection: Connection) -> None:
    """Fold when there is so much to fold that adding it up here would take too long."""
    cursor = await connection.execute(_UNFOLDED, (MAX_DELTA_COMMITS + 1,), binary=True)
    if await cursor.fetchone() == (MAX_DELTA_COMMITS + 1,):
        # Another node may be folding, or this is a standby; what is left to add up is only more
        # work then.
        with contextlib.suppress(pg.LockNotAvailable, pg.ReadOnlySqlTransaction):
            await fold_until(connection)


async def _unfolded(connection: Connection, position: int) -> Buckets:
    """What the commits behind a position have added, by minutes."""
    total = Buckets.empty(_MINUTE_NS)
    while True:
        parameters = (position, _DELTAS_AT_ONCE)
        cursor = await connection.execute(_DELTAS, parameters, binary=True)
        rows = await cursor.fetchall()
        if rows:
            position = int(rows[-1][0])  # type: ignore[call-overload]
            some = unpack(bytes(summary) for _, summary in rows)  # type: ignore[call-overload]
            xors = some.xors.astype("<u8").view(np.uint64)
            total = Buckets.join(
                _MINUTE_NS, [total, Buckets(_MINUTE_NS, some.starts, some.counts, xors)]
            )
        if len(rows) < _DELTAS_AT_ONCE:
            return total


async def _top_length(connection: Connection) -> int:
    cursor = await connection.execute(_HOURS, (MAX_TOP_BUCKETS + 1,), binary=True)
    few = await cursor.fetchone() != (MAX_TOP_BUCKETS + 1,)
    return _HOUR_NS if few else _DAY_NS


async def _read_buckets(
    connection: Connection, length_ns: int, statement: str, parameters: dict[str, object]
) -> Buckets:
    cursor = await connection.execute(statement, parameters, binary=True)
    row = await cursor.fetchone()
    assert row is not None
    if row[0] is None:
        return Buckets.empty(length_ns)
    columns = np.frombuffer(row[0], ">i8").reshape(-1, 2 + HASH_WORDS)  # type: ignore[call-overload]
    xors = columns[:, 2:].astype("<i8").view(np.uint64)
    starts, counts = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
    return Buckets(length_ns, starts, counts, xors)
