"""Admission: the decision which messages the node stores, from any source, and in which form.

A message can come from a client, a gateway to a Waku network (from its relay mesh, or from nwaku by
reconciliation), a transfer, a resume, gossip or a restore. All are judged here,
by the rules of `storenode.message.rules`, then stored by one writer and announced by one feed;
what differs is data:

=================  ====================================  ====================  ================
source             past                                  future                ephemeral
=================  ====================================  ====================  ================
client             publisher's limit, then the horizon   the drift, or a day   to the followers
relay              the horizon                           the drift, or a day   to the followers
transfer, resume,  the horizon                           the drift, or a day   refused
gossip, nwaku
restore            any timestamp greater than 0          the drift, or a day   refused
=================  ====================================  ====================  ================

Only who publishes a message relays it while it is fresh. To another store it is nothing, so a
message that a store sends as ephemeral is refused by name.

Messages are judged in chunks, so that a large request does not keep others waiting; the result
does not depend on where it was cut. What is computed here (hash, content digest, topic key, frame,
SDS metadata) goes with the batch to the database, and is not computed again. Messages of the usual
form (`store.messages.shapes`) are judged as columns, without an object for each of them; the
verdict is the same.

Source: 13/WAKU2-STORE, "Message eligibility", and the node's contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from store.domain.access import Principal
from store.domain.ports import Ephemeral, Source, TopicRights
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch, frame_prefix, index_batch, pubsub_suffix, split_frame
from store.messages.shapes import LEAD_BYTES, TIME_BYTES, Lead, read_lead, read_names, read_times
from store.messages.transfer import DecodedMessage, MalformedMessageError, decode_message
from storenode.message.hashing import (
    content_digest,
    content_digests,
    framed_after_payload,
    length_framed,
    message_hash,
    message_hashes,
    pack_length,
)
from storenode.message.limits import MAX_CACHED_TOPICS, MAX_SHAPE_BYTES
from storenode.message.rules import (
    CONFLICT,
    MISSING_MESSAGE,
    Policy,
    Reason,
    Refusal,
    Times,
    size_problem,
    topic_problem,
)
from storenode.message.topics import topic_key


class Verdict(IntEnum):
    """The decision on one message."""

    ACCEPTED = 1
    DUPLICATE = 2
    EPHEMERAL = 3
    REJECTED = 4


@dataclass(slots=True)
class Admitted:
    """The verdict on each message of a request, as columns in request order.

    ``positions[i]`` is the place in ``batch`` (of the first copy) for ACCEPTED and DUPLICATE, else
    -1. ``hashes[i]`` is empty when the hash cannot be computed: no message, or no timestamp.
    ``refusals`` has the REJECTED ones.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    batch: RecordBatch = field(default_factory=RecordBatch)
    ephemerals: list[Ephemeral] = field(default_factory=list)
    refusals: dict[int, Refusal] = field(default_factory=dict)

    def refuse_conflicts(self, stored: StoreResult) -> None:
        """Reject the messages that the writer has not stored because others have their hashes."""
        if not stored.conflicts:
            return
        for index, position in enumerate(self.positions):
            if position in stored.conflicts:
                self.verdicts[index] = Verdict.REJECTED
                self.positions[index] = -1
                self.refusals[index] = CONFLICT

    def count(self, stored: Sequence[bool]) -> AdmissionCounts:
        """Count the messages by verdict; ``stored`` is the writer's answer for the batch."""
        new = sum(stored)
        ephemeral = self.verdicts.count(Verdict.EPHEMERAL)
        rejected = Counter(refusal.label for refusal in self.refusals.values())
        duplicate = len(self.verdicts) - new - ephemeral - len(self.refusals)
        return AdmissionCounts(new, duplicate, ephemeral, rejected)


class AdmissionCounts(NamedTuple):
    """The number of messages of a request by verdict; ``rejected`` counts by label."""

    stored: int
    duplicate: int
    ephemeral: int
    rejected: Mapping[str, int]


class _Topic(NamedTuple):
    """The data derived from a (pubsub, content) pair."""

    problem: Refusal | None
    pubsub: bytes
    content: bytes
    key: bytes
    suffix: bytes
    names: tuple[str, str]
    framed_pubsub: bytes
    framed_content: bytes
    """The topics as content digests have them; the latter with an empty meta behind it."""


_Recognized = tuple[_Topic, bytes, bytes, bytes]
"""A message that need not be decoded: topic, head, payload, tail."""

_ACCEPTED: Final = Verdict.ACCEPTED
_NO_TIME: Final = bytes(TIME_BYTES)
_NO_TOPIC: Final = _Topic(None, b"", b"", b"", b"", ("", ""), b"", b"")
_UNRECOGNIZED: Final[_Recognized] = (_NO_TOPIC, b"", b"", b"")
_EVERY_TOPIC: Final = TopicRights()
_EPHEMERAL: Final = Refusal(
    Reason.EPHEMERAL,
    "the message is ephemeral, and a store keeps none: send only messages that are kept",
)


