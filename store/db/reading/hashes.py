"""Look-ups by hash: through the hash table to timestamps, then to the messages.

The table of hashes is read from its index alone, which holds the first half of a hash and the
timestamp; the message there has the other half. Recent messages take one statement. Older ones take
a second, because it is then pruned once to the partitions in which the timestamps lie, and not for
each message. Small look-ups that arrive while others are under way share the next statement.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from store.db.arrays import UuidArray, bigints, fixed_bytes, uuids
from store.db.pool import Connection, Database
from store.db.reading.pages import NOTHING, Joined, Shape, joined, joined_statement
from store.db.reading.select import (
    FRAME,
    MESSAGE_AT,
    PRESENCE,
    MessageExpression,
    filter_clause,
    filter_parameters,
)
from store.db.schema.names import HASH_KEY_BYTES
from store.domain.partitioning import DAY_NS
from store.domain.ports import PageRequest, QueryPage, SyncId, TopicFilter
from storenode.message.limits import HASH_BYTES

MAX_SHARED_HASHES: Final = 64
"""Hashes of one shared look-up: with messages of the largest size, about 10 MB."""

MAX_SMALL_HASHES: Final = 8
MAX_DIRECT_HASHES: Final = 128
"""Up to so many messages are read without a limit on their bytes, about 20 MB at most, and cut to
a page by the node; a statement that cuts costs a quarter more."""

FEWEST_HALVED: Final = 64
"""From so many hashes on, a look-up that is alone is done in two halves side by side."""

_FLIGHTS: Final = 2

QUERY_TAG: Final = b"\xa2\x01"
"""Field 20, ``StoreQueryResponse.messages``."""

_LOCATE: Final = "select ts, key from storenode.hashes where key = any(%b::uuid[])"

_ROWS: Final = """
select m.ts, m.hash, m.head, m.payload, m.tail
from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) as k(ts, hash)
cross join {message} where true{topics}
order by m.ts {way}, m.hash {way} limit %(limit)b::bigint
"""

# After every hash that begins with the key.
_BEYOND: Final = rf"'\x{'ff' * (HASH_BYTES - HASH_KEY_BYTES + 1)}'::bytea"

# All messages in one value, which comes in one piece: the timestamp of each, then its frame.
_JOINED: Final = "string_agg(int8send(m.ts) || {frame}, ''::bytea)"
_TIMESTAMP: Final = struct.Struct(">q")
_PLACE: Final = struct.Struct(f">q{HASH_KEY_BYTES}s")

_RECENT: Final = f"""
select {_JOINED},
       string_agg(int8send(k.ts) || uuid_send(k.key), ''::bytea)
           filter (where k.ts < %(recent)b::bigint)
