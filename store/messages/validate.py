"""The door: which messages are stored, and in which form.

Every source (client, transfer, gossip, resume, restore) comes through `admit`; what differs
between them is data in `Policy`. The rules, in the order in which a refusal names them:

1. There is a message, with a pubsub and a content topic that are not empty, hold no NUL and are
   not too long; with shards configured, the pubsub topic names one of them.
2. Its timestamp is set, greater than 0, not behind the retention horizon, not too far in the
   past (publishers only), and not too far ahead of the node's clock.
3. ``meta`` and the whole encoded message are within their sizes. Unknown fields are dropped
   first and count for nothing.

Messages come decoded (`admit`) or encoded (`admit_encoded`); the verdict is the same. Encoded ones
of the usual form are judged without an object for each of them, at half the cost.

Source: 14/WAKU2-MESSAGE, 13/WAKU2-STORE "Message eligibility", and the node's contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from google.protobuf.message import DecodeError

from store.messages.record import RecordBatch, frame_layout, pubsub_suffix, split_frame
from store.messages.shapes import LEAD_BYTES, TIME_BYTES, read_lead, read_names, read_times
from storenode.message.hashing import message_hash, pack_timestamp
from storenode.message.limits import (
    MAX_CACHED_TOPICS,
    MAX_MESSAGE_BYTES,
    MAX_META_BYTES,
    MAX_SHAPE_BYTES,
    MAX_TIMESTAMP_NS,
    MAX_TOPIC_BYTES,
    NS_PER_S,
    UNCHECKED_DRIFT_NS,
)
from storenode.message.topics import parse_shard, topic_key
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

_MAX_LISTED_SHARDS = 8


class Reason(StrEnum):
    """Why a message is refused: stable names, fit for a metric label."""

    MISSING_MESSAGE = "missing_message"
    MISSING_TOPIC = "missing_topic"
    TOPIC_NUL = "topic_nul"
    TOPIC_TOO_LONG = "topic_too_long"
    WRONG_SHARD = "wrong_shard"
    MISSING_TIMESTAMP = "missing_timestamp"
    BAD_TIMESTAMP = "bad_timestamp"
    BELOW_HORIZON = "below_horizon"
    TOO_OLD = "too_old"
    TOO_NEW = "too_new"
    META_TOO_LONG = "meta_too_long"
    TOO_LARGE = "too_large"


class Verdict(IntEnum):
    """What became of one message."""

    ACCEPTED = 1
    DUPLICATE = 2
    EPHEMERAL = 3
    REJECTED = 4


class MalformedMessage(ValueError):
    """The bytes of an encoded message are no ``WakuMessageAndTopic``."""


class Rejection(NamedTuple):
    """A refusal: the reason, and one sentence for whoever sent the message."""

    reason: Reason
    sentence: str


class Ephemeral(NamedTuple):
    """A message that is handed to live followers and never stored.

    ``names`` are its pubsub and content topic; ``frame`` is laid out as in `messages.record`.
    """

    names: tuple[str, str]
    topic_key: bytes
    frame: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Policy:
    """What a source of messages may do, and the limits that hold for all.

    ``max_drift_ns``: distance from the node's clock, ``None`` with the drift check off (then a
    day ahead is the bound). ``publisher``: that distance bounds the past too. ``horizon_ns``:
    absolute time below which nothing is kept, ``None`` without retention by age;
    ``below_horizon`` lets a restore go behind it. ``shards`` of ``cluster``: topics outside them
    are refused; empty accepts every topic.
    """

    max_drift_ns: int | None
    horizon_ns: int | None = None
    publisher: bool = True
    below_horizon: bool = False
    cluster: int | None = None
    shards: frozenset[int] = frozenset()
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_meta_bytes: int = MAX_META_BYTES
    max_topic_bytes: int = MAX_TOPIC_BYTES


@dataclass(slots=True)
class Admission:
    """The verdict on each message of a request, as columns in request order.

    ``positions[i]`` depends on the verdict: ACCEPTED and DUPLICATE give the position in ``batch``
    (of the first copy), EPHEMERAL the position in ``ephemerals``, REJECTED -1, with the refusal
    in ``rejections[i]``. ``hashes[i]`` is empty when the hash cannot be computed: no message, or
    no timestamp.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    batch: RecordBatch = field(default_factory=RecordBatch)
    ephemerals: list[Ephemeral] = field(default_factory=list)
    rejections: dict[int, Rejection] = field(default_factory=dict)


def admit(messages: Sequence[WakuMessageAndTopic], now_ns: int, policy: Policy) -> Admission:
    """Judge the messages of one request and lay out those that are accepted.

    ``now_ns`` is the node's clock in Unix nanoseconds. The messages lose their unknown fields.
    Never raises for what a message holds.
    """
    door = _Door(now_ns, policy)
    for index, message in enumerate(messages):
        door.judge(index, message)
    return door.result


