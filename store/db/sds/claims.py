"""The reads of look-ups by SDS message ID and of causal walks, from the table ``sds``.

Everything read here is bounded, whatever was published: claimants per key, parents per claim
(hints that are no message hashes are left out, they may be long), rows per statement. Columns
come as ``bytea``, which the driver hands over without a call per value.

Rows of pruned messages are ignored until they are deleted: rows below the horizon are compared with
the messages, and so are all rows when a filter applies. Where proven claimants are preferred, rows
say which are (``proof``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.db.arrays import bigints, fixed_bytes, uuids
from store.db.connection import Connection
from store.db.pool import Database
from store.db.reading.messages import locate, topic_conditions
from store.db.statements import SQL
from store.domain.claims import (
    Child,
    Claim,
    ClaimAnswer,
    ClaimQuery,
    HintAnswers,
    Hinted,
    HintQuery,
    rank,
)
from store.domain.ports import HistoryEntry, TopicFilter
from storenode.message.limits import HASH_BYTES
from storenode.sds.codec import decode

MAX_SEEN_CLAIMANTS: Final = 4_096
"""Claimants of one key that are looked through for those that a filter lets through."""

MAX_ANSWER_KEYS: Final = 4_096
"""Keys of one answer, those that are reached included."""

FURTHER_CLAIMANTS: Final = 1_024
"""Claims of one answer beyond one for each key, each with up to 14 KB of parents; what is left
over is asked for again."""

_MAX_CROWDED: Final = 256
"""Keys of one statement that looks through many claimants of each."""

_MAX_HINTED: Final = 48
"""Hints of one statement: about 7 MiB of payloads if all messages have the largest size."""

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
        wanted: TopicFilter,
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
        self._entries = entries
        self._crowd = claimants + 1
        self._is_filtered = not wanted.everything
        conditions, named = topic_conditions(wanted)
        topics = (
            " and exists (select from storenode.topics t where t.key = m.topic and "
            + " and ".join(conditions)
            + " offset 0)"
            if conditions
            else ""
        )
        bounds = {"crowd": self._crowd, "seen": MAX_SEEN_CLAIMANTS, "topics": topics}
        self._reach = SQL.sds.reach_parents.format(**bounds)
        self._read_claims = SQL.sds.read_claims.format(**bounds)
        self._read_first = SQL.sds.read_first.format(**bounds)
        self._read_proven = SQL.sds.read_proven.format(**bounds)
        self._read_hinted = SQL.sds.read_hinted.format(**bounds)
        self._parameters: dict[str, object] = {
            "channel": channel_id,
            "parents": parents,
            "prefers": prefer_proven,
            "horizon": None,
            **named,
        }

    async def prepare(self) -> None:
        """Read the horizon; before the first `answer`."""
        if not self._is_filtered:
            rows = await self._database.rows(SQL.stores.read_horizon)
            self._parameters["horizon"] = rows[0][0] if rows else 0

    async def answer(self, query: ClaimQuery) -> ClaimAnswer:
        """Return the answer to one read of a look-up or walk."""
        return await self._database.read(self._answer, query, pool=self._database.bulk_pool)

    async def parents_of(self, places: Sequence[ParentPlace]) -> Parents:
        """Return parents as their children claim them, without those of deleted rows."""
        return await self._database.read(_parents, places, pool=self._database.bulk_pool)

    async def _answer(self, connection: Connection, query: ClaimQuery) -> ClaimAnswer:
        claims = await self._claims(connection, query) if query.keys else {}
        return ClaimAnswer(
            list(claims),
            [claim for group in claims.values() for claim in group],
            await self._hinted(connection, query.hints),
        )

    async def _claims(self, connection: Connection, query: ClaimQuery) -> dict[bytes, list[Claim]]:
        """Return the first claimants of as many keys as fit into an answer, in their order."""
        keys = list(query.keys)
        if query.ahead:
            most = max(len(keys), min(len(keys) + query.ahead, MAX_ANSWER_KEYS))
            rows = await self._rows(connection, self._reach, {"keys": uuids(keys), "limit": most})
            keys = list(dict.fromkeys([*keys, *(row[0] for row in rows)]))
        limit = len(keys) + FURTHER_CLAIMANTS
        # The index is searched in the order of keys; sorting them costs less here than there.
        rows = await self._rows(
            connection, self._read_claims, {"keys": uuids(sorted(keys)), "limit": limit}
        )
        if len(rows) == limit:
            return await self._first(connection, query.keys)
        claims: dict[bytes, list[Claim]] = {key: [] for key in keys}
        for row in rows:
            if row[1] is not None:
                claims[row[0]].append(row)
        crowded: list[bytes] = []
        for key, group in claims.items():
            if len(group) > self._crowd:
                crowded.append(key)
            elif len(group) > 1:
                group.sort(key=rank)
        if crowded:
            for key in crowded:
                del claims[key]
            claims |= await self._first(connection, crowded)
        return claims

    async def _first(
        self, connection: Connection, keys: Sequence[bytes]
    ) -> dict[bytes, list[Claim]]:
        """Return the first claimants of as many keys as fit into an answer, of any number each."""
        limit = self._crowd + FURTHER_CLAIMANTS
        parameters = {"keys": uuids(keys[:_MAX_CROWDED]), "limit": limit}
        rows = await self._rows(connection, self._read_first, parameters)
        claims: dict[bytes, list[Claim]] = {row[0]: [] for row in rows}
        for row in rows:
            if row[1] is not None:
                claims[row[0]].append(row)
        if len(rows) == limit:  # the last may lack some
            del claims[rows[-1][0]]
        if self._parameters["prefers"]:
            proven = await self._rows(connection, self._read_proven, {"keys": uuids(list(claims))})
            for row in proven:
                claims[row[0]].append(row)
            for key, group in claims.items():
                claims[key] = sorted(set(group), key=rank)[: self._crowd]
        return claims

    async def _rows(
        self, connection: Connection, statement: str, parameters: dict[str, object]
    ) -> list[Claim]:
        cursor = await connection.execute(statement, self._parameters | parameters, binary=True)
        return await cursor.fetchall()

    async def _hinted(self, connection: Connection, queries: Sequence[HintQuery]) -> HintAnswers:
        found: dict[tuple[bytes, bytes], Hinted | None] = {
            (query.key, query.hash): None for query in queries
        }
        if not queries:
            return found
        located = await locate(connection, list({query.hash for query in queries}))
        times: dict[bytes, list[int]] = {}
        for timestamp, digest in located:
            times.setdefault(digest, []).append(timestamp)
        named = [
            (query.key, timestamp, query.hash)
            for query in queries
            for timestamp in times.get(query.hash, ())
        ]
        opaque: dict[tuple[bytes, bytes], int] = {}
        for start in range(0, len(named), _MAX_HINTED):
            parameters = _claim_parameters(named[start : start + _MAX_HINTED])
            cursor = await connection.execute(
                self._read_hinted, self._parameters | parameters, binary=True
            )
            rows: list[tuple[Claim, bytes | None]]
            rows = [(row[:7], row[7]) for row in await cursor.fetchall()]
            for claim, payload in rows:
                if payload is None:
                    found[claim[0], claim[2]] = Hinted(claim, readable=True)
                elif decode(payload) is None:
                    opaque[claim[0], claim[2]] = claim[1]
        ids = await self._ids(connection, [q for q in queries if (q.key, q.hash) in opaque])
        for (key, digest), message_id in ids.items():
            claim = (key, opaque[key, digest], digest, message_id, b"", b"", False)
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
    rows = await cursor.fetchall()
    return {
        (digest, slot - 1): HistoryEntry(message_id, hint)
        for digest, slot, message_id, hint in rows
    }


def _claim_parameters(claims: Sequence[Child]) -> dict[str, object]:
    timestamps = [timestamp for _, timestamp, _ in claims]
    return {
        "keys": uuids([key for key, _, _ in claims]),
        "ts": bigints(timestamps),
        "hash": fixed_bytes([digest for _, _, digest in claims], HASH_BYTES),
        "low": min(timestamps),
        "high": max(timestamps),
    }