from storenode.hashes k left join lateral (
    select n.* from storenode.messages n
    where n.ts = k.ts and n.ts >= %(recent)b::bigint
      and n.hash >= uuid_send(k.key) and n.hash < uuid_send(k.key) || {_BEYOND} offset 0
) m on true where k.key = any(%(keys)b::uuid[])
"""

_AT_POSITIONS: Final = f"""
select {_JOINED} from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) as k(ts, hash)
cross join {{message}} where true{{topics}}
"""


_CONTENT_DIGESTS: Final = f"""
select k.hash, m.content_digest from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) as k(ts, hash)
cross join {MESSAGE_AT}
"""


async def content_digests_at(
    connection: Connection, positions: Sequence[SyncId]
) -> dict[bytes, bytes]:
    """Read the content digests of messages by their positions, of those that are stored."""
    parameters = position_parameters(positions)
    cursor = await connection.execute(_CONTENT_DIGESTS, parameters, binary=True)
    return dict(await cursor.fetchall())  # type: ignore[arg-type]


async def locate(connection: Connection, hashes: Sequence[bytes]) -> list[SyncId]:
    """Where hashes are, those of pruned messages included, in no order.

    What is told apart by the second half of its hash only is found as well, and is not there.
    """
    cursor = await connection.execute(_LOCATE, (_keys(hashes),), binary=True)
    rows: list[tuple[int, bytes]] = await cursor.fetchall()  # type: ignore[assignment]
    return _positions(rows, hashes)


def _keys(hashes: Iterable[bytes]) -> UuidArray:
    return uuids([digest[:HASH_KEY_BYTES] for digest in hashes])


def _positions(rows: Sequence[tuple[int, bytes]], hashes: Sequence[bytes]) -> list[SyncId]:
    """Complete the keys in rows of (timestamp, key)."""
    by_key: dict[bytes, list[bytes]] = {}
    for digest in hashes:
        by_key.setdefault(digest[:HASH_KEY_BYTES], []).append(digest)
    return [(timestamp, digest) for timestamp, key in rows for digest in by_key[key]]


def recent_ns() -> int:
    """From when on messages count as recent: the start of yesterday, which is a few partitions."""
    now_ns = time.time_ns()
    return now_ns - now_ns % DAY_NS - DAY_NS


def position_parameters(positions: Sequence[SyncId]) -> dict[str, object]:
    """Parameters that name messages by position, and the span of time in which they lie."""
    timestamps = [timestamp for timestamp, _ in positions]
    return {
        "ts": bigints(timestamps),
        "hash": fixed_bytes([digest for _, digest in positions], HASH_BYTES),
        "low": min(timestamps),
        "high": max(timestamps),
    }


@cache
def _recent_statement(*, include_data: bool) -> str:
    return _RECENT.format(frame=(FRAME if include_data else PRESENCE).expression)


@cache
def _statement_at(*, include_data: bool, filtered: bool) -> str:
    topics = filter_clause(filtered=filtered)
    frame = (FRAME if include_data else PRESENCE).expression
    return _AT_POSITIONS.format(frame=frame, message=MESSAGE_AT, topics=topics)


@cache
def _page_statement(entry: MessageExpression, *, filtered: bool, forward: bool) -> str:
    way = "asc" if forward else "desc"
    topics = filter_clause(filtered=filtered)
    rows = _ROWS.format(message=MESSAGE_AT, way=way, topics=topics)
    return joined_statement(entry, rows, forward=forward)


async def page_by_hashes(connection: Connection, request: PageRequest, shape: Shape) -> Joined:
    """Read one page of the messages with given hashes."""
    low_ns, high_ns = request.time_start_ns, request.time_end_ns
    positions = [
        at for at in await locate(connection, request.hashes or ()) if low_ns <= at[0] < high_ns
    ]
    if request.after is not None:
        after = request.after
        positions = [at for at in positions if (at > after if request.forward else at < after)]
    if not positions:
        return NOTHING
    wanted = request.filter
    statement = _page_statement(
        shape.entry, filtered=not wanted.everything, forward=request.forward
    )
    parameters = position_parameters(positions) | filter_parameters(wanted)
    parameters |= {"limit": shape.read, "show": shape.show, "max_bytes": shape.max_bytes}
    cursor = await connection.execute(statement, parameters, binary=True)
    return joined(await cursor.fetchone())


@dataclass(slots=True)
class _Waiting:
    request: PageRequest
    answer: asyncio.Future[QueryPage]


_Row = tuple[int, bytes, bytes]
"""Timestamp, hash, and the entry without its tag."""


class HashLookups:
    """Look-ups of up to `MAX_DIRECT_HASHES` hashes; small ones are grouped."""

    def __init__(self, database: Database, page_bytes: int) -> None:
        """Entries of one page have ``page_bytes`` at most."""
        self._database = database
        self._page_bytes = page_bytes
        self._queues: dict[bool, deque[_Waiting]] = {True: deque(), False: deque()}
        self._latest = False
        self._flights = 0
        self._reading = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def takes(request: PageRequest) -> bool:
        """True for look-ups whose messages may be read without a limit on their bytes."""
        return request.hashes is not None and len(request.hashes) <= MAX_DIRECT_HASHES

    async def query(self, request: PageRequest) -> QueryPage:
        """Answer a look-up that `takes` accepts."""
        wanted, hashes = request.filter, request.hashes or ()
        if len(hashes) > MAX_SMALL_HASHES or not wanted.everything:
            rows = await self._read(hashes, wanted, include_data=request.include_data)
            return _pick(request, rows, self._page_bytes)
        answer: asyncio.Future[QueryPage] = asyncio.get_running_loop().create_future()
        self._queues[request.include_data].append(_Waiting(request, answer))
        self._launch()
        return await answer

    def _launch(self) -> None:
        # In turn, so that many callers of one kind do not keep the other waiting.
        for include_data in (not self._latest, self._latest):
            if self._queues[include_data] and self._flights < _FLIGHTS:
                self._flights += 1
                self._latest = include_data
                task = asyncio.create_task(self._fly(include_data))
                self._tasks.add(task)
                task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._flights -= 1
        self._launch()

    async def _fly(self, include_data: bool) -> None:
        group = self._take(self._queues[include_data])
        wanted = {digest for waiting in group for digest in waiting.request.hashes or ()}
        try:
            rows = await self._read(list(wanted), TopicFilter(), include_data=include_data)
        except BaseException as error:
            for waiting in group:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for waiting in group:
            if not waiting.answer.done():
                waiting.answer.set_result(_pick(waiting.request, rows, self._page_bytes))

    async def _read(
        self, hashes: Sequence[bytes], wanted: TopicFilter, *, include_data: bool
    ) -> dict[bytes, _Row]:
        async def read(connection: Connection, some: Sequence[bytes]) -> list[_Row]:
            if wanted.everything:
                return await _read_recent(connection, some, include_data=include_data)
            positions = await locate(connection, some)
            return await _read_at(connection, positions, wanted, include_data=include_data)

        # A look-up that has the database to itself keeps two of its processors busy.
        alone = not self._reading and len(hashes) >= FEWEST_HALVED
        middle = len(hashes) // 2
        parts = (hashes[:middle], hashes[middle:]) if alone else (hashes,)
        self._reading += 1
        try:
            works = [partial(read, some=part) for part in parts]
            found = await _all(map(self._database.read, works))
        finally:
            self._reading -= 1
        return {row[1]: row for rows in found for row in rows}

    @staticmethod
    def _take(queue: deque[_Waiting]) -> list[_Waiting]:
        group: list[_Waiting] = []
        hashes = 0
        while queue:
            hashes += len(queue[0].request.hashes or ())
            if group and hashes > MAX_SHARED_HASHES:
                break
            waiting = queue.popleft()
            if not waiting.answer.done():
                group.append(waiting)
        return group


async def _all(works: Iterable[Coroutine[None, None, list[_Row]]]) -> list[list[_Row]]:
    """Await all, side by side; none goes on when another has failed."""
    first, *others = works
    if not others:
        return [await first]
    results = await asyncio.gather(first, *others, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


async def _read_recent(
    connection: Connection, hashes: Sequence[bytes], *, include_data: bool
) -> list[_Row]:
    """Read messages of an unrestricted caller, the recent ones in one statement."""
    parameters = {"keys": _keys(hashes), "recent": recent_ns()}
    statement = _recent_statement(include_data=include_data)
    cursor = await connection.execute(statement, parameters, binary=True)
    joined, older = await cursor.fetchone() or (None, None)
    rows = _split(joined or b"")  # type: ignore[arg-type]
    if older:
        positions = _positions(list(_PLACE.iter_unpack(older)), hashes)  # type: ignore[arg-type]
        rows += await _read_at(connection, positions, TopicFilter(), include_data=include_data)
    return rows


async def _read_at(
    connection: Connection, positions: Sequence[SyncId], wanted: TopicFilter, *, include_data: bool
) -> list[_Row]:
    if not positions:
        return []
    statement = _statement_at(include_data=include_data, filtered=not wanted.everything)
    parameters = position_parameters(positions) | filter_parameters(wanted)
    cursor = await connection.execute(statement, parameters, binary=True)
    (joined,) = await cursor.fetchone() or (None,)
    return _split(joined or b"")  # type: ignore[arg-type]


def _split(joined: bytes) -> list[_Row]:
    """Take messages that came as `_JOINED` apart; a frame begins as `messages.record` says."""
    rows: list[_Row] = []
    at, unpack = 0, _TIMESTAMP.unpack_from
    while at < len(joined):
        (timestamp,) = unpack(joined, at)
        begin = at + _TIMESTAMP.size + 1
        size, start, shift = joined[begin], begin + 1, 7
        while size >> shift:  # the last group says that another one follows
            size += joined[start] - 1 << shift
            start, shift = start + 1, shift + 7
        at = start + size
        rows.append((timestamp, joined[start + 2 : start + 2 + HASH_BYTES], joined[begin:at]))
    return rows


def _pick(request: PageRequest, found: Mapping[bytes, _Row], page_bytes: int) -> QueryPage:
    """Return the page of one look-up out of what a statement found, by hash."""
    low_ns, high_ns = request.time_start_ns, request.time_end_ns
    rows = [found[digest] for digest in request.hashes or () if digest in found]
    held = sorted([row for row in rows if low_ns <= row[0] < high_ns])
    after = request.after
    if after is not None:
        held = [row for row in held if (row[:2] > after if request.forward else row[:2] < after)]
    if not request.forward:
        held.reverse()
    shown: list[bytes] = []
    left = page_bytes
    for _, _, entry in held[: request.limit]:
        left -= len(QUERY_TAG) + len(entry)
        if left < 0 and shown:
            break
        shown.append(entry)
    last = held[len(shown) - 1][1] if len(shown) < len(held) else None
    if not request.forward:
        shown.reverse()
    entries = QUERY_TAG + QUERY_TAG.join(shown) if shown else b""
    return QueryPage(entries, len(shown), last)
