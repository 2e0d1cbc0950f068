"""What a store keeps of gossip: unread events, their confirmations, and the order of commits.

As on the edge, an unread event begins in the transaction that stores its message, and what the
machine says later is written behind it, in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reconcile.ids import SyncId
from sim.database import Database
from store.gossip.events import Confirm, Expire, Read, UnreadEvent, Waiting


class ReadJudge(Protocol):
    """Who looks on."""

    def read_early(self, store_id: str, digest: bytes, stores: int) -> None:
        """An event is called read by a node, and the database knows that it needs more."""
        ...


@dataclass(slots=True)
class Row:
    """An unread event."""

    needed: int
    began_ns: int
    stores: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Records:
    """Of one store.

    Attributes:
        rows: of messages that are unread.
        waiting: of events that are stored and wait for parents.
        confirmed: every pair that was ever confirmed.
        read: events that have had enough confirmations.
        log: the newest commits, oldest first.
    """

    database: Database
    max_confirms: int
    replayed: int
    judge: ReadJudge
    rows: dict[bytes, Row] = field(default_factory=dict)
    waiting: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    confirmed: dict[bytes, dict[str, None]] = field(default_factory=dict)
    read: set[bytes] = field(default_factory=set)
    log: list[bytes] = field(default_factory=list)
    _expected: dict[bytes, int] = field(default_factory=dict)

    def expect(self, ids: Iterable[bytes], min_confirms: int) -> None:
        """A publisher wants confirmations of what it is about to store."""
        for digest in ids:
            self._expected[digest] = max(min_confirms, self._expected.get(digest, 0))

    def committed(self, now_ns: int, added: Sequence[SyncId]) -> None:
        """In the transaction of a batch."""
        for _, digest in added:
            self.log.append(digest)
            needed = max(self.max_confirms, self._expected.pop(digest, 0))
            if needed:
                self.rows[digest] = Row(needed, now_ns)

    def want(self, now_ns: int, ids: Iterable[bytes], min_confirms: int) -> None:
        """A publisher wants confirmations of what is held already."""
        needed = max(min_confirms, self.max_confirms)
        for digest in ids:
            self._expected.pop(digest, None)
            if needed and digest in self.database.held:
                row = self.rows.setdefault(digest, Row(needed, now_ns))
                row.needed = max(row.needed, needed)

    def apply(self, effects: Sequence[Confirm | Read | Expire | Waiting]) -> None:
        """Write what a machine has said."""
        for effect in effects:
            match effect:
                case Confirm():
                    for digest in effect.ids:
                        self.confirmed.setdefault(digest, {})[effect.store_id] = None
                        if digest in self.rows:
                            self.rows[digest].stores[effect.store_id] = None
                case Read():
                    for digest in effect.ids:
                        self._read(digest)
                case Expire():
                    for digest in effect.ids:
                        self.rows.pop(digest, None)
                case Waiting():
                    self._wait(effect)

    def unread(self, now_ns: int) -> list[UnreadEvent]:
        """All of them, as they are restored."""
        unread = [
            UnreadEvent(
                digest,
                row.needed,
                now_ns - row.began_ns,
                tuple(row.stores),
                self.waiting.get(digest, ()),
            )
            for digest, row in self.rows.items()
        ]
        waiting = [
            UnreadEvent(digest, 0, missing=missing)
            for digest, missing in self.waiting.items()
            if digest not in self.rows
        ]
        return [each for each in (*unread, *waiting) if each.id in self.database.held]

    def recent(self) -> list[bytes]:
        """The newest messages, oldest first."""
        held = self.database.held
        return [digest for digest in self.log[-self.replayed :] if digest in held]

    def _read(self, digest: bytes) -> None:
        row = self.rows.get(digest)
        if row is not None and len(row.stores) < row.needed:
            self.judge.read_early(self.database.store_id, digest, len(row.stores))
            return
        self.rows.pop(digest, None)
        self.read.add(digest)

    def _wait(self, effect: Waiting) -> None:
        if effect.missing:
            self.waiting[effect.id] = tuple(effect.missing)
        else:
            self.waiting.pop(effect.id, None)
