"""Reads of gossip: messages as their commits are seen, and messages by hash.

What this node has written lately is in memory (`store.db.writing.unread`, then `RecentBodies`);
only what others have written, or what is older, is read from the database. A
message that is read is laid out again as admission did it: so its SDS metadata need no index of
their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from reconcile.ids import SyncId, SyncIds
from store.db.pool import Database
from store.db.reading.messages import locate, values_at
from store.db.reading.reader import TransferReader
from store.db.reconciliation import ids_of
from store.db.statements import SQL
from store.domain.admission import Admission
from store.domain.hub import CommitRow
from store.domain.ports import Source
from store.gossip.events import Committed, GraphEvent
from store.gossip.graph import graph_events
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.message.rules import Policy

MAX_RECENT_BYTES: Final = 32 * 1024 * 1024
"""Messages that are kept in memory after their commit, for peers that want them; with what Python
needs for them besides their bytes."""

MAX_READ_BYTES: Final = 4 * 1024 * 1024
"""Messages of one statement; of the newest ones at the start, so many bytes are looked into."""

MAX_LOADED_IDS: Final = 1_024
"""Messages of one answer."""

_ANY: Final = Policy(max_drift_ns=None, max_message_bytes=2**31)
"""What is held was admitted once; the rules may have changed since."""


class RecentBodies:
    """The newest batches that this node has seen committed, up to `MAX_RECENT_BYTES`."""

    def __init__(self) -> None:
        self._batches = deque[tuple[RecordBatch, int]]()
        self._places: dict[bytes, tuple[RecordBatch, int]] = {}
        self._bytes = 0

    def add(self, batch: RecordBatch, size_bytes: int) -> None:
        """Keep the messages of a batch."""
        # Their SDS metadata may be larger than they are, and nobody asks for it here.
        batch = RecordBatch(
            hashes=batch.hashes, heads=batch.heads, payloads=batch.payloads, tails=batch.tails
        )
        self._batches.append((batch, size_bytes))
        self._bytes += size_bytes
        self._places.update((digest, (batch, n)) for n, digest in enumerate(batch.hashes))
        while self._bytes > MAX_RECENT_BYTES:
            self._drop_oldest()

    def get(self, digest: bytes) -> bytes | None:
        """Return a message as encoded ``WakuMessageAndTopic``; None: it is not here."""
        found = self._places.get(digest)
        if found is None:
            return None
        batch, place = found
        return transferred(batch.frame(place))

    def _drop_oldest(self) -> None:
        batch, size_bytes = self._batches.popleft()
        self._bytes -= size_bytes
        for digest in batch.hashes:
            found = self._places.get(digest)
            if found is not None and found[0] is batch:
                del self._places[digest]


class GossipReads:
    """Reads; each raises `StoreUnavailableError` when the database does not serve."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = TransferReader(database)
        self._recent = RecentBodies()

    def cache(self, batch: RecordBatch, size_bytes: int) -> None:
        """Keep the messages of a batch in memory: peers will ask for them."""
        self._recent.add(batch, size_bytes)

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> list[bytes | None]:
        """Return the first of these messages, in order, up to ``max_bytes`` but at least one.

        None stands for a message that is not held.
        """
        wanted = hashes[:MAX_LOADED_IDS]
        found: dict[bytes, bytes | None] = {}
        for digest in wanted:
            if (body := self._recent.get(digest)) is not None:
                found[digest] = body
        absent = [digest for digest in wanted if digest not in found]
        left = max_bytes - sum(len(body or b"") for body in found.values())
        if absent and left > 0:
            found |= await self._read(absent, left)
        if wanted and wanted[0] not in found:
            found |= await self._read(wanted[:1], 1)
        return _prefix(wanted, found, max_bytes)

    async def content_digests(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """Return the content digest of each message; None: it is not held."""
        ids = await self._locate(hashes)
        pool = self._database.bulk_pool
        found = await self._database.read(values_at, "content_digest", ids, pool=pool)
        return [found.get(digest) for digest in hashes]

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """Return what some commits have added, as far as it is stored."""
        ids = await self._database.read(ids_of, commits, pool=self._database.bulk_pool)
        return await self._described(sorted(ids.pairs()), {}, None)

    async def newest(self, limit: int) -> Committed:
        """Return the newest messages, oldest first; with metadata of `MAX_READ_BYTES` of them."""
        given = MAX_TIMESTAMP_NS, limit
        rows = await self._database.rows(SQL.messages.read_newest, given, self._database.bulk_pool)
        ids = sorted((ts, bytes(digest)) for ts, digest, _ in rows)
        digests = {bytes(digest): bytes(content) for _, digest, content in rows}
        return await self._described(ids, digests, MAX_READ_BYTES)

    async def _described(
        self, ids: Sequence[SyncId], digests: dict[bytes, bytes], most_bytes: int | None
    ) -> Committed:
        """Look into messages, which ascend; of too many, into the newest.

        ``digests``: the content digests that are known already, by hash.
        """
        events: list[GraphEvent] = []
        hashes = [digest for _, digest in ids]
        if most_bytes is not None:
            ids = ids[-MAX_LOADED_IDS:]
        start = 0
        while start < len(ids):
            portion = SyncIds.of(ids[start : start + MAX_LOADED_IDS])
            bodies = await self._reader.load(portion, MAX_READ_BYTES)
            start += len(bodies)
            batch = _admitted([body for body in bodies if body is not None])
            digests |= dict(zip(batch.hashes, batch.content_digests, strict=True))
            events += graph_events(batch)
            if most_bytes is not None:
                break
        contents = [digests.get(digest, b"") for digest in hashes]
        return Committed(hashes, events, content_digests=contents)

    async def _read(self, hashes: Sequence[bytes], max_bytes: int) -> dict[bytes, bytes | None]:
        """Read some messages; what has no place in the given bytes is left out."""
        ids = await self._locate(hashes)
        located = {digest for _, digest in ids}
        found: dict[bytes, bytes | None] = {each: None for each in hashes if each not in located}
        bodies = await self._reader.load(SyncIds.of(ids), max_bytes) if ids else []
        return found | {digest: body for (_, digest), body in zip(ids, bodies, strict=False)}

    async def _locate(self, hashes: Sequence[bytes]) -> list[SyncId]:
        pool = self._database.bulk_pool
        return sorted(await self._database.read(locate, hashes, pool=pool))


def _prefix(
    wanted: Sequence[bytes], found: dict[bytes, bytes | None], max_bytes: int
) -> list[bytes | None]:
    answer: list[bytes | None] = []
    size = 0
    for digest in wanted:
        if digest not in found:
            break
        body = found[digest]
        size += len(body or b"")
        if answer and size > max_bytes:
            break
        answer.append(body)
    return answer


def _admitted(bodies: Sequence[bytes]) -> RecordBatch:
    admission = Admission(_ANY, MAX_TIMESTAMP_NS, Source.RESTORE)
    admission.admit(bodies)
    return admission.admitted.batch
