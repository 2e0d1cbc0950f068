"""The reads and writes of gossip: unread events, and messages that peers want.

A message that too few other stores have confirmed has a row in ``unread``, written in the
transaction that stores it. The row goes when the last confirmation is noted, or with its message;
when it has waited for too long it expires, and goes a while later: that a row is gone then means
that its message was confirmed. Nodes on one database share the rows, and any of them may receive a
confirmation. Rows are locked in the order of their hashes, here and by writers, so that no two
transactions wait for each other.

What this node has written lately is in memory (`store.domain.hub.OwnCommits`); only what others
have written, or what is older, is read from the database. A message that is read is laid out again
as admission did it: so its SDS metadata need no index of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reconcile.ids import SyncId, SyncIds, ordered
from store.db.arrays import bigints, fixed_bytes, texts
from store.db.connection import Connection
from store.db.locks import NODES
from store.db.messages import DatabaseReader, admit_again, locate, values_at
from store.db.pool import Database
from store.db.reconciliation import ids_of
from store.db.statements import SQL
from store.domain.hub import CommitRow
from store.domain.unread import Confirmed, UnreadEvent, UnreadSummary
from store.gossip.events import Committed, GraphEvent
from store.gossip.graph import graph_events
from store.gossip.limits import MAX_PEERS
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES, MAX_TIMESTAMP_NS

if TYPE_CHECKING:
    from store.db.insert import CommitPart

MAX_UNREAD_EVENTS: Final = 100_000
"""Unread events of one database, 20 MB at most; of further messages none is awaited."""

EXPIRED_KEPT_S: Final = 3_600.0
"""The time that expired events are remembered, longer than anyone waits for them."""

LAPSED_S: Final = 2 * 24 * 3_600.0
"""Age at which an event is deleted although no node has let it expire."""

MAX_TRACKED: Final = 262_144
"""Messages that are remembered to have become unread, 50 MiB at most; nothing is
concluded from those that are forgotten."""

MAX_WAITING: Final = 10_000
"""Messages with missing parents that are counted."""

_EVENTS_AT_ONCE: Final = 4_096

_T = TypeVar("_T")

Wanted = tuple[bytes, int, int, bytes]
"""Hash, timestamp, how many stores must confirm, and the content digest."""


def _track_parameters(rows: Sequence[Wanted]) -> dict[str, bytes]:
    return {
        "u_hash": fixed_bytes([row[0] for row in rows], HASH_BYTES),
        "u_ts": bigints([row[1] for row in rows]),
        "u_content_digest": fixed_bytes([row[3] for row in rows], CONTENT_DIGEST_BYTES),
        "u_needed": bigints([row[2] for row in rows]),
    }


class UnreadRows:
    """The unread events of a database, and those that go with written batches.

    ``count``: how many this node last counted. ``unread_hashes``: messages that are unread, or will
    be with the current transaction.

    Every read and change raises `StoreUnavailableError` when the database does not serve; to do
    again what was done does no harm.
    """

    def __init__(self, database: Database, max_confirms: int = 0) -> None:
        """Use a database; ``max_confirms`` stores must confirm a new message of any source."""
        self._database = database
        self._max_confirms = max_confirms
        self.count = 0
        self.unread_hashes = BoundedDict[bytes, None](MAX_TRACKED)

    async def newest(self, limit: int = MAX_UNREAD_EVENTS) -> list[UnreadEvent]:
        """Return the newest unread events that have not expired, at most ``limit``."""
        rows = await self._database.rows(
            SQL.stores.read_newest_unread, {"limit": limit}, self._database.bulk_pool
        )
        return _events(rows)

    async def of(self, hashes: Sequence[bytes]) -> list[UnreadEvent]:
        """Return the events of some messages, also those that have expired, in any order."""
        found: list[UnreadEvent] = []
        for some in _portions(hashes):
            found += _events(await self._database.rows(SQL.stores.read_unread, _parameters(some)))
        return found

    async def is_shared(self) -> bool:
        """Return True if another node works on the database; each holds a lock while it does."""
        ((nodes,),) = await self._database.rows(
            SQL.partitions.count_nodes, (NODES >> 32, NODES & 0xFFFFFFFF)
        )
        return bool(nodes > 1)

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations; those of messages that are not unread change nothing."""
        for some in _portions(confirmed):
            hashes = [each.message_hash for each in some]
            stores = {"store": texts([each.store_id for each in some])}
            read = await self._change(SQL.stores.confirm, _parameters(hashes) | stores)
            self.count = max(0, self.count - read)

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Stop waiting for confirmations of these messages."""
        for some in _portions(hashes):
            await self._change(SQL.stores.expire, _parameters(some))

    async def sweep(self) -> int:
        """Delete events that expired long ago; return how many."""
        return await self._change(
            SQL.stores.sweep_unread, {"kept_s": EXPIRED_KEPT_S, "lapsed_s": LAPSED_S}
        )

    async def summary(self) -> UnreadSummary:
        """Return how many there are, and for how long the oldest has waited."""
        (row,) = await self._database.rows(
            SQL.stores.sum_unread, {"usual": self._max_confirms, "most_waiting": MAX_WAITING}
        )
        found = UnreadSummary(*row)
        self.count = found.count
        return found

    @contextmanager
    def tracked(self, parts: Sequence[CommitPart]) -> Iterator[dict[str, bytes] | None]:
        """Count what becomes unread with a transaction, unless the block fails.

        Yields:
            The parameters of the statement ``track``, which the block executes; None: no message
            becomes unread.
        """
        is_asked = self._max_confirms or any(asked for part in parts for _, asked in part.shares)
        wanted = list(self._wanted(parts)) if is_asked else []
        if self.count + len(wanted) > MAX_UNREAD_EVENTS:
            wanted = []
        fresh = [row[0] for row in wanted if row[0] not in self.unread_hashes]
        self.count += len(wanted)
        needed = {row[0]: row[2] for row in wanted}
        self.unread_hashes.update(dict.fromkeys(needed))
        for part in parts:
            part.needed = needed
        try:
            yield _track_parameters(sorted(wanted)) if wanted else None
        except BaseException:
            self.count -= len(wanted)
            for digest in fresh:
                self.unread_hashes.pop(digest, None)
            raise

    def _wanted(self, parts: Sequence[CommitPart]) -> Iterator[Wanted]:
        usual = self._max_confirms
        needed: dict[bytes, Wanted] = {}
        for part in parts:
            new = set(part.new.hashes) if usual else ()
            for batch, asked in part.shares:
                columns = zip(batch.timestamps, batch.hashes, batch.content_digests, strict=True)
                for ts, digest, content in columns:
                    if digest in part.conflicts:
                        continue
                    most = min(max(asked, usual if digest in new else 0), MAX_PEERS)
                    if most > (needed[digest][2] if digest in needed else 0):
                        needed[digest] = digest, ts, most, content
        yield from needed.values()

    async def _change(self, statement: str, parameters: dict[str, object]) -> int:
        async def change(connection: Connection) -> int:
            return (await connection.execute(statement, parameters)).rowcount

        return await self._database.read(change, pool=self._database.write_pool)


def _events(rows: Iterable[Any]) -> list[UnreadEvent]:
    return [
        UnreadEvent(digest, content, needed, tuple(stores), age_ns, expired)
        for digest, content, needed, stores, age_ns, expired in rows
    ]


def _portions(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), _EVENTS_AT_ONCE):
        yield items[start : start + _EVENTS_AT_ONCE]


def _parameters(hashes: Sequence[bytes]) -> dict[str, object]:
    return {"hash": fixed_bytes(hashes, HASH_BYTES)}


MAX_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the messages of one statement, and of the newest ones that are read at the start."""

