"""What happened during a run, as far as it matters to what nodes must hold: facts, no judgement.

Times ending in ``_s`` are of one monotonic clock, in seconds; those ending in ``_ns`` are Unix
times. A *store* is one life of a node's database, as ``b#2``: the second one of node b.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Published:
    """A message, noted before anybody else can have seen it."""

    fingerprint: bytes
    timestamp_ns: int
    publisher: str


@dataclass(frozen=True, slots=True)
class Ack:
    """A store said that it holds a message, and how many others had confirmed it."""

    store: str
    at_s: float
    confirms: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """A store was thrown away, and an empty one took its place."""

    store: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Synced:
    """At ``seen_s`` every node had shown that it holds all that was acknowledged by ``upto_s``."""

    upto_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """An operator shortened a store's retention.

    What is older than ``may_go_ns`` may be gone from it; what is older than ``must_go_ns`` is. They
    are the same unless the command ran over midnight, when the age of a day's partition changes.
    """

    store: str
    may_go_ns: int
    must_go_ns: int


@dataclass(slots=True)
class History:
    """Everything, from any thread."""

    published: dict[bytes, Published] = field(default_factory=dict)
    acks: dict[bytes, list[Ack]] = field(default_factory=dict)
    replaced: list[Replaced] = field(default_factory=list)
    synced: list[Synced] = field(default_factory=list)
    pruned: list[Pruned] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, messages: Iterable[tuple[bytes, Published]]) -> None:
        """Note messages before they are sent."""
        with self._lock:
            for digest, message in messages:
                self.published.setdefault(digest, message)

    def acknowledge(self, digests: Iterable[bytes], ack: Ack) -> None:
        """Note an answer: STORED, DUPLICATE or UNCONFIRMED, all of which say that it is held."""
        with self._lock:
            for digest in digests:
                self.acks.setdefault(digest, []).append(ack)

    def acknowledged(self) -> list[bytes]:
        """The hashes of all that has been acknowledged so far."""
        with self._lock:
            return list(self.acks)

    def may_be_lost(self, digest: bytes) -> bool:
        """Whether nobody has promised that a message outlives what has happened.

        It was acknowledged, without a confirmation by another store, by stores alone that were then
        thrown away, and nobody had seen it anywhere else before that.
        """
        return all(self._went(ack) for ack in self.acks.get(digest, ()))

    def may_go_ns(self, store: str) -> int:
        """What is older may be missing from a store."""
        return max((each.may_go_ns for each in self.pruned if each.store == store), default=0)

    def must_go_ns(self, store: str) -> int:
        """What is older must be missing from a store."""
        return max((each.must_go_ns for each in self.pruned if each.store == store), default=0)

    def _went(self, ack: Ack) -> bool:
        gone = [each.at_s for each in self.replaced if each.store == ack.store]
        if ack.confirms or not gone:
            return False
        return not any(ack.at_s <= each.upto_s and each.seen_s <= gone[0] for each in self.synced)
