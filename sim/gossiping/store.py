"""A simulated database: what is committed stays, whatever becomes of the nodes that wrote it.

Every call takes a drawn time, may pause for seconds, and may fail: before it has done anything, or
after, when nobody learns whether it was done. `StoreSession` is what one life of a node sees of it:
the protocols of `store.gossip.driver.ports`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from sim.dice import happens
from sim.gossiping.loop import Life
from sim.gossiping.network import outside
from store.domain.commits import CommitRow
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.domain.unread import Confirmed, UnreadEvent
from store.gossip.commits import CommittedMessages, OwnBatch
from store.messages.record import RecordBatch
from store.messages.transfer import transferred

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

MAX_NEEDED: Final = 64
_PAUSE_S: Final = 3.0
_T = TypeVar("_T")


@dataclass(slots=True)
class Disk:
    """``delay_s``: what a call takes, about. Shares of calls: ``busy`` ones are refused, others
    ``pause`` for seconds; after ``crashes`` of commits the node that wrote is gone.
    """

    delay_s: float = 0.005
    busy: float = 0.0
    pause: float = 0.0
    crashes: float = 0.0


@dataclass(slots=True)
class Row:
    """An unread event, or one that waits for parents."""

    needed: int
    began_ns: int
    stores: dict[str, None] = field(default_factory=dict)
    missing: tuple[bytes, ...] = ()
    expired: bool = False

    @property
    def done(self) -> bool:
        """Nothing is waited for."""
        return len(self.stores) >= self.needed and not self.missing


class Store:
    """What the nodes of one store share.

    Attributes:
        held: message hash -> encoded ``WakuMessageAndTopic``.
        log: messages in commit order; ``batches``: by batch ID, what each has added.
        rows: unread events. ``confirmed``: every pair that was ever confirmed.
    """

    def __init__(self, world: GossipWorld, store_id: str) -> None:
        self.store_id = store_id
        self.disk = Disk()
        self.available = True
        self.held: dict[bytes, bytes] = {}
        self.log: list[bytes] = []
        self.batches: dict[int, list[bytes]] = {}
        self.rows: dict[bytes, Row] = {}
        self.confirmed: dict[bytes, dict[str, None]] = {}
        self.commits: list[CommitRow] = []
        self.sessions: dict[StoreSession, None] = {}
        self.world = world

    def add(self, batch: RecordBatch, asked: int) -> tuple[int, list[bool]]:
        """Commit a batch now; its ID, and per message True if it is new."""
        self.world.judge.commits(self, batch)
        new = [digest not in self.held for digest in batch.hashes]
        batch_id = len(self.batches) + 1
        added = self.batches[batch_id] = []
        now_ns, usual = self.world.now_ns(), self.world.gossip.config.max_confirms
        for index, digest in enumerate(batch.hashes):
            if new[index]:
                self.held[digest] = transferred(batch.frame(index))
                self.log.append(digest)
                added.append(digest)
            needed = min(max(asked, usual if new[index] else 0), MAX_NEEDED)
            if needed:
                row = self.rows.setdefault(digest, Row(needed, now_ns))
                row.needed = max(row.needed, needed)
        if added:
            place = len(self.commits) + 1, 0
            times = batch.timestamps
            commit = CommitRow(place, batch_id, len(added), min(times), max(times), None)
            self.commits.append(commit)
            self.world.committed(added)
            for session in self.sessions:
                session.report(commit)
        return batch_id, new

    def confirm(self, pairs: Iterable[Confirmed]) -> None:
        """Note confirmations."""
        for pair in pairs:
            digest = pair.message_hash
            self.confirmed.setdefault(digest, {})[pair.store_id] = None
            if digest in self.rows:
                self.rows[digest].stores[pair.store_id] = None
                self._drop_if_done(digest)

    def wait_for(self, digest: bytes, missing: Sequence[bytes]) -> None:
        """Note which parents of an event are missing."""
        if missing and digest in self.held:
            row = self.rows.setdefault(digest, Row(0, self.world.now_ns()))
            row.missing = tuple(missing)
        elif digest in self.rows:
            self.rows[digest].missing = ()
            self._drop_if_done(digest)

    def unread(self, digests: Iterable[bytes], *, expired: bool) -> list[UnreadEvent]:
        """The rows of some messages."""
        now_ns = self.world.now_ns()
        found = ((digest, self.rows[digest]) for digest in digests if digest in self.rows)
        return [
            UnreadEvent(
                digest,
                row.needed,
                tuple(row.stores),
                row.missing,
                now_ns - row.began_ns,
                row.expired,
            )
            for digest, row in found
            if expired or not row.expired
        ]

    def _drop_if_done(self, digest: bytes) -> None:
        if self.rows[digest].done:
            del self.rows[digest]


class StoreSession:
    """The store as one life of a node sees it."""

    def __init__(self, store: Store, life: Life, crash: Callable[[], None]) -> None:
        self.store = store
        self.on_commits: Callable[[Sequence[CommitRow]], None] = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None
        self._life = life
        self._crash = crash
        self._dice = store.world.dice
        self._own: OrderedDict[int, OwnBatch] = OrderedDict()
        self._keeps = False
        self._tracked: dict[bytes, None] = {}
        self._reported_s = 0.0
        store.sessions[self] = None

    def close(self) -> None:
        """Hear of no further commits."""
        self.store.sessions.pop(self, None)

    # Messages

    async def persist(self, batch: RecordBatch, peer: str) -> Sequence[bool]:  # noqa: ARG002
        """Store what a peer has sent."""
        return await self.write(batch, Source.GOSSIP, 0)

    async def write(self, batch: RecordBatch, source: Source, asked: int) -> list[bool]:
        """Store a batch durably; per message True if it was new."""

        def commit() -> list[bool]:
            batch_id, new = self.store.add(batch, asked)
            self._note(batch_id, OwnBatch(batch, _places(new), source, self._needed(batch), 1))
            if not self._life.ended and happens(self._dice, self.store.disk.crashes):
                self._crash()
            return new

        return await self._call("write", commit)

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> Sequence[bytes | None]:
        """Read messages."""

        def read() -> list[bytes | None]:
            size, found = 0, list[bytes | None]()
            for message in map(self.store.held.get, hashes):
                size += len(message or b"")
                if found and size > max_bytes:
                    break
                found.append(message)
            return found

        return await self._call("load", read)

    async def held(self, hashes: Sequence[bytes]) -> Sequence[bool]:
        """Look messages up."""
        return await self._call("held", lambda: [each in self.store.held for each in hashes])

    async def arrived(self, commits: Sequence[CommitRow]) -> CommittedMessages:
        """Read what commits have added."""

        def read() -> CommittedMessages:
            ids = [each for commit in commits for each in self.store.batches[commit.batch]]
            return CommittedMessages(ids, self.store.world.events_of(ids))

        return await self._call("arrived", read)

    async def newest(self, limit: int) -> CommittedMessages:
        """Read the newest messages."""

        def read() -> CommittedMessages:
            ids = self.store.log[-min(limit, self.store.world.gossip.replayed) :]
            return CommittedMessages(ids, self.store.world.events_of(ids))

        return await self._call("newest", read)

    def cache(self, batch: RecordBatch, places: Sequence[int], size_bytes: int) -> None:
        """Reading takes no longer here."""

    # Tracking

    def wake(self) -> None:
        """Keep batches from now on."""
        self._keeps = True

    def rest(self) -> None:
        """Keep none any more."""
        self._keeps = False
        self._own.clear()

    def take(self, batch_id: int) -> OwnBatch | None:
        """A batch of this life, when its commit is reported."""
        return self._own.pop(batch_id, None)

    def is_tracked(self, digest: bytes) -> bool:
        """Is it known to have become unread?"""
        return digest in self._tracked

    def remember(self, hashes: Iterable[bytes]) -> None:
        """These are unread."""
        self._tracked.update(dict.fromkeys(hashes))

    def forget(self, hashes: Iterable[bytes]) -> None:
        """These are read."""
        for digest in hashes:
            self._tracked.pop(digest, None)

    def _needed(self, batch: RecordBatch) -> Mapping[bytes, int]:
        rows = self.store.rows
        return {digest: rows[digest].needed for digest in batch.hashes if digest in rows}

    def _note(self, batch_id: int, own: OwnBatch) -> None:
        self.remember(own.needed)
        if self._keeps and own.new:
            self._own[batch_id] = own
            while len(self._own) > self.store.world.gossip.kept_batches:
                self._own.popitem(last=False)

    # The commit feed

    def report(self, commit: CommitRow) -> None:
        """Commits are reported a little later, in order, some again, and sometimes all are lost."""
        world, dice = self.store.world, self._dice
        self._reported_s = max(self._reported_s, world.loop.time() + dice.uniform(0, 0.02))
        again = self.store.commits[-4:-1] if happens(dice, world.gossip.retold) else []
        rows = [*again, commit]
        world.loop.call_at(self._reported_s, self._report, rows, context=outside())

    def _report(self, commits: Sequence[CommitRow]) -> None:
        if not self._life.ended:
            if len(commits) > 1:
                self.on_lost()
            with self._life.inside():
                self.on_commits(commits)

    # Calls

    async def _call(self, name: str, work: Callable[[], _T]) -> _T:
        """Do ``work`` at one moment, whether or not the caller lives to learn the result."""
        self._life.demand()
        store, dice = self.store, self._dice
        result: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        fate = StoreBusy("too many calls") if happens(dice, store.disk.busy) else None
        pause_s = dice.uniform(0, _PAUSE_S) if happens(dice, store.disk.pause) else 0.0

        def act() -> None:
            if not store.available or (self._life.ended and happens(dice, 0.5)):
                self._fail(name, result, StoreUnavailable("the database does not answer"))
            elif fate is not None:
                self._fail(name, result, fate)
            else:
                later(answer, work())

        def answer(value: _T) -> None:
            if not store.available:
                self._fail(name, result, StoreUnavailable("the database went away"))
            elif not result.done():
                result.set_result(value)

        def later(action: Callable[..., None], *given: object) -> None:
            delay_s = 2 * store.disk.delay_s * dice.random() + pause_s
            store.world.loop.call_later(delay_s, action, *given, context=outside())

        later(act)
        return await result

    def _fail(self, name: str, result: asyncio.Future[_T], error: Exception) -> None:
        if not self._life.ended:
            self.store.world.judge.store_failed(self, name)
        if not result.done():
            result.set_exception(error)


class UnreadSession:
    """The table of unread events as one life of a node sees it."""

    def __init__(self, session: StoreSession, confirmed: Callable[[Confirmed], None]) -> None:
        self._session = session
        self._store = session.store
        self._confirmed = confirmed

    async def newest(self, limit: int) -> Sequence[UnreadEvent]:
        """The newest unread events."""
        return await self._session._call(
            "unread.newest",
            lambda: self._store.unread(list(self._store.rows)[:-limit:-1], expired=False),
        )

    async def of(self, hashes: Sequence[bytes]) -> Sequence[UnreadEvent]:
        """Those of some messages."""
        return await self._session._call(
            "unread.of", lambda: self._store.unread(hashes, expired=True)
        )

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations."""

        def note() -> None:
            for each in confirmed:
                self._confirmed(each)
            self._store.confirm(confirmed)

        await self._session._call("confirm", note)

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Give some up."""

        def note() -> None:
            for row in map(self._store.rows.get, hashes):
                if row is not None:
                    row.expired = True

        await self._session._call("expire", note)

    async def wait_for(self, parents: Mapping[bytes, Sequence[bytes]]) -> None:
        """Note missing parents."""

        def note() -> None:
            for digest, missing in parents.items():
                self._store.wait_for(digest, missing)

        await self._session._call("wait_for", note)

    async def sweep(self) -> object:
        """Nothing grows old enough in a run."""
        return 0


def _places(new: Sequence[bool]) -> list[int]:
    return [place for place, is_new in enumerate(new) if is_new]
