"""The hub: commits, and their routing to live followers, without input or output.

Rules:

1. Commits come in order, each once (`Hub.dispatch`). A subscriber whose place is at or beyond a
   commit does not get it.
2. A commit reaches only the subscribers that a topic of it matches. All others stand at the head
   nevertheless: an idle subscriber costs nothing while others are served.
3. A subscriber that lets more than `MAX_QUEUED_BYTES` or `MAX_QUEUED_COMMITS` wait is cut off
   (`Subscriber.lagging`): its queue is dropped, its place stays, and it continues from the
   database. So are those with the longest queues when more than `MAX_ALL_QUEUED_BYTES` wait for
   all; what several wait for counts once.
4. An ephemeral message is queued like a commit but moves no place.
5. The rows of a commit are read for those who are subscribed when the reading begins
   (`Hub.expect`). A subscriber that comes later behind it is lagging from the start.
6. When the database was out of reach, only subscribers at or before a commit that was found again
   are still in its order (`Hub.rebase`). The others are cut off likewise.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from reconcile.ids import SyncIds
from store.domain.ports import Ephemeral, TopicFilter
from store.domain.query import DEFAULT_PAGE_BYTES
from store.domain.unread import OwnBatch
from store.messages.frames import presences
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES
from storenode.message.topics import topic_key

MAX_QUEUED_BYTES: Final = DEFAULT_PAGE_BYTES
"""The size limit of what waits for one subscriber, however large its pages may be."""

MAX_ALL_QUEUED_BYTES: Final = 64 * 1024 * 1024

MAX_QUEUED_COMMITS: Final = 256
MAX_NAMED_TOPICS: Final = 65_536

MAX_OWN_BYTES: Final = 64 * 1024 * 1024
"""The size limit of this node's latest commits in memory; older ones are read from the database."""

MESSAGE_OVERHEAD_BYTES: Final = 400
"""The memory of a message besides its bytes: the objects of its columns and its entries in tables
(measured with CPython 3.11)."""

Place = tuple[int, int]
"""Commit position and its token (unsigned 64 bits)."""

START: Final[Place] = (0, 0)
"""The place before the first commit."""

TopicName = tuple[str, str]
"""Pubsub and content topic."""

Row = tuple[bytes, bytes, bytes]
"""Topic key, message hash, frame with data."""


@dataclass(slots=True, eq=False)
class Delivery:
    """Frames for subscribers, and where these stand afterwards: where they stood without a place.

    ``waits_for``: the number of queues that it is in.
    """

    frames: bytes
    count: int
    place: Place = START
    waits_for: int = 0


class Commit:
    """A commit with its rows that are followed, in (timestamp, hash) order."""

    __slots__ = ("_deliveries", "place", "rows", "topics")

    def __init__(self, place: Place, rows: Sequence[Row]) -> None:
        self.place = place
        self.rows = rows
        self.topics = frozenset(row[0] for row in rows)
        self._deliveries: dict[tuple[frozenset[bytes], bool], Delivery] = {}

    def delivery(self, topics: frozenset[bytes], *, include_data: bool) -> Delivery:
        """Return the joined frames of the rows on some topics, the same for all subscribers."""
        key = topics, include_data
        if key not in self._deliveries:
            rows = [row for row in self.rows if row[0] in topics]
            frames = b"".join([row[2] for row in rows])
            if not include_data:
                frames = presences(row[1] for row in rows)
            self._deliveries[key] = Delivery(frames, len(rows), self.place)
        return self._deliveries[key]


@dataclass(slots=True)
class _QueuedBytes:
    """The bytes that wait for subscribers, of each delivery once however many it waits for."""

    size_bytes: int = 0

    def drop(self, delivery: Delivery) -> None:
        """Count one queue less that has this delivery."""
        delivery.waits_for -= 1
        if not delivery.waits_for:
            self.size_bytes -= len(delivery.frames)