class Admission:
    """Judges the messages of one request, chunk by chunk, and lays out those that are accepted.

    ``policy`` is the node's own, as it stands for clients, and ``now_ns`` its clock in Unix
    nanoseconds. A ``client`` brings its topics and limits with it; other sources have none.
    SDS messages are indexed on the way. ``is_retry`` returns True for the content digest of a
    message that was received in time and not stored: how late it is now is not its publisher's
    fault, so only the horizon counts.
    """

    def __init__(
        self,
        policy: Policy,
        now_ns: int,
        source: Source,
        client: Principal | None = None,
        is_retry: Callable[[bytes], bool] = lambda _digest: False,
    ) -> None:
        largest = None if client is None else client.limits.message_bytes
        if largest is not None and largest < policy.max_message_bytes:
            policy = replace(policy, max_message_bytes=largest)
        self._relays = source in (Source.CLIENT, Source.RELAY)
        if source is not Source.CLIENT:
            policy = replace(policy, publisher=False, below_horizon=source is Source.RESTORE)
        self._policy = policy
        self._times = Times(policy, now_ns)
        self._is_retry = is_retry
        self._client = "" if client is None else client.name
        self._rights = _EVERY_TOPIC if client is None else client.topics
        self._positions: dict[bytes, int] = {}
        self._relayed: set[bytes] = set()
        self.admitted = Admitted()

    def admit(self, messages: Sequence[bytes]) -> None:
        """Judge the next messages: encoded ``WakuMessageAndTopic`` entries.

        Never raises for what an entry holds: one that cannot be decoded is refused like any other.
        """
        batch, first = self.admitted.batch, len(self.admitted.batch.hashes)
        # The hot path of the node: columns, not messages, and no object for each that is decoded.
        seen, times, topics = self._recognize(messages)
        timestamps, valid = read_times(times)
        usable = valid & (self._times.oldest_ns <= timestamps)
        usable &= timestamps <= self._times.newest_ns
        stamps = timestamps.astype(">i8").view("V8").tolist()
        at_ns, whole = timestamps.tolist(), usable.tolist()
        stamped = [
            (topic, payload, stamp)
            for (topic, _, payload, _), stamp, is_usable in zip(seen, stamps, whole, strict=True)
            if is_usable
        ]
        hashes = message_hashes(
            [(topic[1], payload, topic[2], stamp) for topic, payload, stamp in stamped]
        )
        digests = content_digests(
            [
                (topic[6], pack_length(len(payload)), payload, topic[7], stamp)
                for topic, payload, stamp in stamped
            ]
        )
        fresh = set(hashes)
        if len(fresh) == len(messages) and (not first or fresh.isdisjoint(batch.hashes)):
            self._keep_all(seen, at_ns, hashes, digests, topics)
        else:
            hashed = zip(hashes, digests, strict=True)
            for message, found, at, is_usable in zip(messages, seen, at_ns, whole, strict=True):
                if is_usable:
                    self._keep(at, found[0], next(hashed), found[1:])
                else:
                    self._judge(message)
        index_batch(batch, first)

    def _recognize(
        self, messages: Sequence[bytes]
    ) -> tuple[list[_Recognized], list[bytes], list[_Topic]]:
        """Return parts that are read without decoding, times (0: undecoded), and topics."""
        largest = self._policy.max_message_bytes
        shapes: dict[bytes, Lead | None] = {}
        known: dict[tuple[bytes, bytes], _Topic | None] = {}
        seen: list[_Recognized] = []
        times: list[bytes] = []
        for message in messages:
            lead = message[:LEAD_BYTES]
            try:
                shape = shapes[lead]
            except KeyError:
                # A message that is shorter than its lead says has nothing after the time.
                shape = shapes[lead] = read_lead(lead)
                if shape is not None and shape.body_bytes > largest:
                    shape = shapes[lead] = None
            if shape is not None:
                start, before, time, after, _, head = shape
                around = message[before:time], message[after:]
                try:
                    topic = known[around]
                except KeyError:
                    names = read_names(*around)
                    topic = known[around] = None if names is None else self._usual_topic(names)
                if topic is not None:
                    tail = message[before:after] + topic[4]
                    seen.append((topic, head, message[start:before], tail))
                    times.append(message[time:after])
                    continue
            seen.append(_UNRECOGNIZED)
            times.append(_NO_TIME)
        return seen, times, [topic for topic in known.values() if topic is not None]

    def _keep_all(
        self,
        seen: Sequence[_Recognized],
        timestamps: list[int],
        hashes: list[bytes],
        digests: list[bytes],
        topics: Sequence[_Topic],
    ) -> None:
        """Accept a chunk without duplicates as a whole."""
        result, batch = self.admitted, self.admitted.batch
        first = len(batch.hashes)
        result.verdicts += [_ACCEPTED] * len(seen)
        result.positions += range(first, first + len(seen))
        result.hashes += hashes
        batch.timestamps += timestamps
        batch.hashes += hashes
        batch.content_digests += digests
        batch.topic_keys += [topic[3] for topic, _, _, _ in seen]
        batch.heads += [head for _, head, _, _ in seen]
        batch.payloads += [payload for _, _, payload, _ in seen]
        batch.tails += [tail for _, _, _, tail in seen]
        batch.topics |= {topic.key: topic.names for topic in topics}

    def _usual_topic(self, names: tuple[str, str]) -> _Topic | None:
        """Return the data of a pair of short topics that is allowed."""
        topic = _topic(names, self._policy)
        return topic if not topic.problem and self._rights.allows(*names) else None

    def _judge(self, message: bytes) -> None:
        """Judge the next message by all rules, one after the other."""
        try:
            item = decode_message(message)
        except MalformedMessageError as error:
            self._reject(error.refusal, error.message_hash)
            return
        topic = _topic((item.pubsub_topic, item.content_topic), self._policy)
        digest = content = b""
        if item.timestamp:
            fields = (topic.pubsub, item.payload, topic.content, item.meta, item.timestamp)
            digest, content = message_hash(*fields), content_digest(*fields)
        refusal = self._problem(item, topic, content)
        if refusal is not None:
            self._reject(refusal, digest)
            return
        head, tail = split_frame(item.body, len(item.payload), topic.suffix)
        if item.ephemeral:
            rest = head + item.payload + tail
            self._relay(topic, digest, content, frame_prefix(len(rest)) + digest + rest)
        else:
            assert item.timestamp is not None, "a message without a timestamp is refused"
            self._keep(item.timestamp, topic, (digest, content), (head, item.payload, tail))

    def _problem(self, item: DecodedMessage, topic: _Topic, content: bytes) -> Refusal | None:
        if not item.has_message:
            return MISSING_MESSAGE
        policy, meta_bytes, message_bytes = self._policy, len(item.meta), len(item.body)
        late = self._times.problem(item.timestamp)
        if late is not None and self._times.is_late(item.timestamp) and self._is_retry(content):
            late = None
        found = topic.problem or late
        if meta_bytes > policy.max_meta_bytes or message_bytes > policy.max_message_bytes:
            found = found or size_problem(meta_bytes, message_bytes, policy)
        if found is None and item.ephemeral and not self._relays:
            return _EPHEMERAL
        if found is None and not self._rights.allows(*topic.names):
            return Refusal(
                Reason.OUTSIDE_TOPICS,
                f"client {self._client} may not publish on these topics: use those that the "
                "operator allowed",
            )
        return found

    def _keep(
        self,
        timestamp: int,
        topic: _Topic,
        digests: tuple[bytes, bytes],
        parts: tuple[bytes, bytes, bytes],
    ) -> None:
        """Accept a message, unless it is in the batch already, or another one with its hash is.

        ``digests``: its hash and its content digest.
        """
        batch, positions = self.admitted.batch, self._positions
        digest, content = digests
        if len(positions) < len(batch.hashes):  # an earlier chunk was kept as a whole
            positions.update((known, place) for place, known in enumerate(batch.hashes))
        position = positions.get(digest)
        if position is not None:
            if batch.content_digests[position] == content:
                self._decide(Verdict.DUPLICATE, position, digest)
            else:
                self._reject(CONFLICT, digest)
            return
        positions[digest] = position = len(batch.hashes)
        batch.timestamps.append(timestamp)
        batch.hashes.append(digest)
        batch.content_digests.append(content)
        batch.topic_keys.append(topic.key)
        head, payload, tail = parts
        batch.heads.append(head)
        batch.payloads.append(payload)
        batch.tails.append(tail)
        batch.topics[topic.key] = topic.names
        self._decide(_ACCEPTED, position, digest)

    def _relay(self, topic: _Topic, digest: bytes, content: bytes, frame: bytes) -> None:
        if content not in self._relayed:
            self._relayed.add(content)
            self.admitted.ephemerals.append(Ephemeral(topic.key, *topic.names, frame, digest))
        self._decide(Verdict.EPHEMERAL, -1, digest)

    def _reject(self, refusal: Refusal, digest: bytes) -> None:
        self.admitted.refusals[len(self.admitted.verdicts)] = refusal
        self._decide(Verdict.REJECTED, -1, digest)

    def _decide(self, verdict: Verdict, position: int, digest: bytes) -> None:
        result = self.admitted
        result.verdicts.append(verdict)
        result.positions.append(position)
        result.hashes.append(digest)


def _topic(names: tuple[str, str], policy: Policy) -> _Topic:
    small = len(names[0]) + len(names[1]) <= MAX_SHAPE_BYTES
    derive = _derive_once if small else _derive
    return derive(names, policy.max_topic_bytes, policy.cluster, policy.shards)


def _derive(
    names: tuple[str, str], max_bytes: int, cluster: int | None, shards: frozenset[int]
) -> _Topic:
    pubsub, content = names[0].encode(), names[1].encode()
    problem = topic_problem(pubsub, content, max_bytes, cluster, shards)
    key, suffix = topic_key(pubsub, content), pubsub_suffix(pubsub)
    framed = length_framed(pubsub), framed_after_payload(content)
    return _Topic(problem, pubsub, content, key, suffix, names, *framed)


_derive_once = lru_cache(maxsize=MAX_CACHED_TOPICS)(_derive)
