"""A simulated database: what is committed stays, also when the node that wrote it has crashed.

Work takes time. A batch is durable at its commit, which no node notices before the answer is back:
between the two, the node that wrote it may be gone. A batch of a node that is gone is committed
or not. While the database is away, nothing is committed and every answer is lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np

from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.lattice import LatticeSum
from reconcile.summaries.buckets import TimeBuckets as Buckets
from reconcile.view import Loaded, NeedBuckets, NeedHashes, NeedIds, Needs
from sim.bridge import Promise
from sim.judge import Judge
from sim.limits import COMMITS_AT_ONCE, NS_PER_MS, NS_PER_S
from sim.messages import claim_of
from sim.rng import Random, happens
from sim.scenario import Faults
from sim.timeline import Timeline
from store.domain.claims import Claim, rank
from store.domain.coverage import Statement
from store.domain.hub import START, CommitRow, Place
from store.domain.ports import Source, StoreBusyError, StoreUnavailableError
from store.domain.unread import OwnBatch, UnreadEvent
from store.domain.view import Span
from store.gossip.events import GraphEvent
from store.gossip.graph import graph_events
from store.gossip.limits import MAX_PEERS
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from storenode.message.limits import CONTENT_DIGEST_BYTES

if TYPE_CHECKING:
    from sim.process import Process

_T = TypeVar("_T")

Row: TypeAlias = tuple[int, bytes]
"""A timestamp, and a frame as it is stored."""

_NO_HASH = bytes(32)

NEWEST_BATCHES: Final = 64
MAX_LOST_COMMITS: Final = 12
"""Commits that a standby may lack."""

_PAUSE_NS: Final = 3 * NS_PER_S

WriteListener = Callable[[Iterable[bytes]], None]
"""Receives the messages of a write that have unread rows."""


class DatabaseUnavailableError(StoreUnavailableError):
    """The database does not answer; what was written may be durable nevertheless."""


_Before: TypeAlias = tuple[int, dict[bytes, UnreadEvent], dict[str, list[Statement]], int]
"""A position, and what the small tables were before its commit."""


class Database:
    """A simulated database of one store.

    Attributes:
        faults: those of this moment; ``delay_ns``: how long a piece of work takes.
        stored: hash -> (timestamp, frame as it is stored).
        digests: hash -> content digest, also of what was dropped since.
        ids: all of it, ascending.
        lost: hash of what was committed and was lost with its commit -> in which of ``losses``.
        claims: key of an SDS message ID in its channel -> all that ever claimed it, in their rank.
        commits: in their order; without the oldest ones, of which nothing is held.
        horizon_ns: everything older was dropped.
        available: False while it is away.
        outages: how often it went away, which breaks all connections; ``losses``: and lost commits.
        stated: by store ID, what sessions have found out about other stores.
        followers: are woken by every commit, and when their connections break.
        log: hashes in the order of their commits; ``graph``: the events among them.
        unread: by hash, with ages at the time 0. ``confirmed``: every pair that was ever confirmed.
        max_confirms: how many other stores must confirm a new message.
        listeners: of lives of nodes, which are notified of what they have written.
    """

    def __init__(
        self, store_id: str, timeline: Timeline, rng: Random, judge: Judge, lengths_ns: list[int]
    ) -> None:
        self.store_id = store_id
        self.faults = Faults()
        self.delay_ns = 5 * NS_PER_MS
        self.stored: dict[bytes, Row] = {}
        self.ids: list[SyncId] = []
        self.digests: dict[bytes, bytes] = {}
        self.lost: dict[bytes, int] = {}
        self.claims: dict[bytes, list[Claim]] = {}
        self.commits: list[CommitRow] = []
        self.committed_at_ns = 0
        self.horizon_ns = 0
        self.last_online_ns = 0
        self.available = True
        self.outages = 0
        self.losses = 0
        self.stated: dict[str, list[Statement]] = {}
        self.followers: dict[object, Callable[[], None]] = {}
        self.log: list[bytes] = []
        self.graph: dict[bytes, GraphEvent] = {}
        self.unread: dict[bytes, UnreadEvent] = {}
        self.confirmed: dict[bytes, dict[str, None]] = {}
        self.max_confirms = 0
        self.listeners: dict[Process, WriteListener] = {}
        self._added: dict[int, list[SyncId]] = {}
        self._before: deque[_Before] = deque(maxlen=MAX_LOST_COMMITS)
        self._newest: deque[tuple[int, Process, list[SyncId]]] = deque(maxlen=NEWEST_BATCHES)
        self._batches = count(1)
        self._timeline = timeline
        self._rng = rng
        self._judge = judge
        self._lengths_ns = lengths_ns

    def write(
        self,
        client: Process,
        batch: RecordBatch,
        source: Source = Source.TRANSFER,
        asked: int = 0,
    ) -> Promise[StoreResult]:
        """Store a batch; the promise is kept after the commit, per message True if it is new.

        It fails with `DatabaseUnavailableError` if the outcome is unknown. ``asked``: the
        number of other stores that must confirm the messages.
        """
        return self.change(client, lambda: self._write(client, batch, source, asked))

    def change(self, client: Process, work: Callable[[], _T]) -> Promise[_T]:
        """Run work in a transaction; the promise fails as that of `write` does."""
        done: Promise[_T] = Promise()
        self._later(lambda: self._commit(client, work, done))
        return done

    def had(self, digest: bytes) -> bool:
        """Return True if a message is stored, or was dropped or lost with its commit."""
        message = self._judge.made.get(digest)
        return digest in self.stored or (
            message is not None and (digest in self.lost or message.timestamp_ns < self.horizon_ns)
        )

    def holds(self, digest: bytes, content: bytes) -> bool:
        """Return True if a message with this hash and this content digest is stored."""
        return digest in self.stored and self.digests[digest] == content

    def stored_at(self, ids: Iterable[SyncId]) -> Iterator[Row | None]:
        """Yield what is stored at each position."""
        for timestamp, digest in ids:
            row = self.stored.get(digest)
            yield row if row is not None and row[0] == timestamp else None

    @staticmethod
    def read(rows: Iterable[Row | None], max_bytes: int) -> list[bytes | None]:
        """Return encoded messages, as many as fit and at least one; None for missing ones."""
        left, found = max_bytes, list[bytes | None]()
        for row in rows:
            message = None if row is None else transferred(row[1])
            left -= len(message or b"")
            if left < 0 and found:
                break
            found.append(message)
        return found

    def admit_write(self) -> None:
        """Refuse a write now and then.

        Raises:
            StoreBusyError: too many wait already.
        """
        if happens(self._rng, self.faults.busy):
            raise StoreBusyError("too many writes wait already")

    def look(
        self,
        work: Callable[[], _T],
        portions: int = 1,
        *,
        since: int | None = None,
    ) -> Promise[_T]:
        """Run work that takes time; all of it reads one moment.

        ``portions``: into how many pieces like this one the work is cut, about. ``since``: the
        number of outages when the connection was made that it is done on.
        """
        done: Promise[_T] = Promise()

        def act() -> None:
            broken = since not in (None, self.outages)
            if not self.available or broken or happens(self._rng, self.faults.fails):
                done.fail(DatabaseUnavailableError("the database does not answer"))
                return
            value = work()
            self._later(lambda: done.keep(value), portions)

        self._later(act, portions)
        return done

    def add(self, batch: RecordBatch, clock_ns: int) -> StoreResult:
        """Commit a batch now; of two messages with one hash the first is kept."""
        self._judge.committed(self, batch)
        given = zip(batch.hashes, batch.content_digests, strict=True)
        here = {at: each for at, each in enumerate(given) if each[0] in self.stored}
        conflicts = {
            at: self.digests[each[0]] for at, each in here.items() if not self.holds(*each)
        }
        new = StoreResult((at not in here for at in range(len(batch))), conflicts)
        ids = [(batch.timestamps[at], batch.hashes[at]) for at, is_new in enumerate(new) if is_new]
        for at, is_new in enumerate(new):
            if is_new:
                self.stored[batch.hashes[at]] = batch.timestamps[at], batch.frame(at)
                self.digests[batch.hashes[at]] = batch.content_digests[at]
                self.log.append(batch.hashes[at])
                self.lost.pop(batch.hashes[at], None)
        events = graph_events(batch)
        self.graph |= {each.id: each for each in events if self.holds(each.id, each.content_digest)}
        for each in ids:
            insort(self.ids, each)
        for at, claimed in zip(batch.sds_index, batch.sds, strict=True):
            if at in new.conflicts:
                continue
            claim = claim_of(claimed, batch.timestamps[at], batch.hashes[at])
            claims = self.claims.setdefault(claim[0], [])
            if claim not in claims:
                insort(claims, claim, key=rank)
        if ids:
            number = next(self._batches)
            times = [timestamp for timestamp, _ in ids]
            place = self.place[0] + 1, self._rng.getrandbits(64)
            row = CommitRow(place, number, len(ids), min(times), max(times), None)
            small = dict(self.unread), dict(self.stated), self.last_online_ns
            self._before.append((place[0], *small))
            self.commits.append(row)
            self._added[number] = ids
            self.committed_at_ns = clock_ns
            self._wake()
        return new

    def prune(self, horizon_ns: int) -> int:
        """Drop what is older; returns how much that was."""
        self.horizon_ns = max(self.horizon_ns, horizon_ns)
        count = bisect_left(self.ids, (horizon_ns, _NO_HASH))
        for _, digest in self.ids[:count]:
            del self.stored[digest]
            self.unread.pop(digest, None)
        del self.ids[:count]
        while len(self.commits) > 1 and self.commits[0].max_ts < self.horizon_ns:
            del self._added[self.commits.pop(0).batch]
        return count

    # Commits

    @property
    def place(self) -> Place:
        """The position of the newest commit."""
        return self.commits[-1].place if self.commits else START

    def is_served(self, place: Place) -> bool:
        """Return True if a commit exists or was pruned."""
        if place == START:
            return True
        first = self.commits[0].place[0] if self.commits else 0
        at = bisect_left(self.commits, place[0], key=lambda commit: commit.place[0])
        return place[0] < first or place in [each.place for each in self.commits[at : at + 1]]

    def commits_after(self, place: Place) -> list[CommitRow]:
        """Return some commits after a position, in their order."""
        after = bisect_right(self.commits, place[0], key=lambda commit: commit.place[0])
        return self.commits[after : after + COMMITS_AT_ONCE]

    def ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """Return what some commits have added and is held, with content digests."""
        added = [each for commit in commits for each in self._added.get(commit.batch, ())]
        added_ids = SyncIds.of(each for each in added if each[1] in self.stored)
        return Snapshot((), self._lengths_ns, self.digests).contents(added_ids)

    def go_away(self) -> None:
        """Fail all calls until `come_back`; every connection breaks."""
        self.available = False
        self.outages += 1
        self._wake()

    def come_back(self, without: int = 0) -> None:
        """Serve again, maybe as a standby that lacks the newest commits, and all that followed."""
        self.available = True
        self.losses += without > 0
        for commit in self.commits[len(self.commits) - without :] if without else ():
            for each in self._added.pop(commit.batch):
                if self.stored.pop(each[1], None) is not None:
                    self.ids.remove(each)
                    self.lost[each[1]] = self.losses
                    self._judge.lost.add(each[1])
            self.commits.remove(commit)
        while without and self._before and self._before[-1][0] > self.place[0]:
            _, self.unread, self.stated, self.last_online_ns = self._before.pop()

    def _wake(self) -> None:
        for wake in list(self.followers.values()):
            wake()

    def note_online(self, online_ns: int, clock_ns: int) -> None:
        """Keep the later time, unless that is ahead of the clock of the node that reports it."""
        if online_ns and not online_ns <= self.last_online_ns <= clock_ns:
            self.last_online_ns = online_ns

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the stored messages."""
        return Snapshot(self.ids, self._lengths_ns, self.digests, self.place, self.horizon_ns)

    def added_by_others(self, client: Process, within_ns: int) -> set[SyncId]:
        """Return what other clients have committed in the last time."""
        since_ns = self._timeline.now_ns - within_ns
        return {
            each
            for at_ns, writer, ids in self._newest
            if at_ns >= since_ns and writer is not client
            for each in ids
        }

    def check(self) -> None:
        """Verify that the two lists of what is held are the same.

        Raises:
            AssertionError: they are not.
        """
        assert len(self.ids) == len(self.stored)
        assert all(self.stored[digest][0] == timestamp for timestamp, digest in self.ids)
        assert all(one < other for one, other in zip(self.ids, self.ids[1:], strict=False))

    def _write(
        self, client: Process, batch: RecordBatch, source: Source, asked: int
    ) -> StoreResult:
        new = self.add(batch, self._timeline.now_ns)
        ids = zip(batch.timestamps, batch.hashes, strict=True)
        self._newest.append((self._timeline.now_ns, client, list(ids)))
        for at, (digest, is_new) in enumerate(zip(batch.hashes, new, strict=True)):
            if at not in new.conflicts:
                self._need(digest, asked, is_new=is_new)
        unread = self.unread
        needed = {digest: unread[digest].needed for digest in batch.hashes if digest in unread}
        if client.alive and any(new):
            added = batch.select([place for place, is_new in enumerate(new) if is_new])
            client.own.add(self.commits[-1].place, OwnBatch(added, source, needed))
        if client in self.listeners:
            self.listeners[client](needed)
        return new

    def _need(self, digest: bytes, asked: int, *, is_new: bool) -> None:
        needed = min(max(asked, self.max_confirms if is_new else 0), MAX_PEERS)
        row = self.unread.get(digest, UnreadEvent(digest, self.digests[digest], 0))
        if row.needed < needed or (row.expired and needed):
            self.unread.pop(digest, None)  # the newest comes last
            age_ns, most = -self._timeline.now_ns, max(needed, row.needed)
            self.unread[digest] = replace(row, needed=most, age_ns=age_ns, expired=False)

    def _commit(self, client: Process, work: Callable[[], _T], done: Promise[_T]) -> None:
        if not self.available or (not client.alive and self._rng.random() < 0.5):
            done.fail(DatabaseUnavailableError("the database did not commit"))
            return
        value = work()
        if client.alive and happens(self._rng, self.faults.commit_crashes):
            client.crash_soon()
        self._later(lambda: self._answer(value, done))

    def _answer(self, value: _T, done: Promise[_T]) -> None:
        if self.available:
            done.keep(value)
        else:
            done.fail(DatabaseUnavailableError("the database went away before it answered"))

    def _later(self, action: Callable[[], None], portions: int = 1) -> None:
        delay_ns = int(2 * self.delay_ns * self._rng.random()) // portions
        if happens(self._rng, self.faults.pauses):
            delay_ns += int(self._rng.uniform(0, _PAUSE_NS))
        self._timeline.after(delay_ns, action)


