"""The IDs of a store for reconciliation: of commits, and a view of everything at one moment.

The view is one transaction (REPEATABLE READ, read only) on a connection of its own: buckets, the
deltas that are not folded into them yet, and IDs are of one snapshot. The partitions of messages
are locked against being dropped meanwhile, so retention waits for its next round. A view that is
open for longer than `MAX_VIEW_S` is closed, even if it is in use.

Lattice sums of a range of time are made of

- the sums of whole days and hours that are known, from `buckets`,
- the messages of whole hours whose sums are not known, such as the newest,
- the messages of parts of hours at the ends of the range, and
- the messages that commits have added to known sums and that no bucket includes yet.

IDs come as arrays, two values per statement: the server joins the column of timestamps and that of
hashes into one value each, which takes a sixth of the time of a binary COPY.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg
from numpy.typing import NDArray

from reconcile.ids import SyncIds
from reconcile.lattice import LatticeSum, most_summed
from reconcile.summaries.buckets import TimeBuckets
from reconcile.summaries.summary import SummaryView
from reconcile.view import Loaded, NeedBuckets, NeedHashes, NeedIds, Needs, Spans
from store.db.arrays import bigint_column, hash_column
from store.db.buckets import LEVELS_NS, added, of_rows, sum_of_time, unfolded
from store.db.connection import Connection, fetch_row, fetch_rows, sever
from store.db.errors import find_failure
from store.db.feed import batch_parameters, is_served, newest
from store.db.messages import values_at
from store.db.pool import Database
from store.db.statements import SQL
from store.domain.hub import CommitRow, Place
from store.domain.partitioning import DAY_NS, HOUR_NS, MINUTE_NS, UNBOUNDED_HIGH
from store.domain.ports import StoreUnavailableError
from store.domain.view import Newest, Span
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES, MAX_TIMESTAMP_NS

_IDS_IN_SPANS: Final = SQL.messages.read_ids_in.format(content="", column="")
_CONTENTS_IN_SPANS: Final = SQL.messages.read_ids_in.format(
    content=f", {SQL.messages.joined_digests}", column=", n.content_digest"
)


async def ids_in(
    connection: Connection, spans: Spans, limit: int, *, contents: bool = False
) -> SyncIds:
    """Return the first IDs, at most ``limit``, in some spans; ascending, or with their digests."""
    parameters = {
        "low_ts": bigint_column(spans.lower.timestamps),
        "low_hash": hash_column(spans.lower.hashes),
        "high_ts": bigint_column(spans.upper.timestamps),
        "high_hash": hash_column(spans.upper.hashes),
        "limit": limit,
    }
    statement = _CONTENTS_IN_SPANS if contents else _IDS_IN_SPANS
    return await _fetch(connection, statement, parameters)


async def ids_with(connection: Connection, hashes: NDArray[np.uint8]) -> SyncIds:
    """Return the IDs that are stored with some hashes, ``(n, 32)``; in any order."""
    parameters = {"hashes": hash_column(hashes)}
    return await _fetch(connection, SQL.messages.read_ids_of_hashes, parameters)


async def ids_of(connection: Connection, commits: Sequence[CommitRow]) -> SyncIds:
    """Return the IDs that some commits have added and that are stored, with their digests."""
    return await _fetch(connection, SQL.messages.read_ids_of_batches, batch_parameters(commits))


async def _fetch(
    connection: Connection, statement: str, parameters: Mapping[str, object]
) -> SyncIds:
    timestamps, hashes, *contents = await fetch_row(connection, statement, parameters)
    if timestamps is None:
        return SyncIds.empty()
    digests = [np.frombuffer(each, np.uint8).reshape(-1, CONTENT_DIGEST_BYTES) for each in contents]
    return SyncIds(
        np.frombuffer(timestamps, ">i8").astype(np.int64),
        np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES),
        digests[0] if digests else None,
    )


class _TooManyError(Exception):
    """A sum that would expand too many messages, or summaries that contradict them."""


def _whole_hours(low_ns: int, high_ns: int) -> Span | None:
    first_ns, end_ns = -(-low_ns // HOUR_NS) * HOUR_NS, high_ns - high_ns % HOUR_NS
    return (first_ns, end_ns) if first_ns < end_ns else None


def _edges(spans: Sequence[Span], whole: Sequence[Span | None]) -> list[Span]:
    found: list[Span] = []
    for (low_ns, high_ns), inside in zip(spans, whole, strict=True):
        first_ns, end_ns = inside or (high_ns, high_ns)
        found += [(low_ns, first_ns), (end_ns, high_ns)]
    return [(low_ns, high_ns) for low_ns, high_ns in found if low_ns < high_ns]


MAX_VIEW_S: Final = 660.0
"""The time that a view may be open: ten minutes for a reconciliation, and one to end it."""

LOCK_TIMEOUT_S: Final = 5.0
"""The time that a view waits for an exclusive lock on the messages to be released."""

MAX_TOP_BUCKETS: Final = 131_072
"""Hours with messages in them, 15 years of them: about 6 MiB. Where there are more, the longest
buckets are days."""

_EXPIRED: Final = (
    "the view for this reconciliation was open for too long; reconcile again, over a shorter window"
)
_FINER_NS: Final = {HOUR_NS: (MINUTE_NS,), DAY_NS: (HOUR_NS, MINUTE_NS)}

_BEGIN: Final = f"""
begin isolation level repeatable read read only;
set local idle_in_transaction_session_timeout = '{MAX_VIEW_S:.0f}s';
set local lock_timeout = '{LOCK_TIMEOUT_S:.0f}s';
lock table storenode.messages in access share mode
"""


@dataclass(slots=True, eq=False)
class SnapshotView:
    """A `SummaryView` of everything that is held, with the connection that loads for it.

    Attributes:
        view: The summaries.
        place: The newest commit of what is held.
        horizon_ns: The store's horizon then.
        connection: Its transaction has the snapshot.
        minutes: The deltas that no bucket includes yet.
        folded: The position up to which buckets include them.
        deadline_s: When the connection is severed, by the loop.
    """

    view: SummaryView
    place: Place
    horizon_ns: int
    connection: Connection
    minutes: TimeBuckets
    folded: int
    deadline_s: float

    async def load(self, needs: Needs) -> Loaded:
        """Read what the view needs, with one statement.

        Raises:
            StoreUnavailableError: the database does not serve, or the view's time has passed.
        """
        with self._reading():
            match needs:
                case NeedBuckets():
                    return await self._buckets(needs)
                case NeedIds(spans, limit, contents):
                    return await ids_in(self.connection, spans, limit, contents=contents)
                case NeedHashes(hashes):
                    return await ids_with(self.connection, hashes)

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return what `store.domain.view.ColdView.lattices` does; raises as `load`."""
        lows, sums = [low for low, _ in spans], [LatticeSum() for _ in spans]
        try:
            with self._reading():
                async for start_ns, total in self._sums(spans):
                    sums[bisect_right(lows, start_ns) - 1] += total
        except _TooManyError:
            return None
        return sums

    async def _sums(self, spans: Sequence[Span]) -> AsyncGenerator[tuple[int, LatticeSum], None]:
        """Yield starts and sums of parts of ranges of time, which together are their sums."""
        inside = [_whole_hours(*span) for span in spans]
        whole = [each for each in inside if each is not None]
        unknown: dict[int, int] = {}
        given = {"lows": [low for low, _ in whole], "highs": [high for _, high in whole]}
        for statement in (SQL.buckets.read_known_days, SQL.buckets.read_hours):
            for start_ns, count, state in await fetch_rows(self.connection, statement, given):
                if state is None:
                    unknown[start_ns] = count
                else:
                    yield start_ns, LatticeSum.stored(count, state)
        hours = TimeBuckets.join(HOUR_NS, [self.minutes])
        new = dict(zip(hours.starts.tolist(), hours.counts.tolist(), strict=True))
        late = {
            hour: count
            for hour, count in new.items()
            if hour not in unknown and any(low <= hour < high for low, high in whole)
        }
        left = most_summed() - sum(late.values())
        if sum(unknown.values()) > left:
            raise _TooManyError
        # What is not in whole hours has no count that it could contradict.
        parts = [(low_ns, high_ns, None) for low_ns, high_ns in _edges(spans, inside)]
        counted = [(at, at + HOUR_NS, count + new.get(at, 0)) for at, count in unknown.items()]
        for low_ns, high_ns, expected in (*parts, *counted):
            total = await sum_of_time(self.connection, low_ns, high_ns, left)
            left -= total.count
            if left < 0 or expected not in (None, total.count):
                raise _TooManyError
            yield low_ns, total
        found = await added(self.connection, self.folded, UNBOUNDED_HIGH - 1, list(late))
        for hour, count in late.items():
            total = found.get(hour, LatticeSum())
            if total.count != count:
                raise _TooManyError
            yield hour, total

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view with their content digests; raises as `load`."""
        pairs = ids.pairs()
        with self._reading():
            found = await values_at(self.connection, "content_digest", pairs)
        joined = b"".join([found[digest] for _, digest in pairs])
        digests = np.frombuffer(joined, np.uint8).reshape(len(ids), CONTENT_DIGEST_BYTES)
        return SyncIds(ids.timestamps, ids.hashes, digests)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with translated_errors():
                yield
        except StoreUnavailableError:
            if asyncio.get_running_loop().time() >= self.deadline_s:
                raise StoreUnavailableError(_EXPIRED) from None
            raise

    async def _buckets(self, needs: NeedBuckets) -> TimeBuckets:
        # The last slice of a length ends behind the last time that there is.
        rest_ns = needs.parent_ns - 1
        last = np.minimum(needs.parents, MAX_TIMESTAMP_NS - rest_ns) + rest_ns
        parameters = {
            "lows": bigint_column(needs.parents),
            "highs": bigint_column(last),
            "level": LEVELS_NS.index(needs.length_ns),
        }
        folded = await _read_buckets(
            self.connection, needs.length_ns, SQL.buckets.read_inside, parameters
        )
        new = self.minutes.within(needs.parents, needs.parent_ns)
        return TimeBuckets.join(needs.length_ns, [folded, new])


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors of the database in this block.

    Raises:
        StoreUnavailableError: that is so.
    """
    try:
        yield
    except psycopg.Error as error:
        failure = find_failure(error)
        if failure is None:
            raise
        raise StoreUnavailableError(failure.sentence) from error


