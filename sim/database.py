"""A simulated database: what is committed stays, whatever becomes of the nodes that wrote it.

Work takes time. A batch is durable at its commit and nobody knows before the answer has come back:
between the two, the node that wrote it may be gone. A batch of a node that is gone is committed
or not. While the database is away, nothing is committed and every answer is lost.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from reconcile.ids import SyncId
from sim.dice import Dice, happens
from sim.judge import Judge
from sim.limits import NS_PER_MS
from sim.snapshot import Snapshot
from sim.tasks import Promise, Steps
from sim.timeline import Timeline
from store.domain.ports import StoreBusy, StoreUnavailable
from store.messages.record import RecordBatch

_T = TypeVar("_T")

_NO_HASH = bytes(32)


class Unavailable(StoreUnavailable):
    """The database does not answer; what was written may be durable all the same."""


class Client(Protocol):
    """Whoever works with a database: one life of a node."""

    alive: bool

    def crash_soon(self) -> None:
        """End it at this moment."""
        ...


@dataclass(slots=True)
class DiskWeather:
    """``delay_ns``: what a piece of work takes, about. ``crashes``: of commits, the share after
    which the node that wrote it is gone before it learns of it. ``busy``: of writes, the share that
    is refused for the moment.
    """

    delay_ns: int = 5 * NS_PER_MS
    crashes: float = 0.0
    busy: float = 0.0


class Database:
    """What one store holds.

    Attributes:
        held: hash -> (timestamp, frame as it is stored).
        ids: all of it, ascending.
        position: of the newest commit.
        horizon_ns: everything older was dropped.
        available: False while it is away.
        followers: are told of every commit, in their order: position, IDs that it added.
    """

    def __init__(
        self, store_id: str, timeline: Timeline, dice: Dice, judge: Judge, lengths_ns: list[int]
    ) -> None:
        self.store_id = store_id
        self.weather = DiskWeather()
        self.held: dict[bytes, tuple[int, bytes]] = {}
        self.ids: list[SyncId] = []
        self.position = 0
        self.committed_at_ns = 0
        self.horizon_ns = 0
        self.last_online_ns = 0
        self.available = True
        self.followers: list[Callable[[int, list[SyncId]], None]] = []
        self._timeline = timeline
        self._dice = dice
        self._judge = judge
        self._lengths_ns = lengths_ns

    def write(
        self, client: Client, batch: RecordBatch, also: Callable[[list[bool]], None] | None = None
    ) -> Promise[list[bool]]:
        """Store a batch; the promise is kept after the commit, per message True if it is new.

        It fails with `Unavailable` where nobody knows. ``also`` happens in the same transaction.
        """

        def work() -> list[bool]:
            new = self.add(batch, self._timeline.now_ns)
            if also is not None:
                also(new)
            return new

        return self.change(client, work)

    def change(self, client: Client, work: Callable[[], _T]) -> Promise[_T]:
        """Do something in a transaction; fails as `write` does."""
        done: Promise[_T] = Promise()
        self._later(lambda: self._commit(client, work, done))
        return done

    def be_busy(self) -> Steps[None]:
        """Refuse a write now and then.

        Raises:
            StoreBusy: too many wait already.
        """
        if happens(self._dice, self.weather.busy):
            raise StoreBusy("too many writes wait already")
        yield from ()

    def look(self, work: Callable[[], _T], portions: int = 1) -> Promise[_T]:
        """Do something with the database that takes its time, all of it at one moment.

        ``portions``: into how many pieces like this one the work is cut, about.
        """
        done: Promise[_T] = Promise()

        def act() -> None:
            if not self.available:
                done.fail(Unavailable("the database does not answer"))
                return
            value = work()
            self._later(lambda: done.keep(value), portions)

        self._later(act, portions)
        return done

    def add(self, batch: RecordBatch, clock_ns: int) -> list[bool]:
        """Commit a batch now."""
        self._judge.committed(self, batch)
        new = [digest not in self.held for digest in batch.hashes]
        added: list[SyncId] = []
        for index, is_new in enumerate(new):
            if is_new:
                timestamp, digest = batch.timestamps[index], batch.hashes[index]
                self.held[digest] = timestamp, batch.frame(index)
                insort(self.ids, (timestamp, digest))
                added.append((timestamp, digest))
        if added:
            self.position += 1
            self.committed_at_ns = clock_ns
            for follower in self.followers:
                follower(self.position, added)
        return new

    def prune(self, horizon_ns: int) -> int:
        """Drop what is older; returns how much that was."""
        self.horizon_ns = max(self.horizon_ns, horizon_ns)
        count = bisect_left(self.ids, (horizon_ns, _NO_HASH))
        for _, digest in self.ids[:count]:
            del self.held[digest]
        del self.ids[:count]
        return count

    def note_online(self, online_ns: int, clock_ns: int) -> None:
        """Keep the later time, unless that is ahead of the clock of whoever says so."""
        if not online_ns <= self.last_online_ns <= clock_ns:
            self.last_online_ns = online_ns

    def snapshot(self) -> Snapshot:
        """What is held now."""
        return Snapshot(self.ids, self._lengths_ns)

    def check(self) -> None:
        """Verify that the two lists of what is held are the same.

        Raises:
            AssertionError: they are not.
        """
        assert len(self.ids) == len(self.held)
        assert all(self.held[digest][0] == timestamp for timestamp, digest in self.ids)
        assert all(one < other for one, other in zip(self.ids, self.ids[1:], strict=False))

    def _commit(self, client: Client, work: Callable[[], _T], done: Promise[_T]) -> None:
        if not self.available or (not client.alive and self._dice.random() < 0.5):
            done.fail(Unavailable("the database did not commit"))
            return
        value = work()
        if client.alive and happens(self._dice, self.weather.crashes):
            client.crash_soon()
        self._later(lambda: self._answer(value, done))

    def _answer(self, value: _T, done: Promise[_T]) -> None:
        if self.available:
            done.keep(value)
        else:
            done.fail(Unavailable("the database went away before it answered"))

    def _later(self, action: Callable[[], None], portions: int = 1) -> None:
        delay_ns = int(2 * self.weather.delay_ns * self._dice.random()) // portions
        self._timeline.after(delay_ns, action)
