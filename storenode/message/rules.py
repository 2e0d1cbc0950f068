"""The rules by which a node accepts a message, as a sender can check them too.

In the order in which a refusal names them:

1. There is a message that protobuf can read, with a pubsub and a content topic in UTF-8 that are
   not empty, hold no NUL and are not too long; with shards configured, the pubsub topic names one
   of them.
2. Its timestamp is set, greater than 0, not behind the retention horizon, not too far in the
   past (publishers only), and not too far ahead of the node's clock.
3. ``meta`` and the whole encoded message are within their sizes. Unknown fields are dropped
   first and count for nothing.

Source: 14/WAKU2-MESSAGE, 13/WAKU2-STORE "Message eligibility", and the node's contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from storenode.message.limits import (
    MAX_MESSAGE_BYTES,
    MAX_META_BYTES,
    MAX_TIMESTAMP_NS,
    MAX_TOPIC_BYTES,
    NS_PER_S,
    UNCHECKED_DRIFT_NS,
)
from storenode.message.topics import parse_shard

_MAX_LISTED_SHARDS: Final = 8


class Reason(StrEnum):
    """The reasons to refuse a message: stable names, fit for a metric label."""

    MALFORMED = "malformed"
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
    EPHEMERAL = "ephemeral"
    """An ephemeral message from a source that may not deliver any."""
    OUTSIDE_TOPICS = "outside_topics"
    """A message on topics that the client may not publish to."""
    CONFLICT = "conflict"
    """A message with other content has the same hash."""


class Refusal(NamedTuple):
    """A refusal: a label for the metrics, one of `Reason`, and a sentence for the sender."""

    label: str
    sentence: str


MALFORMED: Final = Refusal(
    Reason.MALFORMED, "the entry is no WakuMessageAndTopic: encode it as the schema says"
)
TOPIC_NOT_UTF8: Final = Refusal(
    Reason.MALFORMED, "a topic of the message is not UTF-8: name topics in UTF-8"
)
MISSING_MESSAGE: Final = Refusal(
    Reason.MISSING_MESSAGE, "the entry holds no message: set the field `message`"
)
CONFLICT: Final = Refusal(Reason.CONFLICT, "another message has this hash; change its timestamp")


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for a source of messages, and the limits that hold for all.

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


class Times:
    """The timestamps that a policy accepts at one moment: ``oldest_ns`` to ``newest_ns``."""

    __slots__ = ("_horizon_ns", "_now_ns", "_past_ns", "newest_ns", "oldest_ns")

    def __init__(self, policy: Policy, now_ns: int) -> None:
        drift_ns = UNCHECKED_DRIFT_NS if policy.max_drift_ns is None else policy.max_drift_ns
        bounds_past = policy.publisher and policy.max_drift_ns is not None
        self._now_ns = now_ns
        self._horizon_ns = 0 if policy.below_horizon else policy.horizon_ns or 0
        self._past_ns = now_ns - drift_ns if bounds_past else 0
        self.oldest_ns = max(1, self._horizon_ns, self._past_ns)
        self.newest_ns = min(MAX_TIMESTAMP_NS, now_ns + drift_ns)

    def problem(self, timestamp: int | None) -> Refusal | None:
        """Judge a timestamp in nanoseconds; ``None``: the message has none."""
        if timestamp is not None and self.oldest_ns <= timestamp <= self.newest_ns:
            return None
        if timestamp is None:
            return Refusal(
                Reason.MISSING_TIMESTAMP,
                "the message has no timestamp: set the time of creation in Unix nanoseconds",
            )
        if timestamp <= 0:
            return Refusal(
                Reason.BAD_TIMESTAMP,
                f"timestamp {timestamp} is not greater than 0: set it in Unix nanoseconds",
            )
        if timestamp > self.newest_ns:
            return self._too_new(timestamp)
        return self._too_old(timestamp)

    def is_late(self, timestamp: int | None) -> bool:
        """Return True if a timestamp is refused for the publisher's limit alone."""
        oldest_ns = max(1, self._horizon_ns)
        return timestamp is not None and oldest_ns <= timestamp < self._past_ns

    def _too_new(self, timestamp: int) -> Refusal:
        ahead, allowed = timestamp - self._now_ns, self.newest_ns - self._now_ns
        return Refusal(
            Reason.TOO_NEW,
            f"timestamp is {_seconds(ahead)} later than this node's clock, which allows "
            f"{_seconds(allowed)}: check the publisher's clock",
        )

    def _too_old(self, timestamp: int) -> Refusal:
        if timestamp < self._past_ns:
            behind, allowed = self._now_ns - timestamp, self._now_ns - self._past_ns
            return Refusal(
                Reason.TOO_OLD,
                f"timestamp is {_seconds(behind)} earlier than this node's clock, which allows "
                f"{_seconds(allowed)}: publish messages when they are made",
            )
        return Refusal(
            Reason.BELOW_HORIZON,
            f"timestamp is {_seconds(self._horizon_ns - timestamp)} older than the oldest message "
            "that this node keeps: send it to a node with a longer retention",
        )


