"""The history of a run: what was published and acknowledged, and which stores lost what by order.

Messages are known by their hash, and compared by a fingerprint; a broken rule is a violation.

Times ending in ``_s`` are of one monotonic clock; those ending in ``_ns`` are Unix times. A *store*
is one life of a node's database: ``b#2`` is the second one of node b.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Published:
    """A message, recorded before it is sent."""

    fingerprint: bytes
    timestamp_ns: int
    publisher: str
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """An answer of a store that it holds a message, and the number of other stores that do."""

    store: str
    at_s: float
    confirms: int


@dataclass(frozen=True, slots=True)
class Synced:
    """The time ``seen_s`` by which each node was seen to hold all acks up to ``upto_s``."""

    upto_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """A run of ``storenode db prune`` at a store.

    Messages older than ``may_go_ns`` may be gone; those older than ``must_go_ns`` are. The times
    are equal unless the command ran over midnight, when the age of a day's partition changes.
    """

    store: str
    may_go_ns: int
    must_go_ns: int


@dataclass(slots=True)
class History:
    """The facts of a run; ``replaced``: when a store was replaced by an empty one."""

    published: dict[bytes, Published] = field(default_factory=dict)
    acks: dict[bytes, list[Ack]] = field(default_factory=dict)
    replaced: dict[str, float] = field(default_factory=dict)
    synced: list[Synced] = field(default_factory=list)
    pruned: list[Pruned] = field(default_factory=list)

    def publish(self, messages: Iterable[tuple[bytes, Published]]) -> None:
        """Record messages, by hash, before they are sent."""
        for digest, message in messages:
            self.published.setdefault(digest, message)

    def acknowledge(self, digests: Iterable[bytes], ack: Ack) -> None:
        """Record an answer: STORED, DUPLICATE or UNCONFIRMED, which all promise the message."""
        for digest in digests:
            self.acks.setdefault(digest, []).append(ack)

    def may_be_lost(self, digest: bytes) -> bool:
        """Return True if nothing promises that a message is still held.

        All stores that acknowledged it did so without a confirmation by another store and were
        then replaced, and it was not seen at the others before that.
        """
        return all(self._is_void(ack) for ack in self.acks.get(digest, ()))

    def may_go_ns(self, store: str) -> int:
        """Return the time before which messages may be missing from a store."""
        return max((each.may_go_ns for each in self.pruned if each.store == store), default=0)

    def must_go_ns(self, store: str) -> int:
        """Return the time before which messages must be missing from a store."""
        return max((each.must_go_ns for each in self.pruned if each.store == store), default=0)

    def _is_void(self, ack: Ack) -> bool:
        gone_s = self.replaced.get(ack.store)
        if ack.confirms or gone_s is None:
            return False
        return not any(ack.at_s <= each.upto_s and each.seen_s <= gone_s for each in self.synced)


def message_hash(message: WakuMessage, pubsub_topic: str) -> bytes:
    """Return the 32-byte hash of a message (14/WAKU2-MESSAGE, deterministic message hashing)."""
    digest = hashlib.sha256(pubsub_topic.encode())
    digest.update(message.payload)
    digest.update(message.content_topic.encode())
    digest.update(message.meta)
    if message.HasField("timestamp"):
        digest.update(message.timestamp.to_bytes(8, "big", signed=True))
    return digest.digest()


def fingerprint(message: WakuMessage, pubsub_topic: str) -> bytes:
    """Return 16 bytes that differ when any field differs, or is set on one side only."""
    fields = (
        pubsub_topic,
        message.payload,
        message.content_topic,
        message.version if message.HasField("version") else None,
        message.timestamp if message.HasField("timestamp") else None,
        message.meta if message.HasField("meta") else None,
        message.rate_limit_proof if message.HasField("rate_limit_proof") else None,
        message.ephemeral if message.HasField("ephemeral") else None,
    )
    return hashlib.sha256(repr(fields).encode()).digest()[:16]


@dataclass(frozen=True, slots=True)
class Violation:
    """The name of a broken rule, and a sentence that says where it is broken."""

    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


def list_violations(rule: str, sentence: str, cases: Collection[object]) -> list[Violation]:
    """Return one violation that counts all cases and names the first few; none without a case."""
    if not cases:
        return []
    shown = ", ".join(
        case.hex() if isinstance(case, bytes) else str(case)
        for case in sorted(cases, key=repr)[:_EXAMPLES]
    )
    more = "" if len(cases) <= _EXAMPLES else ", …"
    return [Violation(rule, f"{len(cases):,} {sentence}: {shown}{more}")]