async def _open(connection: Connection, deadline_s: float) -> SnapshotView:
    await connection.execute(_BEGIN, prepare=False)
    ((position, horizon_ns),) = await fetch_rows(connection, SQL.stores.read_folded)
    minutes = await unfolded(connection, position)
    most = (MAX_TOP_BUCKETS + 1,)
    is_many = await fetch_row(connection, SQL.buckets.count_hours, most) == most
    length_ns = DAY_NS if is_many else HOUR_NS
    level = {"level": LEVELS_NS.index(length_ns)}
    folded = await _read_buckets(connection, length_ns, SQL.buckets.read_level, level)
    top = TimeBuckets.join(length_ns, [folded, minutes])
    view, place = SummaryView(top, _FINER_NS[length_ns]), await newest(connection)
    return SnapshotView(view, place, horizon_ns, connection, minutes, position, deadline_s)


async def _read_buckets(
    connection: Connection, length_ns: int, statement: str, parameters: Mapping[str, object]
) -> TimeBuckets:
    ((joined,),) = await fetch_rows(connection, statement, parameters)
    if joined is None:
        return TimeBuckets.empty(length_ns)
    return of_rows(length_ns, np.frombuffer(joined, ">i8"))


class DatabaseIds:
    """IDs in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def open_cold(self) -> AsyncIterator[SnapshotView]:
        """Open a view of what is stored now, in a transaction of its own, for `MAX_VIEW_S` at most.

        Raises:
            StoreUnavailableError: the database does not serve.
        """
        with translated_errors():
            connection = await self._database.connect()
        timer = asyncio.get_running_loop().call_later(MAX_VIEW_S, sever, connection)
        try:
            with translated_errors():
                view = await _open(connection, timer.when())
            yield view
        finally:
            timer.cancel()
            # Cancelled or not, with a statement under way or not: closing ends the transaction.
            await connection.close()

    async def newest(self, seen: Place) -> Newest:
        """Return the newest commit now, and whether the database still has one that was seen."""

        async def look(connection: Connection) -> Newest:
            ((_, horizon_ns),) = await fetch_rows(connection, SQL.stores.read_folded)
            served = await is_served(connection, seen)
            return Newest(await newest(connection), horizon_ns, served)

        return await self._database.read(look)

    async def ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """Return the IDs that some commits have added and that are held, in any order."""
        return await self._database.read(ids_of, commits, pool=self._database.bulk_pool)