def size_problem(meta_bytes: int, message_bytes: int, policy: Policy) -> Refusal | None:
    """Judge the sizes of ``meta`` and of the encoded message without unknown fields."""
    if meta_bytes > policy.max_meta_bytes:
        return Refusal(
            Reason.META_TOO_LONG,
            f"meta has {meta_bytes} bytes: send at most {policy.max_meta_bytes}",
        )
    if message_bytes > policy.max_message_bytes:
        return Refusal(
            Reason.TOO_LARGE,
            f"the encoded message has {message_bytes} bytes: send at most "
            f"{policy.max_message_bytes}",
        )
    return None


def topic_problem(
    pubsub: bytes, content: bytes, max_bytes: int, cluster: int | None, shards: frozenset[int]
) -> Refusal | None:
    """Judge a pair of topics, in UTF-8."""
    return (
        _name_problem("pubsub", pubsub, max_bytes)
        or _name_problem("content", content, max_bytes)
        or _shard_problem(pubsub.decode(), cluster, shards)
    )


def _name_problem(kind: str, topic: bytes, max_bytes: int) -> Refusal | None:
    if not topic:
        return Refusal(
            Reason.MISSING_TOPIC, f"the {kind} topic is empty: name the one to publish on"
        )
    if len(topic) > max_bytes:
        return Refusal(
            Reason.TOPIC_TOO_LONG,
            f"the {kind} topic has {len(topic)} bytes: use at most {max_bytes}",
        )
    if b"\0" in topic:
        return Refusal(
            Reason.TOPIC_NUL,
            f"the {kind} topic has a NUL character at byte {topic.index(0)}: leave it out",
        )
    return None


def _shard_problem(
    pubsub_topic: str, cluster: int | None, shards: frozenset[int]
) -> Refusal | None:
    place = parse_shard(pubsub_topic)
    if not shards or (place is not None and place[0] == cluster and place[1] in shards):
        return None
    given = "names no shard" if place is None else f"is shard {place[1]} of cluster {place[0]}"
    return Refusal(
        Reason.WRONG_SHARD,
        f"the pubsub topic {given}: this node keeps {_shard_list(shards)} of cluster {cluster}",
    )


def _seconds(duration_ns: int) -> str:
    # Plain decimal: the exponent form of large floats says nothing to a person.
    text = f"{duration_ns / NS_PER_S:.3f}".rstrip("0").rstrip(".")
    return f"{text} s" if text != "0" else f"{duration_ns} ns"


def _shard_list(shards: frozenset[int]) -> str:
    listed = ", ".join(map(str, sorted(shards)[:_MAX_LISTED_SHARDS]))
    more = len(shards) - _MAX_LISTED_SHARDS
    return f"shards {listed} and {more} more" if more > 0 else f"shards {listed}"