@dataclass(slots=True, eq=False)
class Subscriber:
    """A live follower. ``wake`` is called when there is something to take, or it is cut off."""

    filter: TopicFilter
    include_data: bool
    place: Place
    wake: Callable[[], None]
    lagging: bool = False
    queue: deque[Delivery] = field(default_factory=deque)
    queued_bytes: int = 0
    everything: _QueuedBytes = field(default_factory=_QueuedBytes)

    def put(self, delivery: Delivery) -> None:
        """Queue a delivery, or cut the subscriber off when it is too far behind."""
        if self.lagging:
            return
        self.queued_bytes += len(delivery.frames)
        if self.queued_bytes > MAX_QUEUED_BYTES or len(self.queue) >= MAX_QUEUED_COMMITS:
            self.cut_off()
        else:
            self.queue.append(delivery)
            if not delivery.waits_for:
                self.everything.size_bytes += len(delivery.frames)
            delivery.waits_for += 1
            self.wake()

    def cut_off(self) -> None:
        """Drop what waits: the follower continues from the database."""
        self.clear()
        self.lagging = True
        self.wake()

    def clear(self) -> None:
        """Drop what waits."""
        for delivery in self.queue:
            self.everything.drop(delivery)
        self.queue.clear()
        self.queued_bytes = 0

    def take(self, max_bytes: int) -> Delivery | None:
        """Join what waits, up to ``max_bytes`` but at least one delivery."""
        if not self.queue:
            return None
        taken: list[Delivery] = []
        size = 0
        while self.queue and (not taken or size + len(self.queue[0].frames) <= max_bytes):
            delivery = self.queue.popleft()
            self.everything.drop(delivery)
            self.place = max(self.place, delivery.place)
            taken.append(delivery)
            size += len(delivery.frames)
        self.queued_bytes -= size
        if len(taken) == 1 and taken[0].place == self.place:
            return taken[0]
        frames = b"".join([each.frames for each in taken])  # of one, the same object
        return Delivery(frames, sum(each.count for each in taken), self.place)