class Snapshot:
    """Ascending IDs, and the lengths of their buckets in nanoseconds, the longest first.

    Attributes:
        place: of the newest commit.
        horizon_ns: everything older was dropped.
    """

    def __init__(
        self,
        ids: Sequence[SyncId],
        lengths_ns: Sequence[int],
        digests: Mapping[bytes, bytes],
        place: Place = START,
        horizon_ns: int = 0,
    ) -> None:
        """Copy IDs; ``digests`` are the content digests by hash."""
        self.ids = list(ids)
        self.place = place
        self.horizon_ns = horizon_ns
        self._lengths_ns = lengths_ns
        self._digests = digests
        self._all = SyncIds.of(self.ids)
        self._buckets: dict[int, Buckets] = {}

    def top(self) -> Buckets:
        """Return the longest buckets."""
        return self._of(self._lengths_ns[0])

    def between(self, lower: SyncId, upper: SyncId) -> list[SyncId]:
        """Return the IDs in a half-open range."""
        return self.ids[bisect_left(self.ids, lower) : bisect_left(self.ids, upper)]

    def lattices(self, spans: Sequence[Span]) -> list[LatticeSum]:
        """Return the lattice sums of ranges of time."""
        no_hash = LOWEST[1]
        found = [self.between((low, no_hash), (high, no_hash)) for low, high in spans]
        return [LatticeSum.of(self.contents(SyncIds.of(ids)).elements) for ids in found]

    def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs with their content digests."""
        joined = b"".join(self._digests[digest.tobytes()] for digest in ids.hashes)
        digests = np.frombuffer(joined, np.uint8).reshape(-1, CONTENT_DIGEST_BYTES)
        return SyncIds(ids.timestamps, ids.hashes, digests)

    def load(self, needs: Needs) -> Loaded:
        """Load what a view needs."""
        match needs:
            case NeedBuckets(length_ns, parents, parent_ns):
                return self._of(length_ns).within(parents, parent_ns)
            case NeedIds(spans, limit):
                found: list[SyncId] = []
                for lower, upper in spans.pairs():
                    found += self.between(lower, upper)
                    if len(found) >= limit:
                        break
                return self.contents(SyncIds.of(found[:limit]))
            case NeedHashes(hashes):
                wanted = {digest.tobytes() for digest in hashes}
                return SyncIds.of(each for each in self.ids if each[1] in wanted)

    def _of(self, length_ns: int) -> Buckets:
        if length_ns not in self._buckets:
            self._buckets[length_ns] = Buckets.of_ids(length_ns, self._all)
        return self._buckets[length_ns]