MAX_LOADED_IDS: Final = 1_024
"""Messages of one answer."""


class GossipReads:
    """Reads; each raises `StoreUnavailableError` when the database does not serve."""

    def __init__(
        self, database: Database, body: Callable[[bytes], bytes | None] = lambda _digest: None
    ) -> None:
        """Read from a database what is not in memory, from where ``body`` returns it by hash."""
        self._database = database
        self._reader = DatabaseReader(database)
        self._body = body

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> list[bytes | None]:
        """Return the first of these messages, in order, up to ``max_bytes`` but at least one.

        None stands for a message that is not held.
        """
        found = {digest: self._body(digest) for digest in hashes[:MAX_LOADED_IDS]}
        absent = [digest for digest, body in found.items() if body is None]
        if absent:
            times = {digest: ts for ts, digest in await self._locate(absent)}
            ids = SyncIds.of((times[digest], digest) for digest in absent if digest in times)
            bodies = await self._reader.load(ids, max_bytes)
            for (_, digest), body in zip(ids, bodies, strict=False):
                found[digest] = body
            for _, digest in ids[len(bodies) :]:  # nothing is known of what did not fit
                del found[digest]
        answer: list[bytes | None] = []
        for digest in hashes[:MAX_LOADED_IDS]:
            if digest not in found:
                break
            body = found[digest]
            max_bytes -= len(body or b"")
            if answer and max_bytes < 0:
                break
            answer.append(body)
        return answer

    async def content_digests(self, hashes: Sequence[bytes]) -> list[bytes | None]:
        """Return the content digest of each message; None: it is not held."""
        ids = await self._locate(hashes)
        pool = self._database.bulk_pool
        found = await self._database.read(values_at, "content_digest", ids, pool=pool)
        return [found.get(digest) for digest in hashes]

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """Return the messages of some commits that are stored still."""
        ids = ordered(await self._database.read(ids_of, commits, pool=self._database.bulk_pool))
        events, left = list[GraphEvent](), ids
        while len(left):
            read, some = await self._events(left[:MAX_LOADED_IDS])
            events, left = events + some, left[read:]
        contents = [] if ids.digests is None else [each.tobytes() for each in ids.digests]
        hashes = [digest for _, digest in ids]
        return Committed(hashes, events, content_digests=contents)

    async def newest(self, limit: int) -> Committed:
        """Return the newest messages, oldest first; with metadata of `MAX_READ_BYTES` of them."""
        given = MAX_TIMESTAMP_NS, limit
        rows = await self._database.rows(SQL.messages.read_newest, given, self._database.bulk_pool)
        rows.reverse()
        newest = SyncIds.of((ts, digest) for ts, digest, _ in rows[-MAX_LOADED_IDS:])
        _, events = await self._events(newest)
        hashes, contents = [row[1] for row in rows], [row[2] for row in rows]
        return Committed(hashes, events, content_digests=contents)

    async def _events(self, ids: SyncIds) -> tuple[int, list[GraphEvent]]:
        """Look into the first of some messages; return how many, and the events among them."""
        bodies = await self._reader.load(ids, MAX_READ_BYTES)
        admitted = admit_again([body for body in bodies if body is not None])
        return len(bodies), graph_events(admitted.batch)

    async def _locate(self, hashes: Sequence[bytes]) -> list[SyncId]:
        pool = self._database.bulk_pool
        return sorted(await self._database.read(locate, hashes, pool=pool))