def admit_encoded(messages: Sequence[bytes], now_ns: int, policy: Policy) -> Admission:
    """`admit` for encoded ``WakuMessageAndTopic`` messages.

    Raises:
        MalformedMessage: one of them is none.
    """
    return _Door(now_ns, policy).admit_encoded(messages)


_ACCEPTED = Verdict.ACCEPTED
_NO_TIME = bytes(TIME_BYTES)


class _Topic(NamedTuple):
    """What follows from a (pubsub, content) pair."""

    problem: Rejection | None
    pubsub: bytes
    content: bytes
    key: bytes
    suffix: bytes
    names: tuple[str, str]


_Layout = tuple[bytes, bytes]
"""What stands before and after the hash in a head."""

_Recognized = tuple[_Topic, bytes, bytes, _Layout]
"""A message that need not be decoded: topic, payload, tail, layout of its head."""

_Shape = tuple[int, int, int, int, _Layout]
"""Where payload, ``before``, time and ``after`` begin (`messages.shapes`), and the layout."""

_NO_TOPIC = _Topic(None, b"", b"", b"", b"", ("", ""))
_UNRECOGNIZED: _Recognized = (_NO_TOPIC, b"", b"", (b"", b""))


class _Door:
    def __init__(self, now_ns: int, policy: Policy) -> None:
        self._now_ns = now_ns
        self._policy = policy
        drift_ns = UNCHECKED_DRIFT_NS if policy.max_drift_ns is None else policy.max_drift_ns
        self._horizon_ns = policy.horizon_ns or 0
        if policy.below_horizon:
            self._horizon_ns = 0
        self._past_ns = 0
        if policy.publisher and policy.max_drift_ns is not None:
            self._past_ns = now_ns - drift_ns
        self._oldest_ns = max(1, self._horizon_ns, self._past_ns)
        self._newest_ns = min(MAX_TIMESTAMP_NS, now_ns + drift_ns)
        self.result = Admission()
        self._batch = self.result.batch
        self._positions: dict[bytes, int] = {}
        self._ephemeral_positions: dict[bytes, int] = {}

    def admit_encoded(self, messages: Sequence[bytes]) -> Admission:
        # The hot path of the node: columns, not messages, and no object for each that is decoded.
        seen, times, topics = self._recognize(messages)
        timestamps, valid = read_times(times)
        usable = valid & (self._oldest_ns <= timestamps) & (timestamps <= self._newest_ns)
        stamps = timestamps.astype(">i8").view("V8").tolist()
        join = b"".join
        digests = [
            sha256(join((topic[1], payload, topic[2], stamp))).digest()
            for (topic, payload, _, _), stamp in zip(seen, stamps, strict=True)
        ]
        if bool(usable.all()) and len(set(digests)) == len(digests):
            self._keep_all(seen, timestamps.tolist(), digests, topics)
            return self.result
        columns = zip(messages, seen, timestamps.tolist(), usable.tolist(), digests, strict=True)
        for index, (message, recognized, timestamp, is_usable, digest) in enumerate(columns):
            if is_usable:
                topic, payload, tail, (before, after) = recognized
                self._keep(timestamp, topic, digest, (before + digest + after, payload, tail))
            else:
                self._judge_encoded(index, message)
        return self.result

    def _recognize(
        self, messages: Sequence[bytes]
    ) -> tuple[list[_Recognized], list[bytes], list[_Topic]]:
        """What can be read off without decoding, the times (no time: it cannot), and the topics."""
        shapes: dict[tuple[bytes, int], _Shape | None] = {}
        known: dict[tuple[bytes, bytes], _Topic | None] = {}
        seen: list[_Recognized] = []
        times: list[bytes] = []
        for message in messages:
            sizes = message[:LEAD_BYTES], len(message)
            try:
                shape = shapes[sizes]
            except KeyError:
                shape = shapes[sizes] = self._shape_of(*sizes)
            if shape is not None:
                start, before, time, after, layout = shape
                around = message[before:time], message[after:]
                try:
                    topic = known[around]
                except KeyError:
                    topic = known[around] = self._topic_of(*around)
                if topic is not None:
                    tail = message[before:after] + topic[4]
                    seen.append((topic, message[start:before], tail, layout))
                    times.append(message[time:after])
                    continue
            seen.append(_UNRECOGNIZED)
            times.append(_NO_TIME)
        return seen, times, [topic for topic in known.values() if topic is not None]

    def _shape_of(self, lead: bytes, message_bytes: int) -> _Shape | None:
        found = read_lead(lead)
        if found is None or found.after > message_bytes:
            return None
        start, before, time, after, body_bytes = found
        if body_bytes > self._policy.max_message_bytes:
            return None
        # The field of the pubsub topic is as long there as it is here.
        layout = frame_layout(before - start, body_bytes, message_bytes - after)
        return start, before, time, after, layout[:2]

    def _keep_all(
        self,
        seen: Sequence[_Recognized],
        timestamps: list[int],
        digests: list[bytes],
        topics: Sequence[_Topic],
    ) -> None:
        """Accept messages of which none is there twice: the whole request."""
        result, batch = self.result, self._batch
        result.verdicts = [_ACCEPTED] * len(seen)
        result.positions = list(range(len(seen)))
        result.hashes = digests
        batch.timestamps, batch.hashes = timestamps, digests.copy()
        batch.topic_keys = [topic[3] for topic, _, _, _ in seen]
        batch.heads = [
            before + digest + after
            for digest, (_, _, _, (before, after)) in zip(digests, seen, strict=True)
        ]
        batch.payloads = [payload for _, payload, _, _ in seen]
        batch.tails = [tail for _, _, tail, _ in seen]
        batch.topics = {topic.key: topic.names for topic in topics}

    def _topic_of(self, before: bytes, after: bytes) -> _Topic | None:
        names = read_names(before, after)
        topic = None if names is None else self._topic(names)
        return None if topic is None or topic.problem else topic

    def _judge_encoded(self, index: int, message: bytes) -> None:
        try:
            item = WakuMessageAndTopic.FromString(message)
        except DecodeError:
            raise MalformedMessage(f"entry {index} is no WakuMessageAndTopic") from None
        self.judge(index, item)

    def judge(self, index: int, item: WakuMessageAndTopic) -> None:
        """Judge the next message of the request."""
        item.DiscardUnknownFields()
        message = item.message
        names = (item.pubsub_topic, message.content_topic)
        topic = self._topic(names)
        timestamp, meta = message.timestamp, message.meta
        is_timely = self._oldest_ns <= timestamp <= self._newest_ns
        if topic.problem or not is_timely or len(meta) > self._policy.max_meta_bytes:
            self._reject(index, item, topic)
            return
        body = message.SerializeToString()
        if len(body) > self._policy.max_message_bytes:
            self._reject(index, item, topic)
            return
        payload = message.payload
        preimage = (topic.pubsub, payload, topic.content, meta, pack_timestamp(timestamp))
        digest = sha256(b"".join(preimage)).digest()
        head, tail = split_frame(digest, body, len(payload), topic.suffix)
        if message.ephemeral:
            frame = head + payload + tail
            self._decide(Verdict.EPHEMERAL, self._relay(topic, digest, frame), digest)
        else:
            self._keep(timestamp, topic, digest, (head, payload, tail))

    def _keep(
        self, timestamp: int, topic: _Topic, digest: bytes, parts: tuple[bytes, bytes, bytes]
    ) -> None:
        position = self._positions.get(digest)
        if position is not None:
            self._decide(Verdict.DUPLICATE, position, digest)
            return
        batch = self._batch
        self._positions[digest] = position = len(batch.hashes)
        batch.timestamps.append(timestamp)
        batch.hashes.append(digest)
        batch.topic_keys.append(topic.key)
        head, payload, tail = parts
        batch.heads.append(head)
        batch.payloads.append(payload)
        batch.tails.append(tail)
        batch.topics[topic.key] = topic.names
        self._decide(_ACCEPTED, position, digest)

    def _relay(self, topic: _Topic, digest: bytes, frame: bytes) -> int:
        relayed = self.result.ephemerals
        position = self._ephemeral_positions.setdefault(digest, len(relayed))
        if position == len(relayed):
            relayed.append(Ephemeral(topic.names, topic.key, frame, digest))
        return position

    def _decide(self, verdict: Verdict, position: int, digest: bytes) -> None:
        result = self.result
        result.verdicts.append(verdict)
        result.positions.append(position)
        result.hashes.append(digest)

    def _reject(self, index: int, item: WakuMessageAndTopic, topic: _Topic) -> None:
        self._decide(Verdict.REJECTED, -1, _hash_if_any(item))
        self.result.rejections[index] = self._refusal(item, topic)

    def _refusal(self, item: WakuMessageAndTopic, topic: _Topic) -> Rejection:
        if not item.HasField("message"):
            return Rejection(
                Reason.MISSING_MESSAGE, "the entry holds no message: set the field `message`"
            )
        return (
            topic.problem
            or self._timestamp_problem(item)
            or self._size_problem(len(item.message.meta), item.message.ByteSize())
        )

    def _timestamp_problem(self, item: WakuMessageAndTopic) -> Rejection | None:
        timestamp = item.message.timestamp
        if not item.message.HasField("timestamp"):
            return Rejection(
                Reason.MISSING_TIMESTAMP,
                "the message has no timestamp: set the time of creation in Unix nanoseconds",
            )
        if timestamp <= 0:
            return Rejection(
                Reason.BAD_TIMESTAMP,
                f"timestamp {timestamp} is not greater than 0: set it in Unix nanoseconds",
            )
        if timestamp > self._newest_ns:
            return self._too_new(timestamp)
        if timestamp < self._oldest_ns:
            return self._too_old(timestamp)
        return None

    def _too_new(self, timestamp: int) -> Rejection:
        ahead, allowed = timestamp - self._now_ns, self._newest_ns - self._now_ns
        return Rejection(
            Reason.TOO_NEW,
            f"timestamp is {_seconds(ahead)} later than this node's clock, which allows "
            f"{_seconds(allowed)}: check the publisher's clock",
        )

    def _too_old(self, timestamp: int) -> Rejection:
        if timestamp < self._past_ns:
            behind, allowed = self._now_ns - timestamp, self._now_ns - self._past_ns
            return Rejection(
                Reason.TOO_OLD,
                f"timestamp is {_seconds(behind)} earlier than this node's clock, which allows "
                f"{_seconds(allowed)}: publish messages when they are made",
            )
        return Rejection(
            Reason.BELOW_HORIZON,
            f"timestamp is {_seconds(self._horizon_ns - timestamp)} older than the oldest message "
            "that this node keeps: send it to a node with a longer retention",
        )

    def _size_problem(self, meta_bytes: int, message_bytes: int) -> Rejection:
        if meta_bytes > self._policy.max_meta_bytes:
            return Rejection(
                Reason.META_TOO_LONG,
                f"meta has {meta_bytes} bytes: send at most {self._policy.max_meta_bytes}",
            )
        return Rejection(
            Reason.TOO_LARGE,
            f"the encoded message has {message_bytes} bytes: send at most "
            f"{self._policy.max_message_bytes}",
        )

    def _topic(self, names: tuple[str, str]) -> _Topic:
        policy = self._policy
        small = len(names[0]) + len(names[1]) <= MAX_SHAPE_BYTES
        derive = _derive_once if small else _derive
        return derive(names, policy.max_topic_bytes, policy.cluster, policy.shards)