class Hub:
    """Routes commits to subscribers."""

    def __init__(self, head: Place) -> None:
        self.head = head
        self.frontier = head
        self._exact: dict[bytes, set[Subscriber]] = {}
        self._wide: set[Subscriber] = set()
        self._keys: dict[Subscriber, tuple[bytes, ...]] = {}
        self._names = BoundedDict[bytes, TopicName](MAX_NAMED_TOPICS)
        self._queued = _QueuedBytes()

    def __len__(self) -> int:
        """Count the subscribers."""
        return len(self._keys)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a follower that stands at the frontier, or ahead of it; one behind is lagging."""
        keys = _exact_keys(subscriber.filter)
        if keys is None:
            self._wide.add(subscriber)
        for key in keys or ():
            self._exact.setdefault(key, set()).add(subscriber)
        self._keys[subscriber] = keys or ()
        subscriber.everything = self._queued
        subscriber.lagging = subscriber.place[0] < self.frontier[0]

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a follower, and what waits for it."""
        subscriber.clear()
        self._wide.discard(subscriber)
        for key in self._keys.pop(subscriber, ()):
            followers = self._exact[key]
            followers.discard(subscriber)
            if not followers:
                del self._exact[key]

    def place_of(self, subscriber: Subscriber) -> Place:
        """Return the place of a subscriber: the head, when nothing waits for it."""
        if subscriber.queue or subscriber.lagging:
            return subscriber.place
        return max(subscriber.place, self.head)

    def unnamed(self, topics: Iterable[bytes]) -> list[bytes]:
        """Return the topic keys whose names must be read before they can be routed."""
        if not self._wide:
            return []
        unnamed = []
        for key in topics:
            if key in self._names:
                self._names.move_to_end(key)
            else:
                unnamed.append(key)
        return unnamed

    def learn(self, names: Mapping[bytes, TopicName]) -> None:
        """Remember the names of topic keys, the newest `MAX_NAMED_TOPICS` of them."""
        self._names.update(names)

    def wanted(self, topics: Iterable[bytes]) -> list[bytes]:
        """Return the topic keys that some subscriber follows."""
        return [key for key in topics if self._followers(key, self._names.get(key))]

    def expect(self, place: Place) -> None:
        """Note that commits up to this one are being read, for those who are subscribed now."""
        self.frontier = max(self.frontier, place)

    def dispatch(self, commit: Commit) -> None:
        """Queue a commit for the subscribers that it matches, and move the head to it."""
        matched: dict[Subscriber, set[bytes]] = {}
        for key in commit.topics:
            for subscriber in self._followers(key, self._names.get(key)):
                matched.setdefault(subscriber, set()).add(key)
        for subscriber, keys in matched.items():
            if subscriber.place[0] < commit.place[0]:
                include_data = subscriber.include_data
                subscriber.put(commit.delivery(frozenset(keys), include_data=include_data))
        self._relieve()
        self.head = max(self.head, commit.place)
        self.expect(commit.place)

    def announce(self, messages: Sequence[Ephemeral]) -> None:
        """Queue ephemeral messages for the subscribers that they match."""
        for message in messages:
            name = message.pubsub_topic, message.content_topic
            whole = Delivery(message.frame, 1)
            presence = Delivery(presences((message.message_hash,)), 1)
            for subscriber in self._followers(message.topic_key, name):
                subscriber.put(whole if subscriber.include_data else presence)
        self._relieve()

    def rebase(self, head: Place, found: Place) -> None:
        """Restart at ``head``, the newest commit of a database that was out of reach.

        ``found`` is the newest place that is known to be in its order.
        """
        self.head = self.frontier = head
        for subscriber in self._keys:
            if _last(subscriber)[0] > found[0]:
                subscriber.cut_off()

    def _relieve(self) -> None:
        if self._queued.size_bytes <= MAX_ALL_QUEUED_BYTES:
            return
        for subscriber in sorted(self._keys, key=lambda each: -each.queued_bytes):
            if self._queued.size_bytes <= MAX_ALL_QUEUED_BYTES:
                return
            subscriber.cut_off()

    def _followers(self, key: bytes, name: TopicName | None) -> list[Subscriber]:
        followers = list(self._exact.get(key, ()))
        if name is not None:
            followers += [wide for wide in self._wide if wide.filter.matches(*name)]
        return followers

    def check(self) -> None:
        """Verify that every subscriber is routed where its filter says, and its queue is bounded.

        Raises:
            ValueError: it is not; the text says what is wrong.
        """
        for subscriber, keys in self._keys.items():
            if any(subscriber not in self._exact.get(key, ()) for key in keys):
                raise ValueError("a subscriber is missing from the route of its topic")
            if (_exact_keys(subscriber.filter) is None) != (subscriber in self._wide):
                raise ValueError("a subscriber is on the wrong kind of route")
        routed = {subscriber for followers in self._exact.values() for subscriber in followers}
        if (routed | self._wide) - set(self._keys):
            raise ValueError("a route leads to a subscriber that is gone")
        if self.frontier < self.head or len(self._names) > MAX_NAMED_TOPICS:
            raise ValueError("the frontier lies behind the head, or too many names are kept")
        for subscriber in self._keys:
            _check_queue(subscriber)
        waiting = {each: len(each.frames) for one in self._keys for each in one.queue}
        if sum(waiting.values()) != self._queued.size_bytes:
            raise ValueError("the bytes that wait for all subscribers are counted wrong")
        if self._queued.size_bytes > MAX_ALL_QUEUED_BYTES:
            raise ValueError("too many bytes wait for all subscribers")


def _exact_keys(wanted: TopicFilter) -> tuple[bytes, ...] | None:
    if wanted.pubsub_topic is None or not wanted.content_topics:
        return None
    return tuple(
        topic_key(wanted.pubsub_topic, content)
        for content in set(wanted.content_topics)
        if wanted.rights.allows(wanted.pubsub_topic, content)
    )


def _last(subscriber: Subscriber) -> Place:
    """Return the place of a subscriber once it has taken what waits."""
    return max([subscriber.place, *(delivery.place for delivery in subscriber.queue)])


