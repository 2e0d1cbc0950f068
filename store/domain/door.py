"""The door: how messages come in, whoever brings them.

A message can come from a client, a transfer, a resume, gossip or a restore. All are judged by
`Door`, stored by one writer and announced by one feed; what differs is data (`policy_of`):

=================  ====================================  ====================  ================
source             past                                  future                ephemeral
=================  ====================================  ====================  ================
client             publisher's limit, then the horizon   the drift, or a day   to the followers
transfer, resume,  the horizon                           the drift, or a day   refused
gossip
restore            any timestamp greater than 0          the drift, or a day   refused
=================  ====================================  ====================  ================

Only who publishes a message relays it while it is fresh. To another store it is nothing, so a
message that a store sends as ephemeral is refused by name.

Messages are judged in chunks, so that a large request does not keep others waiting; the result
does not depend on where it was cut. This is the one place where a message's hash is computed.
Source: 13/WAKU2-STORE, "Message eligibility", and the node's contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from store.domain.access import Client
from store.domain.ports import Ephemeral, Source, TopicRights
from store.messages.record import COLUMNS, RecordBatch, index_batch
from store.messages.validate import Admission, Policy, Verdict, admit, admit_encoded

OUTSIDE_TOPICS: Final = "outside_topics"
"""Label of messages on topics that the client may not publish to."""

EPHEMERAL: Final = "ephemeral"
"""Label of ephemeral messages from a source that may bring none."""

_EVERY_TOPIC: Final = TopicRights()


class Refusal(NamedTuple):
    """A message that is refused: a closed set of labels for the metrics, and one sentence."""

    label: str
    sentence: str


_EPHEMERAL: Final = Refusal(
    EPHEMERAL, "the message is ephemeral, and a store keeps none: send only messages that are kept"
)


@dataclass(slots=True)
class Published:
    """The verdict on each message of a request, as columns in request order.

    ``positions[i]`` is the place in ``batch`` (of the first copy) for ACCEPTED and DUPLICATE, else
    -1.
    ``hashes[i]`` is empty when the hash cannot be computed. ``refusals`` has the REJECTED ones.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    batch: RecordBatch = field(default_factory=RecordBatch)
    ephemerals: list[Ephemeral] = field(default_factory=list)
    refusals: dict[int, Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the messages of a request; ``rejected`` counts by label."""

    stored: int
    duplicate: int
    ephemeral: int
    rejected: Mapping[str, int]


def tally(published: Published, stored: Sequence[bool]) -> Tally:
    """Count what became of a request; ``stored`` is the writer's answer for its batch."""
    new = sum(stored)
    ephemeral = published.verdicts.count(Verdict.EPHEMERAL)
    rejected = Counter(refusal.label for refusal in published.refusals.values())
    duplicate = len(published.verdicts) - new - ephemeral - rejected.total()
    return Tally(new, duplicate, ephemeral, rejected)


def policy_of(source: Source, policy: Policy) -> Policy:
    """What a node's ``policy`` for clients says of messages from ``source``."""
    if source is Source.CLIENT:
        return policy
    return replace(policy, publisher=False, below_horizon=source is Source.RESTORE)


class Door:
    """Judges the messages of one request, chunk by chunk, and lays out what is accepted.

    ``policy`` is the node's own, as it stands for clients, and ``now_ns`` its clock in Unix
    nanoseconds. A ``client`` brings its topics and limits with it; other sources have none.
    SDS messages are indexed on the way.
    """

    def __init__(
        self, policy: Policy, now_ns: int, source: Source, client: Client | None = None
    ) -> None:
        largest = None if client is None else client.limits.message_bytes
        if largest is not None and largest < policy.max_message_bytes:
            policy = replace(policy, max_message_bytes=largest)
        self._policy = policy_of(source, policy)
        self._now_ns = now_ns
        self._relays = source is Source.CLIENT
        self._client = "" if client is None else client.name
        self._topics = _EVERY_TOPIC if client is None else client.topics
        self._places: dict[bytes, int] = {}
        self._relayed: set[bytes] = set()
        self.published = Published()

    def admit(self, messages: Sequence[Any]) -> None:
        """Judge the next messages: decoded ``WakuMessageAndTopic`` entries."""
        self._take(admit(messages, self._now_ns, self._policy))

    def admit_encoded(self, messages: Sequence[bytes]) -> None:
        """Judge the next messages: encoded ``WakuMessageAndTopic`` entries, at half the cost.

        Raises:
            MalformedMessage: one of them is none; the request as a whole is to be refused.
        """
        self._take(admit_encoded(messages, self._now_ns, self._policy))

    def _take(self, chunk: Admission) -> None:
        index_batch(chunk.batch)
        if not self.published.verdicts and self._topics.unrestricted:
            self._adopt(chunk)
        else:
            self._merge(chunk)
        if chunk.ephemerals:
            self._settle_ephemerals(chunk)

    def _adopt(self, chunk: Admission) -> None:
        # The usual request is one chunk: its columns are taken over as they are.
        result = self.published
        result.verdicts, result.positions = chunk.verdicts, chunk.positions
        result.hashes, result.batch = chunk.hashes, chunk.batch
        result.refusals = {index: Refusal(*why) for index, why in chunk.rejections.items()}

    def _merge(self, chunk: Admission) -> None:
        result, start = self.published, len(self.published.verdicts)
        if not self._places:  # the chunk before was adopted
            self._places = {digest: place for place, digest in enumerate(result.batch.hashes)}
        known = len(self._places)
        self._merge_records(chunk.batch)
        places = [self._places.get(digest, -1) for digest in chunk.batch.hashes]
        result.hashes += chunk.hashes
        result.positions += chunk.positions
        result.verdicts += chunk.verdicts
        for index, verdict in enumerate(chunk.verdicts):
            at = start + index
            if verdict is Verdict.REJECTED:
                result.refusals[at] = Refusal(*chunk.rejections[index])
            elif verdict is not Verdict.EPHEMERAL:
                place = result.positions[at] = places[chunk.positions[index]]
                if place < 0:
                    self._refuse_topic(at)
                elif place < known:
                    result.verdicts[at] = Verdict.DUPLICATE

    def _merge_records(self, chunk: RecordBatch) -> None:
        batch, places = self.published.batch, self._places
        barred = {key for key, names in chunk.topics.items() if not self._topics.allows(*names)}
        fresh = [
            index
            for index, digest in enumerate(chunk.hashes)
            if digest not in places and chunk.topic_keys[index] not in barred
        ]
        for index in fresh:
            places[chunk.hashes[index]] = len(places)
        for column in COLUMNS:
            values = getattr(chunk, column)
            getattr(batch, column).extend([values[index] for index in fresh])
        batch.topics |= {key: chunk.topics[key] for key in chunk.topics.keys() - barred}
        kept = set(fresh)
        for index, metadata in zip(chunk.sds_index, chunk.sds, strict=True):
            if index in kept:
                batch.sds_index.append(places[chunk.hashes[index]])
                batch.sds.append(metadata)

    def _settle_ephemerals(self, chunk: Admission) -> None:
        result = self.published
        start = len(result.verdicts) - len(chunk.verdicts)
        barred = self._relay(chunk) if self._relays else set()
        for index, verdict in enumerate(chunk.verdicts):
            if verdict is not Verdict.EPHEMERAL:
                continue
            if not self._relays:
                self._refuse(start + index, _EPHEMERAL)
            elif chunk.positions[index] in barred:
                self._refuse_topic(start + index)
            result.positions[start + index] = -1

    def _relay(self, chunk: Admission) -> set[int]:
        """Keep the ephemeral messages for the followers; which may not be published?"""
        barred = set()
        for place, item in enumerate(chunk.ephemerals):
            if not self._topics.allows(*item.names):
                barred.add(place)
            elif item.hash not in self._relayed:
                self._relayed.add(item.hash)
                relayed = Ephemeral(item.topic_key, *item.names, item.frame, item.hash)
                self.published.ephemerals.append(relayed)
        return barred

    def _refuse_topic(self, index: int) -> None:
        sentence = (
            f"client {self._client} may not publish on these topics: use those that the operator "
            "allowed"
        )
        self._refuse(index, Refusal(OUTSIDE_TOPICS, sentence))

    def _refuse(self, index: int, refusal: Refusal) -> None:
        self.published.verdicts[index] = Verdict.REJECTED
        self.published.refusals[index] = refusal