def _derive(
    names: tuple[str, str], max_bytes: int, cluster: int | None, shards: frozenset[int]
) -> _Topic:
    pubsub, content = names[0].encode(), names[1].encode()
    problem = (
        _topic_problem("pubsub", pubsub, max_bytes)
        or _topic_problem("content", content, max_bytes)
        or _shard_problem(names[0], cluster, shards)
    )
    key, suffix = topic_key(pubsub, content), pubsub_suffix(pubsub)
    return _Topic(problem, pubsub, content, key, suffix, names)


_derive_once = lru_cache(maxsize=MAX_CACHED_TOPICS)(_derive)


def _topic_problem(kind: str, topic: bytes, max_bytes: int) -> Rejection | None:
    if not topic:
        return Rejection(
            Reason.MISSING_TOPIC, f"the {kind} topic is empty: name the one to publish on"
        )
    if len(topic) > max_bytes:
        return Rejection(
            Reason.TOPIC_TOO_LONG,
            f"the {kind} topic has {len(topic)} bytes: use at most {max_bytes}",
        )
    if b"\0" in topic:
        return Rejection(
            Reason.TOPIC_NUL,
            f"the {kind} topic has a NUL character at byte {topic.index(0)}: leave it out",
        )
    return None


def _shard_problem(
    pubsub_topic: str, cluster: int | None, shards: frozenset[int]
) -> Rejection | None:
    place = parse_shard(pubsub_topic)
    if not shards or (place is not None and place[0] == cluster and place[1] in shards):
        return None
    given = "names no shard" if place is None else f"is shard {place[1]} of cluster {place[0]}"
    return Rejection(
        Reason.WRONG_SHARD,
        f"the pubsub topic {given}: this node keeps {_shard_list(shards)} of cluster {cluster}",
    )


def _hash_if_any(item: WakuMessageAndTopic) -> bytes:
    message = item.message
    if message.timestamp == 0:
        return b""
    return message_hash(
        item.pubsub_topic, message.payload, message.content_topic, message.meta, message.timestamp
    )


def _seconds(duration_ns: int) -> str:
    # Plain decimal: the exponent form of large floats says nothing to a person.
    text = f"{duration_ns / NS_PER_S:.3f}".rstrip("0").rstrip(".")
    return f"{text} s" if text != "0" else f"{duration_ns} ns"


def _shard_list(shards: frozenset[int]) -> str:
    listed = ", ".join(map(str, sorted(shards)[:_MAX_LISTED_SHARDS]))
    more = len(shards) - _MAX_LISTED_SHARDS
    return f"shards {listed} and {more} more" if more > 0 else f"shards {listed}"
