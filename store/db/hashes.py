"""Look-ups by hash: through the hash table to timestamps, then to the messages.

Few hashes take one statement. Many take two, because the second is then pruned once to the
partitions in which the timestamps lie, and not for each message. Small look-ups that arrive while
others are under way share the next statement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from message.limits import HASH_BYTES
from store.db.arrays import bigints, fixed_bytes
from store.db.pages import NOTHING, Joined, Shape, joined, joined_statement
from store.db.pool import Connection, Database
from store.db.select import (
    MESSAGE_AT,
    QUERY_FRAME,
    QUERY_PRESENCE,
    Entry,
    rights_clause,
    rights_parameters,
)
from store.domain.ports import PageRequest, QueryPage, SyncId, TopicRights

MAX_SHARED_HASHES: Final = 64
"""Hashes of one shared look-up: with messages of the largest size, about 10 MB."""

MAX_SMALL_HASHES: Final = 8
MAX_DIRECT_HASHES: Final = 128
"""Up to so many messages are read without a limit on their bytes, about 20 MB at most, and cut to
a page by the node; a statement that cuts costs a quarter more."""

_ONE_STATEMENT_HASHES: Final = 16
_FLIGHTS: Final = 2

_LOCATE: Final = "select ts, hash from storenode.hashes where hash = any(%b::bytea[])"

_ROWS: Final = """
select m.ts, m.hash, m.head, m.payload, m.tail
from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) as k(ts, hash)
cross join {message} where true{rights}
order by m.ts {way}, m.hash {way} limit %(limit)b::bigint
"""

_FEW_ENTRIES: Final = """
select m.ts, m.hash, {entry}
from storenode.hashes k cross join lateral (
    select n.* from storenode.messages n where n.ts = k.ts and n.hash = k.hash offset 0
) m where k.hash = any(%(hashes)b::bytea[]){rights}
"""

_ENTRIES: Final = """
select m.ts, m.hash, {entry}
from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) as k(ts, hash)
cross join {message} where true{rights}
"""


async def locate(connection: Connection, hashes: Sequence[bytes]) -> list[SyncId]:
    """Positions of hashes that are known, those of pruned messages included, in no order."""
    cursor = await connection.execute(_LOCATE, (fixed_bytes(hashes, HASH_BYTES),), binary=True)
    return await cursor.fetchall()  # type: ignore[return-value]


def position_parameters(positions: Sequence[SyncId]) -> dict[str, object]:
    """Parameters that name messages by position, and the span of time in which they lie."""
    timestamps = [timestamp for timestamp, _ in positions]
    return {
        "ts": bigints(timestamps),
        "hash": fixed_bytes([digest for _, digest in positions], HASH_BYTES),
        "low": min(timestamps),
        "high": max(timestamps),
    }


_SOME_RIGHTS: Final = TopicRights(("",))


@cache
def _entries_statement(entry: Entry, *, few: bool, restricted: bool) -> str:
    rights = rights_clause(_SOME_RIGHTS if restricted else TopicRights())
    template = _FEW_ENTRIES if few else _ENTRIES
    return template.format(entry=entry.expression, message=MESSAGE_AT, rights=rights)


@cache
def _page_statement(entry: Entry, *, restricted: bool, forward: bool) -> str:
    way = "asc" if forward else "desc"
    rights = rights_clause(_SOME_RIGHTS if restricted else TopicRights())
    rows = _ROWS.format(message=MESSAGE_AT, way=way, rights=rights)
    return joined_statement(entry, rows, forward=forward)


async def page_by_hashes(connection: Connection, request: PageRequest, shape: Shape) -> Joined:
    """Read one page of the messages with given hashes."""
    positions = await locate(connection, request.hashes or ())
    if request.after is not None:
        after = request.after
        positions = [at for at in positions if (at > after if request.forward else at < after)]
    if not positions:
        return NOTHING
    rights = request.filter.rights
    statement = _page_statement(
        shape.entry, restricted=not rights.unrestricted, forward=request.forward
    )
    parameters = position_parameters(positions) | rights_parameters(rights)
    parameters |= {"limit": shape.read, "show": shape.show, "max_bytes": shape.max_bytes}
    cursor = await connection.execute(statement, parameters, binary=True)
    return joined(await cursor.fetchone())


@dataclass(slots=True)
class _Waiting:
    request: PageRequest
    answer: asyncio.Future[QueryPage]


_Found = dict[bytes, tuple[int, bytes]]
"""Hash -> (timestamp, entry)."""


class HashLookups:
    """Look-ups of up to `MAX_DIRECT_HASHES` hashes; small ones are grouped."""

    def __init__(self, database: Database, page_bytes: int) -> None:
        """Entries of one page have ``page_bytes`` at most."""
        self._database = database
        self._page_bytes = page_bytes
        self._queues: dict[bool, deque[_Waiting]] = {True: deque(), False: deque()}
        self._latest = False
        self._flights = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def takes(request: PageRequest) -> bool:
        """True for look-ups whose messages may be read without a limit on their bytes."""
        return request.hashes is not None and len(request.hashes) <= MAX_DIRECT_HASHES

    async def query(self, request: PageRequest) -> QueryPage:
        """Answer a look-up that `takes` accepts."""
        rights = request.filter.rights
        if len(request.hashes or ()) > MAX_SMALL_HASHES or not rights.unrestricted:
            found = await self._read(request.hashes or (), rights, request.include_data)
            return _pick(request, found, self._page_bytes)
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
            found = await self._read(list(wanted), TopicRights(), include_data)
        except BaseException as error:
            for waiting in group:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for waiting in group:
            if not waiting.answer.done():
                waiting.answer.set_result(_pick(waiting.request, found, self._page_bytes))

    async def _read(
        self, hashes: Sequence[bytes], rights: TopicRights, include_data: bool
    ) -> _Found:
        entry = QUERY_FRAME if include_data else QUERY_PRESENCE

        async def read(connection: Connection) -> _Found:
            return await _fetch(connection, entry, hashes, rights)

        return await self._database.read(read)

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


async def _fetch(
    connection: Connection, entry: Entry, hashes: Sequence[bytes], rights: TopicRights
) -> _Found:
    few = len(hashes) <= _ONE_STATEMENT_HASHES
    if few:
        parameters: dict[str, object] = {"hashes": fixed_bytes(hashes, HASH_BYTES)}
    else:
        positions = await locate(connection, hashes)
        if not positions:
            return {}
        parameters = position_parameters(positions)
    statement = _entries_statement(entry, few=few, restricted=not rights.unrestricted)
    cursor = await connection.execute(
        statement, parameters | rights_parameters(rights), binary=True
    )
    rows: list[tuple[int, bytes, bytes]] = await cursor.fetchall()  # type: ignore[assignment]
    return {digest: (timestamp, data) for timestamp, digest, data in rows}


def _pick(request: PageRequest, found: _Found, page_bytes: int) -> QueryPage:
    """The page of one look-up out of what a statement found."""
    way = 1 if request.forward else -1
    held = sorted((found[digest][0], digest) for digest in request.hashes or () if digest in found)
    after = request.after
    if after is not None:
        held = [at for at in held if (at > after if request.forward else at < after)]
    entries: list[bytes] = []
    left = page_bytes
    for _, digest in held[::way][: request.limit]:
        entry = found[digest][1]
        left -= len(entry)
        if left < 0 and entries:
            break
        entries.append(entry)
    more = len(entries) < len(held)
    last = held[::way][len(entries) - 1][1] if more else None
    return QueryPage(b"".join(entries[::way]), len(entries), last)