def _check_queue(subscriber: Subscriber) -> None:
    places = [subscriber.place]
    places += [delivery.place for delivery in subscriber.queue if delivery.place != START]
    size = sum(len(delivery.frames) for delivery in subscriber.queue)
    if places != sorted(places):
        raise ValueError("what waits for a subscriber is not in commit order")
    if size != subscriber.queued_bytes or size > MAX_QUEUED_BYTES:
        raise ValueError("the bytes that wait for a subscriber are counted wrong, or too many")
    if len(subscriber.queue) > (0 if subscriber.lagging else MAX_QUEUED_COMMITS):
        raise ValueError("too much waits for a subscriber")


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A row of ``storenode.commits``; ``topics`` None: too many to be listed."""

    place: Place
    batch: int
    messages: int
    min_ts: int
    max_ts: int
    topics: tuple[bytes, ...] | None


def at_most(commits: Iterable[CommitRow], messages: int) -> list[CommitRow]:
    """Return the first commits with at most ``messages`` messages in all; at least one commit."""
    chosen: list[CommitRow] = []
    for commit in commits:
        messages -= commit.messages
        if chosen and messages < 0:
            break
        chosen.append(commit)
    return chosen


class OwnCommits:
    """Batches that this node committed last, by the tokens of commits, which need not be read then.

    They are kept until their IDs are read (`ids`). Between `wake` and `rest`, while there are
    peers, they stay for longer: `body` finds their messages by hash once their commit is seen
    (`take`). The oldest make room.
    """

    def __init__(self, most_bytes: int = MAX_OWN_BYTES) -> None:
        self._most_bytes = most_bytes
        self._batches = OrderedDict[int, OwnBatch]()
        self._size_bytes = 0
        self._places: dict[bytes, tuple[OwnBatch, int]] = {}
        self._is_awake = False
        self.newest: Place = START
        """The newest commit that was acknowledged, since the database last lost some."""
        self.reached = 0
        """The position that the reader of IDs has come to since then."""
        self.is_doubtful = False
        """A commit took a position that was reached: another may be lost; until the next report."""

    def add(self, place: Place, own: OwnBatch) -> None:
        """Take a commit, before anybody learns that it is durable."""
        self.newest = max(self.newest, place)
        self.is_doubtful |= place[0] <= self.reached
        self._batches[place[1]] = own
        self._size_bytes += _memory_bytes(own.batch)
        while self._size_bytes > self._most_bytes:
            self._drop(next(iter(self._batches)))

    def ids(self, token: int) -> SyncIds | None:
        """Return the IDs that a commit added, in any order; None: they are not here."""
        own = self._batches.get(token)
        if own is None:
            return None
        if not self._is_awake:
            self._drop(token)
        batch = own.batch
        hashes = np.frombuffer(b"".join(batch.hashes), np.uint8).reshape(-1, HASH_BYTES)
        joined = np.frombuffer(b"".join(batch.content_digests), np.uint8)
        digests = joined.reshape(-1, CONTENT_DIGEST_BYTES)
        return SyncIds(np.array(batch.timestamps, np.int64), hashes, digests)

    def take(self, token: int) -> OwnBatch | None:
        """Return the messages of a commit that is seen, with their metadata; None: not here."""
        own = self._batches.get(token)
        if own is None:
            return None
        # The metadata may be larger than the messages, and is not needed again.
        batch = replace(own.batch, sds=[], sds_index=[])
        kept = self._batches[token] = own._replace(batch=batch)
        self._places.update((digest, (kept, n)) for n, digest in enumerate(batch.hashes))
        return own

    def body(self, digest: bytes) -> bytes | None:
        """Return a message of a commit that is seen as encoded ``WakuMessageAndTopic``, or None."""
        own, place = self._places.get(digest, (None, 0))
        return None if own is None else transferred(own.batch.frame(place))

    def wake(self) -> None:
        """Keep batches from now on."""
        self._is_awake = True

    def rest(self) -> None:
        """Keep batches for their IDs only, and drop those that are kept."""
        self._is_awake = False
        self._batches.clear()
        self._places.clear()
        self._size_bytes = 0

    def _drop(self, token: int) -> None:
        own = self._batches.pop(token, None)
        if own is not None:
            self._size_bytes -= _memory_bytes(own.batch)
            for digest in own.batch.hashes if self._places else ():
                if self._places.get(digest, (None, 0))[0] is own:
                    del self._places[digest]


def _memory_bytes(batch: RecordBatch) -> int:
    """Return the memory that a batch takes without SDS metadata."""
    return batch.frame_bytes + MESSAGE_OVERHEAD_BYTES * len(batch)
