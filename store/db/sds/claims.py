"""The reads of look-ups by SDS message ID and of causal walks, from the table ``sds``.

Everything read here is bounded, whatever was published: claimants per key, parents per claim
(hints that are no message hashes are left out, they may be long), rows per statement. Columns
come as ``bytea``, which the driver hands over without a call per value.

Rows of pruned messages are ignored until they are deleted: rows below the horizon are compared with
the messages, and so are all rows when a filter applies. Where proven claimants are preferred, rows
say which are (``proof``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from store.db.arrays import bigints, fixed_bytes, uuids
from store.db.pool import Connection, Database
from store.db.reading.messages import locate, payloads_at, select_topics, topics_of
from store.db.statements import SQL
from store.domain.causal import FEWEST_AHEAD, MOST_IN_WINDOW
from store.domain.claims import (
    Child,
    Claim,
    ClaimAnswer,
    ClaimQuery,
    Hinted,
    HintQuery,
    rank,
)
from store.domain.ports import HistoryEntry, SyncId, TopicFilter
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS
from storenode.sds.codec import channel_key, decode

MAX_SEEN_CLAIMANTS: Final = 4_096
"""Claimants of one key that are looked through for those that a filter lets through."""

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Parents in one answer, about; keys that are left over are asked for again."""

_KEYS_AT_ONCE: Final = 1_024
_FURTHER_CLAIMANTS: Final = 1_024
"""Rows that a statement may find beyond one for each key; with more it is split."""

_LARGE_WINDOW: Final = 512
"""Claims of a window behind which the next one is read while this one is used."""

_PAYLOADS: Final = 48
"""Payloads of one statement: about 7 MiB if all messages have the largest size."""

_PROOF: Final = {True: ", s.proof", False: ", false"}


_Windowed = tuple[Sequence[Claim], SyncId]
"""The complete sets of the keys claimed in a window, and the position that it reached."""

ParentPlace = tuple[Child, int]
"""A claim, and the slot of one of its parents, counted from 0."""

Parents = dict[tuple[bytes, int], HistoryEntry]
"""(hash of the child, slot) -> parent."""


