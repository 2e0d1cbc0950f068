"""The hub: commits, and their routing to live followers, without input or output.

Rules:

1. Commits come in order, each once (`Hub.dispatch`). A subscriber whose place is at or beyond a
   commit does not get it.
2. A commit reaches only the subscribers that a topic of it matches. All others stand at the head
   nevertheless, and cost nothing. Subscribers with one filter share a route.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from reconcile.ids import SyncIds
from store.domain.ports import Ephemeral, TopicFilter, TopicRights
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


_RouteKey = bytes | tuple[str | None, str | None]
"""A topic key; or a pubsub and a content topic, where None stands for every one."""


@dataclass(slots=True, eq=False)
class _Route:
    """The subscribers that are served alike: with one filter, with or without data."""

    rights: TopicRights
    include_data: bool
    keys: Sequence[_RouteKey]
    is_wide: bool
    subscribers: dict[Subscriber, None] = field(default_factory=dict)

    @classmethod
    def of(cls, wanted: TopicFilter, include_data: bool) -> _Route:
        """Make the route of a filter; a wide one names no whole topic."""
        pubsub, contents, rights = wanted.pubsub_topic, wanted.content_topics, wanted.rights
        if pubsub is None or not contents:
            patterns = [(pubsub, content) for content in contents or (None,)]
            return cls(rights, include_data, patterns, is_wide=True)
        keys = [topic_key(pubsub, each) for each in contents if rights.allows(pubsub, each)]
        return cls(rights, include_data, keys, is_wide=False)


class Hub:
    """Routes commits to subscribers."""

    def __init__(self, head: Place) -> None:
        self.head = head
        self.frontier = head
        self._subscribers: dict[Subscriber, _Route] = {}
        self._routes: dict[tuple[TopicFilter, bool], _Route] = {}
        self._by_key: dict[_RouteKey, dict[_Route, None]] = {}
        self._wide_routes = 0
        self._names = BoundedDict[bytes, TopicName](MAX_NAMED_TOPICS)
        self._queued = _QueuedBytes()

    def __len__(self) -> int:
        """Count the subscribers."""
        return len(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a follower that stands at the frontier, or ahead of it; one behind is lagging."""
        served = subscriber.filter, subscriber.include_data
        route = self._routes.get(served)
        if route is None:
            route = self._routes[served] = _Route.of(*served)
            self._wide_routes += route.is_wide
            for key in route.keys:
                self._by_key.setdefault(key, {})[route] = None
        route.subscribers[subscriber] = None
        self._subscribers[subscriber] = route
        subscriber.everything = self._queued
        subscriber.lagging = subscriber.place[0] < self.frontier[0]

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a follower, and what waits for it."""
        subscriber.clear()
        route = self._subscribers.pop(subscriber)
        del route.subscribers[subscriber]
        if route.subscribers:
            return
        del self._routes[subscriber.filter, subscriber.include_data]
        self._wide_routes -= route.is_wide
        for key in route.keys:
            del self._by_key[key][route]
            if not self._by_key[key]:
                del self._by_key[key]

    def place_of(self, subscriber: Subscriber) -> Place:
        """Return the place of a subscriber: the head, when nothing waits for it."""
        if subscriber.queue or subscriber.lagging:
            return subscriber.place
        return max(subscriber.place, self.head)

    def unnamed(self, topics: Collection[bytes]) -> list[bytes]:
        """Return the topic keys whose names must be read before they can be routed."""
        if not self._wide_routes:
            return []
        known = {key: self._names[key] for key in topics if key in self._names}
        self._names.update(known)
        return [key for key in topics if key not in known]

    def learn(self, names: Mapping[bytes, TopicName]) -> None:
        """Remember the names of topic keys, the newest `MAX_NAMED_TOPICS` of them."""
        self._names.update(names)

    def wanted(self, topics: Iterable[bytes]) -> list[bytes]:
        """Return the topic keys that some subscriber follows."""
        return [key for key in topics if any(self._routes_of(key, self._names.get(key)))]

    def expect(self, place: Place) -> None:
        """Note that commits up to this one are being read, for those who are subscribed now."""
        self.frontier = max(self.frontier, place)

    def dispatch(self, place: Place, rows: Iterable[Row]) -> None:
        """Queue a commit for the subscribers that it matches, and move the head to it.

        ``rows``: those that are followed, in (timestamp, hash) order.
        """
        self._route(place, rows, self._names)
        self.head = max(self.head, place)
        self.expect(place)

    def announce(self, messages: Sequence[Ephemeral]) -> None:
        """Queue ephemeral messages for the subscribers that they match."""
        rows = [(each.topic_key, each.message_hash, each.frame) for each in messages]
        names = {each.topic_key: (each.pubsub_topic, each.content_topic) for each in messages}
        self._route(START, rows, names)

    def _route(self, place: Place, rows: Iterable[Row], names: Mapping[bytes, TopicName]) -> None:
        by_topic: dict[bytes, list[tuple[int, Row]]] = {}
        for numbered in enumerate(rows):
            by_topic.setdefault(numbered[1][0], []).append(numbered)
        matched: dict[_Route, list[bytes]] = {}
        for key in by_topic:
            for route in self._routes_of(key, names.get(key)):
                matched.setdefault(route, []).append(key)
        alike: dict[tuple[bool, tuple[bytes, ...]], list[_Route]] = {}
        for route, keys in matched.items():
            alike.setdefault((route.include_data, tuple(keys)), []).append(route)
        left_bytes = MAX_ALL_QUEUED_BYTES
        for (include_data, topics), routes in alike.items():
            behind = [
                each
                for route in routes
                for each in route.subscribers
                if not each.lagging and (place == START or each.place[0] < place[0])
            ]
            if left_bytes <= 0:
                for subscriber in behind:
                    subscriber.cut_off()
            elif behind:
                found = [row for _, row in sorted(one for key in topics for one in by_topic[key])]
                if include_data:
                    frames = b"".join([frame for _, _, frame in found])
                else:
                    frames = presences(digest for _, digest, _ in found)
                left_bytes -= max(len(frames), MESSAGE_OVERHEAD_BYTES * len(found))
                delivery = Delivery(frames, len(found), place)
                for subscriber in behind:
                    subscriber.put(delivery)
        self._relieve()

    def rebase(self, head: Place, found: Place) -> None:
        """Restart at ``head``, the newest commit of a database that was out of reach.

        ``found`` is the newest place that is known to be in its order.
        """
        self.head = self.frontier = head
        for subscriber in self._subscribers:
            # Where it stands once it has taken what waits.
            position, _ = max([subscriber.place, *(each.place for each in subscriber.queue)])
            if position > found[0]:
                subscriber.cut_off()

    def _relieve(self) -> None:
        if self._queued.size_bytes <= MAX_ALL_QUEUED_BYTES:
            return
        for subscriber in sorted(self._subscribers, key=lambda each: -each.queued_bytes):
            if self._queued.size_bytes <= MAX_ALL_QUEUED_BYTES:
                return
            subscriber.cut_off()

    def _routes_of(self, key: bytes, name: TopicName | None) -> Iterator[_Route]:
        """Yield the routes that a topic takes; without its name, those that name it whole."""
        yield from self._by_key.get(key, ())
        if name is None:
            return
        pubsub, content = name
        for pattern in ((pubsub, None), (None, content), (None, None)):
            for route in self._by_key.get(pattern, ()):
                if route.rights.allows(pubsub, content):
                    yield route

    def check(self) -> None:
        """Verify that every subscriber is routed where its filter says, and its queue is bounded.

        Raises:
            ValueError: it is not; the text says what is wrong.
        """
        routed = {(each, route) for route in self._routes.values() for each in route.subscribers}
        served = {each: self._routes.get((each.filter, each.include_data)) for each, _ in routed}
        if routed != set(self._subscribers.items()) or served != self._subscribers:
            raise ValueError("a subscriber is not on the route of its filter, or is gone")
        looked_up = {(key, route) for key, routes in self._by_key.items() for route in routes}
        if looked_up != {(key, each) for each in self._routes.values() for key in each.keys}:
            raise ValueError("a route is not found by the topics of its filter")
        if self.frontier < self.head or len(self._names) > MAX_NAMED_TOPICS:
            raise ValueError("the frontier lies behind the head, or too many names are kept")
        for subscriber in self._subscribers:
            _check_queue(subscriber)
        waiting = {each: len(each.frames) for one in self._subscribers for each in one.queue}
        if sum(waiting.values()) != self._queued.size_bytes:
            raise ValueError("the bytes that wait for all subscribers are counted wrong")
        if self._queued.size_bytes > MAX_ALL_QUEUED_BYTES:
            raise ValueError("too many bytes wait for all subscribers")


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
