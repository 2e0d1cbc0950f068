"""The messages and answers of applications: plain values, without the schema's classes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from storenode.client.errors import MessageRejectedError, NotConfirmedError, PublishError
from storenode.client.messages import new_message, outcome_name
from storenode.client.sds_messages import SdsView, sds_view
from storenode.common.errors import ArgumentError
from storenode.connection.arguments import check_bytes, check_content_topic, check_text
from storenode.message.hashing import message_hash
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS
from storenode.message.text import check_nanoseconds
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1.store_pb2 import PublishResult, SdsStoredMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHOWN_DIGITS: Final = 12

Time = datetime | int
"""A time: a ``datetime`` with a zone, or nanoseconds since 1970."""


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A message, as it is published and as it is received.

    ``payload`` are any bytes, up to 150 KiB together with the other fields. The content topic says
    what the message is about, such as ``/my-app/1/chat/proto``; the pubsub topic names the shard of
    the network. ``timestamp`` is the time of creation in nanoseconds since 1970: now, unless it is
    given. ``ephemeral`` messages reach those who follow at that moment and are never stored.

    Examples:
        ```python
        Message(b"hello", "/my-app/1/chat/proto")
        ```
    """

    payload: bytes
    content_topic: str
    pubsub_topic: str = DEFAULT_PUBSUB_TOPIC
    timestamp: int = field(default_factory=time.time_ns)
    meta: bytes | None = None
    version: int | None = None
    ephemeral: bool = False
    rate_limit_proof: bytes | None = None

    def __post_init__(self) -> None:
        check_bytes("payload", self.payload, ".encode()")
        check_content_topic(self.content_topic)
        check_text("pubsub topic", self.pubsub_topic)
        if self.meta is not None:
            check_bytes("meta", self.meta, ".encode()")
        timestamp: object = self.timestamp
        if not isinstance(timestamp, int):
            hint = f": write {nanoseconds(timestamp)}" if isinstance(timestamp, datetime) else ""
            raise ArgumentError(
                f"The timestamp is {type(timestamp).__name__}, not a number of nanoseconds{hint}."
            )
        nanoseconds(timestamp)

    def __repr__(self) -> str:
        digest = f"0x{self.hash.hex()[:_SHOWN_DIGITS]}…" if self.timestamp else "none"
        return (
            f"Message({self.content_topic!r}, {len(self.payload):,} bytes, "
            f"{self.time:%Y-%m-%dT%H:%M:%S.%fZ}, hash {digest})"
        )

    @property
    def hash(self) -> bytes:
        """The 32 bytes that name the message at every node, computed from its fields.

        Source: 14/WAKU2-MESSAGE, "Deterministic message hashing".

        Raises:
            ValueError: The timestamp is 0.
        """
        return message_hash(
            self.pubsub_topic, self.payload, self.content_topic, self.meta, self.timestamp
        )

    @property
    def time(self) -> datetime:
        """The timestamp in UTC, cut to microseconds."""
        return _EPOCH + timedelta(microseconds=self.timestamp // 1_000)

    def encode(self) -> WakuMessageAndTopic:
        """Return the message in the schema's own class."""
        return new_message(
            self.payload,
            self.content_topic,
            self.pubsub_topic,
            self.timestamp,
            meta=self.meta,
            ephemeral=self.ephemeral or None,
            version=self.version,
            rate_limit_proof=self.rate_limit_proof,
        )

    @classmethod
    def decode(cls, item: WakuMessageKeyValue | WakuMessageAndTopic) -> Message:
        """Convert a message that a node has sent from the schema's own class."""
        message = item.message
        proof = message.rate_limit_proof if message.HasField("rate_limit_proof") else None
        # Not by the constructor, which refuses what others may have published.
        decoded, put = object.__new__(cls), object.__setattr__
        put(decoded, "payload", message.payload)
        put(decoded, "content_topic", message.content_topic)
        put(decoded, "pubsub_topic", item.pubsub_topic)
        put(decoded, "timestamp", message.timestamp)
        put(decoded, "meta", message.meta if message.HasField("meta") else None)
        put(decoded, "version", message.version if message.HasField("version") else None)
        put(decoded, "ephemeral", message.ephemeral)
        put(decoded, "rate_limit_proof", proof)
        return decoded


def encode_message(message: object) -> WakuMessageAndTopic:
    """Return a message in the schema's own class, and refuse what is none."""
    if not isinstance(message, Message):
        raise ArgumentError(
            f"{type(message).__name__} is not a message: publish a Message(payload, content_topic)."
        )
    return message.encode()


class Outcome(StrEnum):
    """The decision of a node about a message."""

    STORED = "STORED"
    """The message is durable."""

    DUPLICATE = "DUPLICATE"
    """The message was stored before, which is as good as stored."""

    EPHEMERAL = "EPHEMERAL"
    """The message was delivered to the current followers of the node, and not stored."""

    REJECTED = "REJECTED"
    """The message was refused; the result has the reason."""

    UNCONFIRMED = "UNCONFIRMED"
    """The message is durable, but too few other stores confirmed it in time."""

    UNKNOWN = "UNKNOWN"
    """An outcome that a newer node added."""


@dataclass(frozen=True, slots=True)
class Published:
    """A node's answer for one message; ``confirms`` counts other stores that hold it."""

    hash: bytes
    outcome: Outcome
    reason: str = ""
    confirms: int = 0

    @property
    def stored(self) -> bool:
        """True when the message is durable at the node."""
        return self.outcome in {Outcome.STORED, Outcome.DUPLICATE, Outcome.UNCONFIRMED}

    @classmethod
    def decode(cls, result: PublishResult) -> Published:
        """Read the answer from the schema's own class."""
        name = outcome_name(result)
        known = Outcome(name) if name in Outcome.__members__ else Outcome.UNKNOWN
        return cls(result.message_hash, known, result.reason, result.confirms)

    def check(self, message: Message) -> Published:
        """Return the answer itself; raise if it is a refusal.

        Raises:
            MessageRejectedError: The node does not take the message.
            NotConfirmedError: Too few other stores confirmed it in time.
            PublishError: The outcome is one that a newer node added.
        """
        if self.outcome is Outcome.REJECTED:
            raise MessageRejectedError(message, self, f"The message was rejected: {self.reason}.")
        if self.outcome is Outcome.UNCONFIRMED:
            raise NotConfirmedError(message, self, f"The message is not confirmed: {self.reason}.")
        if self.outcome is Outcome.UNKNOWN:
            raise PublishError(message, self, "The outcome is not known here: use a newer client.")
        return self


@dataclass(frozen=True, slots=True)
class Page:
    """Messages, and the cursor that continues after them; ``None`` where nothing follows.

    ``live`` is true for a page of a follower that has caught up. ``coverage`` says how complete the
    answer is, where that was asked for and the node can tell.
    """

    messages: list[Message]
    cursor: bytes | None
    live: bool = False
    coverage: AnswerCoverage | None = None


@dataclass(frozen=True, slots=True)
class SdsMessage(SdsView):
    """An SDS message that a store holds; ``message`` is the one that carries it."""

    message: Message

    @classmethod
    def decode(cls, stored: SdsStoredMessage) -> SdsMessage | None:
        """Read a node's answer; ``None`` where the payload is no SDS message."""
        if (view := sds_view(stored.stored.message.payload)) is None:
            return None
        names = view.channel_id, view.message_id, view.sender_id
        message = Message.decode(stored.stored)
        return cls(*names, view.lamport, view.parents, view.content, view.proven, message)


@dataclass(frozen=True, slots=True)
class SdsResult:
    """SDS messages that were found, in the order of the answer, and what the node lacks.

    ``missing`` are (message ID, hint or ``None``). ``truncated`` is true when a limit left
    something out: more claimants of an ID than are returned, or more of the past than was wanted.
    ``coverage`` says how complete the store is, where that was asked for and the node can tell.
    """

    messages: list[SdsMessage]
    missing: list[tuple[str, bytes | None]]
    truncated: bool
    coverage: AnswerCoverage | None = None


def entries_of(found: Iterable[HistoryEntry]) -> list[tuple[str, bytes | None]]:
    """Return message IDs with their hints, from the schema's own class."""
    return [
        (each.message_id, each.retrieval_hint if each.HasField("retrieval_hint") else None)
        for each in found
    ]


def check_hashes(hashes: Iterable[bytes]) -> list[bytes]:
    """Return message hashes without those that come twice.

    Raises:
        ArgumentError: They are no list of 32 bytes each.
    """
    check_list("hashes", hashes)
    found = list(dict.fromkeys(hashes))
    for each in found:
        check_bytes("hash", each, "bytes.fromhex()")
        if len(each) != HASH_BYTES:
            raise ArgumentError(f"The hash 0x{each.hex()} has {len(each)} bytes, not {HASH_BYTES}.")
    return found


def check_list(name: str, values: object) -> None:
    """Refuse an argument that is one value instead of several."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ArgumentError(f"The {name} are one value: pass a list of them.")


def check_range(start: Time | None, end: Time | None) -> tuple[int | None, int | None]:
    """Return the ends of a time range in nanoseconds since 1970.

    Raises:
        ArgumentError: One of them is no time, or the range ends before it begins.
    """
    start_ns, end_ns = nanoseconds(start), nanoseconds(end)
    if start_ns is not None and end_ns is not None and end_ns < start_ns:
        raise ArgumentError(f"The range ends at {end}, before it begins at {start}: swap them.")
    return start_ns, end_ns


def nanoseconds(moment: Time | None) -> int | None:
    """Return a time in nanoseconds since 1970.

    Raises:
        ArgumentError: It has no zone, is no time, or looks like seconds or milliseconds.
    """
    if moment is None:
        return None
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise ArgumentError(
                f"The time {moment} has no zone: write one, such as datetime.now(UTC)."
            )
        return (moment - _EPOCH) // _MICROSECOND * 1_000
    given: object = moment
    if not isinstance(given, int) or abs(given) > MAX_TIMESTAMP_NS:
        raise ArgumentError(f"The time {moment!r} is no datetime and no number of nanoseconds.")
    try:
        return check_nanoseconds(moment)
    except ValueError as error:
        raise ArgumentError(f"{error}.") from None