class ClaimReader:
    """The reads of one call; messages that are pruned or outside its filter do not exist for it."""

    def __init__(
        self,
        database: Database,
        channel_id: bytes,
        entries: Sequence[HistoryEntry],
        *,
        claimants: int,
        parents: bool,
        prefer_proven: bool,
    ) -> None:
        """Prepare the reads of a request with these ``entries``; ``parents``: with their parents.

        Without ``prefer_proven`` no claim says that it is proven. Of one key, one claimant more
        than ``claimants`` is read: it shows that there are more.
        """
        self._database = database
        self._channel = channel_id
        self._entries = entries
        self._crowd = claimants + 1
        self._columns = SQL.sds.with_parents if parents else SQL.sds.without_parents
        self._columns += _PROOF[prefer_proven]
        self._prefers = prefer_proven
        self._filter = TopicFilter()
        self._horizon_ns = 0
        self._reached: SyncId = (MAX_TIMESTAMP_NS, b"")
        self._next_window: asyncio.Task[_Windowed] | None = None

    async def prepare(self, wanted: TopicFilter) -> None:
        """Set the filter and read the horizon; before the first `answer`."""
        self._filter = wanted
        rows = await self._database.rows(SQL.stores.read_horizon)
        self._horizon_ns = rows[0][0] if rows else 0

    async def answer(self, query: ClaimQuery) -> ClaimAnswer:
        """Return the answer to one read of a look-up or walk."""
        window = await self._advance(query) if query.window else ()
        claimed = {claim[0] for claim in window}
        hits = [key for key in query.keys if key in claimed]
        unread = [key for key in query.keys if key not in claimed]
        ahead = min(query.ahead, FEWEST_AHEAD) if hits else query.ahead
        if not unread and not query.hints:
            return ClaimAnswer(hits, window, {})

        async def look(connection: Connection) -> ClaimAnswer:
            keys = await self._reach(connection, unread, ahead) if unread and ahead else unread
            asked, claims = await self._read_claims(connection, keys)
            hinted = await self._hinted(connection, query.hints) if query.hints else {}
            if window:
                again = set(asked)
                claims += [claim for claim in window if claim[0] not in again]
            return ClaimAnswer([*asked, *hits], claims, hinted)

        return await self._database.read(look, pool=self._database.bulk_pool)

    async def aclose(self) -> None:
        """Stop reading the next window."""
        if self._next_window is not None:
            self._next_window.cancel()
            await asyncio.gather(self._next_window, return_exceptions=True)
            self._next_window = None

    async def _advance(self, query: ClaimQuery) -> Sequence[Claim]:
        """Return the claims of the next window, and begin to read the one that follows."""
        if self._next_window is None:
            self._next_window = self._begin(min(self._reached, query.before), query.window)
        claims, self._reached = await self._next_window
        self._next_window = None
        if query.window >= _LARGE_WINDOW and self._reached[0] > 0:
            size = min(2 * query.window, MOST_IN_WINDOW)
            self._next_window = self._begin(self._reached, size)
        return claims

    def _begin(self, before: SyncId, size: int) -> asyncio.Task[_Windowed]:
        reading = self._database.read(self._window, before, size, pool=self._database.bulk_pool)
        return asyncio.ensure_future(reading)

    async def _window(self, connection: Connection, before: SyncId, size: int) -> _Windowed:
        parameters = {
            "channel_key": UUID(bytes=channel_key(self._channel)),
            "ts": before[0],
            "hash": before[1],
            "limit": size,
        }
        rows = await self._rows(connection, SQL.sds.read_window, parameters)
        reached = rows[-1][1:3] if len(rows) == size else (0, b"")
        if not rows:
            return [], reached
        again = await self._claimed_again(connection, {row[0] for row in rows})
        claims = await self._filter_stored(connection, [row for row in rows if row[0] not in again])
        if again:
            claims += (await self._read_claims(connection, sorted(again)))[1]
        return claims, reached

    async def _claimed_again(self, connection: Connection, keys: set[bytes]) -> set[bytes]:
        """Return the keys with several claimants; all keys, if there are very many of these."""
        limit = len(keys) + _FURTHER_CLAIMANTS
        # The index is searched in the order of keys; sorting them costs less here than there.
        parameters = {"keys": uuids(sorted(keys)), "limit": limit}
        cursor = await connection.execute(SQL.sds.find_crowded, parameters, binary=True)
        counts: list[tuple[bytes, int]] = await cursor.fetchall()  # type: ignore[assignment]
        rows = len(keys) + sum(count - 1 for _, count in counts)
        return keys if rows >= limit else {key for key, _ in counts}

    async def parents_of(self, places: Sequence[ParentPlace]) -> Parents:
        """Return parents as their children claim them, without those of deleted rows."""
        return await self._database.read(_parents, places, pool=self._database.bulk_pool)

    async def _rows(
        self, connection: Connection, statement: str, parameters: dict[str, object]
    ) -> list[Claim]:
        cursor = await connection.execute(
            statement.format(columns=self._columns),
            parameters | {"channel": self._channel},
            binary=True,
        )
        return await cursor.fetchall()  # type: ignore[return-value]

    async def _read_claims(
        self, connection: Connection, keys: Sequence[bytes]
    ) -> tuple[Sequence[bytes], list[Claim]]:
        """Return as many keys as fit into an answer, at least some, and their claimants."""
        claims: list[Claim] = []
        size = done = 0
        while done < len(keys) and size < MAX_ANSWER_BYTES:
            more = await self._claims(connection, keys[done : done + _KEYS_AT_ONCE])
            claims += more
            size += sum(len(claim[4]) + len(claim[5]) for claim in more)
            done += _KEYS_AT_ONCE
        return keys[:done], claims

    async def _claims(self, connection: Connection, keys: Sequence[bytes]) -> list[Claim]:
        """Return the first claimants of each key, a crowd at most."""
        limit = len(keys) + _FURTHER_CLAIMANTS
        rows = await self._rows(
            connection, SQL.sds.read_claims, {"keys": uuids(sorted(keys)), "limit": limit}
        )
        if len(rows) < limit:
            return self._first(await self._filter_stored(connection, rows))
        if len(keys) == 1:
            return await self._crowded(connection, keys[0])
        middle = len(keys) // 2
        first = await self._claims(connection, keys[:middle])
        return first + await self._claims(connection, keys[middle:])

    async def _crowded(self, connection: Connection, key: bytes) -> list[Claim]:
        given = {"key": UUID(bytes=key), "channel": self._channel, "limit": MAX_SEEN_CLAIMANTS}
        chosen: list[SyncId] = []
        if self._prefers:
            cursor = await connection.execute(SQL.sds.read_proven, given, binary=True)
            rows: list[SyncId] = await cursor.fetchall()  # type: ignore[assignment]
            chosen = await self._let_through(connection, sorted(rows))
        if len(chosen) < self._crowd:
            cursor = await connection.execute(SQL.sds.read_crowd, given, binary=True)
            crowd: list[SyncId] = await cursor.fetchall()  # type: ignore[assignment]
            chosen = [*dict.fromkeys((*chosen, *await self._let_through(connection, crowd)))]
        return await self._at(connection, [(key, *at) for at in chosen[: self._crowd]])

    async def _let_through(
        self, connection: Connection, positions: Sequence[SyncId]
    ) -> list[SyncId]:
        seen = await self._allowed_of(connection, positions)
        return [position for position in positions if position[1] in seen]

    def _first(self, claims: list[Claim]) -> list[Claim]:
        """Return the first claims of each key, a crowd at most."""
        counts = Counter(claim[0] for claim in claims)
        if len(counts) == len(claims):
            return claims
        places: Counter[bytes] = Counter()
        first: list[Claim] = []
        for claim in sorted(claims, key=rank):
            places[claim[0]] += 1
            if places[claim[0]] <= self._crowd:
                first.append(claim)
        return first

    async def _at(self, connection: Connection, claims: Sequence[Child]) -> list[Claim]:
        if not claims:
            return []
        return await self._rows(connection, SQL.sds.read_claims_at, _claim_parameters(claims))

    async def _reach(
        self, connection: Connection, keys: Sequence[bytes], ahead: int
    ) -> list[bytes]:
        parameters = {"keys": uuids(keys), "limit": len(keys) + ahead}
        statement = SQL.sds.reach_parents.format(crowd=self._crowd)
        cursor = await connection.execute(statement, parameters, binary=True)
        rows: list[tuple[bytes]] = await cursor.fetchall()  # type: ignore[assignment]
        return list(dict.fromkeys([*keys, *(key for (key,) in rows)]))

    async def _filter_stored(self, connection: Connection, claims: list[Claim]) -> list[Claim]:
        """Return the claims whose messages are stored and inside the filter."""
        horizon_ns = self._horizon_ns if self._filter.everything else None
        doubtful = [
            (claim[1], claim[2]) for claim in claims if horizon_ns is None or claim[1] < horizon_ns
        ]
        if not doubtful:
            return claims
        seen = await self._allowed_of(connection, doubtful)
        return [
            claim
            for claim in claims
            if claim[2] in seen or (horizon_ns is not None and claim[1] >= horizon_ns)
        ]

    async def _allowed_of(self, connection: Connection, positions: Sequence[SyncId]) -> set[bytes]:
        """Return the hashes of the messages that are stored and inside the filter."""
        topics = await topics_of(connection, positions)
        return await select_topics(connection, topics, self._filter)

    async def _hinted(
        self, connection: Connection, queries: Sequence[HintQuery]
    ) -> dict[tuple[bytes, bytes], Hinted | None]:
        located = await locate(connection, list({query.hash for query in queries}))
        seen = await self._allowed_of(connection, located)
        times = {digest: timestamp for timestamp, digest in located if digest in seen}
        stored = [query for query in queries if query.hash in times]
        named = await self._at(
            connection, [(query.key, times[query.hash], query.hash) for query in stored]
        )
        found: dict[tuple[bytes, bytes], Hinted | None] = {
            (query.key, query.hash): None for query in queries
        }
        found.update({(claim[0], claim[2]): Hinted(claim, readable=True) for claim in named})
        doubtful = [query for query in stored if found[query.key, query.hash] is None]
        opaque = await _opaque(connection, {query.hash: times[query.hash] for query in doubtful})
        ids = await self._ids(connection, [query for query in doubtful if query.hash in opaque])
        for (key, digest), message_id in ids.items():
            claim = (key, times[digest], digest, message_id, b"", b"", False)
            found[key, digest] = Hinted(claim, readable=False)
        return found

    async def _ids(
        self, connection: Connection, queries: Sequence[HintQuery]
    ) -> dict[tuple[bytes, bytes], bytes]:
        """Return the ID under which each message is referenced."""
        ids = {
            (query.key, query.hash): self._entries[query.slot].message_id
            for query in queries
            if query.child is None
        }
        places = {
            (query.key, query.hash): (query.child, query.slot)
            for query in queries
            if query.child is not None
        }
        parents = await _parents(connection, list(places.values()))
        for reference, (child, slot) in places.items():
            if (child[2], slot) in parents:
                ids[reference] = parents[child[2], slot].message_id
        return ids


async def _parents(connection: Connection, places: Sequence[ParentPlace]) -> Parents:
    if not places:
        return {}
    parameters = _claim_parameters([child for child, _ in places])
    parameters["slots"] = bigints([slot + 1 for _, slot in places])
    cursor = await connection.execute(SQL.sds.read_parents, parameters, binary=True)
    rows: list[tuple[bytes, int, bytes, bytes | None]]
    rows = await cursor.fetchall()  # type: ignore[assignment]
    return {
        (digest, slot - 1): HistoryEntry(message_id, hint)
        for digest, slot, message_id, hint in rows
    }


async def _opaque(connection: Connection, times: dict[bytes, int]) -> set[bytes]:
    """Return the hashes whose payloads cannot be read as SDS messages."""
    positions = [(timestamp, digest) for digest, timestamp in times.items()]
    opaque: set[bytes] = set()
    for start in range(0, len(positions), _PAYLOADS):
        payloads = await payloads_at(connection, positions[start : start + _PAYLOADS])
        opaque |= {digest for digest, payload in payloads.items() if decode(payload) is None}
    return opaque


def _claim_parameters(claims: Sequence[Child]) -> dict[str, object]:
    timestamps = [timestamp for _, timestamp, _ in claims]
    return {
        "keys": uuids([key for key, _, _ in claims]),
        "ts": bigints(timestamps),
        "hash": fixed_bytes([digest for _, _, digest in claims], HASH_BYTES),
        "low": min(timestamps),
        "high": max(timestamps),
    }
