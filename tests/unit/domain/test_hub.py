"""The hub: bounds of all subscribers, memory, and random life against a model."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from store.domain import hub as hub_module
from store.domain.hub import (
    MAX_QUEUED_BYTES,
    MAX_QUEUED_COMMITS,
    MESSAGE_OVERHEAD_BYTES,
    CommitRow,
    Hub,
    OwnCommits,
    Place,
    Row,
    Subscriber,
    at_most,
)
from store.domain.ports import Ephemeral, Source, TopicFilter, TopicRights
from store.domain.unread import OwnBatch
from store.messages.frames import presence
from store.messages.transfer import transferred
from storenode.message.topics import topic_key
from tests.integration.storage.world import NOW, random_batch

PUBSUB = "/waku/2/rs/1/0"
CHAT, NEWS = "/app/1/chat/proto", "/app/1/news/proto"
CHAT_ONLY = TopicFilter(PUBSUB, (CHAT,))
START: Place = (0, 0)


@pytest.fixture
def hub() -> Hub:
    return Hub(START)


def followed(hub: Hub, wanted: TopicFilter = CHAT_ONLY) -> Subscriber:
    """Return a subscriber of the hub."""
    follower = Subscriber(wanted, True, START, lambda: None)
    hub.subscribe(follower)
    return follower


def row(content: str, frame: bytes, pubsub: str = PUBSUB) -> Row:
    return topic_key(pubsub, content), frame.rjust(32, b"#")[:32], frame


def commit(position: int, *rows: Row) -> tuple[Place, tuple[Row, ...]]:
    return (position, position * 7), rows


def ephemeral(content: str, frame: bytes) -> Ephemeral:
    return Ephemeral(topic_key(PUBSUB, content), PUBSUB, content, frame, frame.rjust(32, b"#"))


def remaining_and_peak_bytes(work: Callable[[], object]) -> tuple[int, int]:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def test_topics_of_ephemeral_messages_are_not_remembered(hub: Hub) -> None:
    followed(hub, TopicFilter("other"))
    sent = [[ephemeral(f"topic-{number}", b"e")] for number in range(5_000)]
    grown, _ = remaining_and_peak_bytes(lambda: deque(map(hub.announce, sent)))
    assert grown < 250_000
    assert hub.unnamed([topic_key(PUBSUB, "topic-1")]) == [topic_key(PUBSUB, "topic-1")]


def test_the_longest_queues_go_when_too_much_waits_for_all(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MAX_ALL_QUEUED_BYTES", 25_000)
    crowd = [followed(hub) for _ in range(50)]
    both = followed(hub, TopicFilter(PUBSUB, (CHAT, NEWS)))
    # What a crowd waits for is there once.
    hub.dispatch(*commit(1, row(CHAT, b"c" * 10_000), row(NEWS, b"n" * 100)))
    assert not any(each.lagging for each in (*crowd, both))
    assert len({id(each.queue[0].frames) for each in crowd}) == 1
    hub.dispatch(*commit(2, row(NEWS, b"n" * 10_000)))
    assert [each.lagging for each in (both, crowd[0])] == [True, False]
    assert (both.place, len(both.queue)) == (START, 0)
    hub.check()
    for each in crowd[1:]:
        assert each.take(10**9) is not None
        hub.check()
    hub.unsubscribe(crowd[0])
    hub.check()


def test_a_crowd_costs_no_memory_for_each_topic_of_a_commit(hub: Hub) -> None:
    crowd = [followed(hub, TopicFilter()) for _ in range(1_000)]
    names = [(PUBSUB, f"/app/1/{number}/proto") for number in range(1_000)]
    hub.learn({topic_key(*name): name for name in names})
    rows = [row(content, b"c") for _, content in names]
    # One set of the topics for each of the crowd would be 30 MB.
    assert remaining_and_peak_bytes(lambda: hub.dispatch((1, 7), rows))[1] < 3_000_000
    assert all(each.queue[0] is crowd[0].queue[0] for each in crowd)


def test_frames_of_one_commit_are_joined_within_the_bound_of_all(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MAX_ALL_QUEUED_BYTES", 3 * MAX_QUEUED_BYTES)
    contents = [f"/app/1/{number}/proto" for number in range(12)]
    pairs = [followed(hub, TopicFilter(PUBSUB, pair)) for pair in combinations(contents, 2)]
    rows = [row(each, bytes(MAX_QUEUED_BYTES // 2)) for each in contents]
    assert remaining_and_peak_bytes(lambda: hub.dispatch((1, 7), rows))[1] < 4 * MAX_QUEUED_BYTES
    assert [each.lagging for each in pairs] == [False] * 3 + [True] * (len(pairs) - 3)


@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 20))
def test_commits_are_taken_up_to_a_number_of_messages(sizes: list[int], most: int) -> None:
    commits = [CommitRow((n, 0), n, size, 1, 1, None) for n, size in enumerate(sizes)]
    some = at_most(commits, most)
    assert some == commits[: len(some)]
    assert len(some) == min(len(sizes), 1) or sum(sizes[: len(some)]) <= most
    assert len(some) == len(sizes) or sum(sizes[: len(some) + 1]) > most


def own_batch(rng: random.Random, count: int) -> OwnBatch:
    return OwnBatch(random_batch(rng, count, range(NOW, NOW + 5)), Source.CLIENT, {})


def test_ids_of_own_commits_are_handed_over_once_or_dropped_in_time() -> None:
    rng = random.Random(16)
    first, second = own_batch(rng, 100), own_batch(rng, 3)
    own = OwnCommits(2 * 100 * 1_000)
    own.add((1, 11), first)
    own.add((2, 12), second)
    assert own.newest == (2, 12)
    for token, expected in ((12, second.batch), (11, first.batch)):
        ids = own.ids(token)
        assert ids is not None
        assert ids.pairs() == list(zip(expected.timestamps, expected.hashes, strict=True))
        assert own.ids(token) is None
    own.reached = 2
    for position, was_reached in ((3, False), (2, True)):
        own.add((position, 10 + position), second)
        assert own.is_doubtful is was_reached
    for number in range(20):
        own.add((number, number), first)
    found = [number for number in range(20) if own.ids(number) is not None]
    assert found == list(range(20 - len(found), 20))
    assert 0 < len(found) < 20


def test_messages_of_own_commits_are_kept_while_peers_may_want_them() -> None:
    rng = random.Random(17)
    first, second = own_batch(rng, 3), own_batch(rng, 2)
    sizes = [
        each.batch.frame_bytes + MESSAGE_OVERHEAD_BYTES * len(each.batch)
        for each in (first, second)
    ]
    own = OwnCommits(sum(sizes))
    own.wake()
    own.add((1, 11), first)
    assert own.body(first.batch.hashes[2]) is None, "its commit was not seen"
    assert own.take(11) == first
    assert own.body(first.batch.hashes[2]) == transferred(first.batch.frame(2))
    assert own.ids(11) is not None
    own.add((2, 12), second)
    own.add((3, 13), second)
    assert own.take(11) is None, "it made room"
    assert own.body(first.batch.hashes[2]) is None
    assert own.take(13) == second
    own.rest()
    assert own.take(13) is None
    assert own.body(second.batch.hashes[0]) is None


# Random life of a hub against a model that keeps, for each follower, what it must be given

PUBSUBS = ("/waku/2/rs/1/0", "/waku/2/rs/1/1")
CONTENTS = ("/a/1/x/proto", "/a/1/y/proto", "/b/1/x/proto")
SIZES = (1, 1, 1, 1_000, MAX_QUEUED_BYTES // 3, MAX_QUEUED_BYTES, MAX_QUEUED_BYTES + 1)

topics = st.tuples(st.sampled_from(PUBSUBS), st.sampled_from(CONTENTS))
messages = st.tuples(topics, st.sampled_from(SIZES))
commits = st.lists(messages, min_size=1, max_size=5)
filters = st.builds(
    TopicFilter,
    st.sampled_from([None, *PUBSUBS]),
    st.lists(st.sampled_from(CONTENTS), unique=True, max_size=2).map(tuple),
    st.builds(
        TopicRights,
        st.sampled_from([(), (), ("/waku/2/rs/1/1",)]),
        st.sampled_from([(), (), ("/a/",), ("/none",)]),
    ),
)


@dataclass(frozen=True)
class Message:
    """A message, stored or ephemeral."""

    topic: tuple[str, str]
    hash: bytes
    frame: bytes

    @property
    def key(self) -> bytes:
        return topic_key(*self.topic)


@dataclass
class Follower:
    """A subscriber in the model: its place, and the groups that wait for it."""

    subscriber: Subscriber
    place: Place
    lagging: bool
    wakes: Counter[str]
    waiting: deque[tuple[list[Message], Place]] = field(default_factory=deque)

    def entry(self, message: Message) -> bytes:
        return message.frame if self.subscriber.include_data else presence(message.hash)

    def wants(self, message: Message) -> bool:
        return self.subscriber.filter.matches(*message.topic)

    def size(self) -> int:
        return sum(len(self.entry(each)) for group, _ in self.waiting for each in group)

    def offer(self, group: list[Message], place: Place | None) -> None:
        """Let a group wait; without a place it is an ephemeral message."""
        wanted = [message for message in group if self.wants(message)]
        if not wanted or self.lagging:
            return
        self.wakes["due"] += 1
        last = self.waiting[-1][1] if self.waiting else self.place
        self.waiting.append((wanted, place or last))
        if self.size() > MAX_QUEUED_BYTES or len(self.waiting) > MAX_QUEUED_COMMITS:
            self.cut_off()

    def cut_off(self) -> None:
        self.lagging = True
        self.waiting.clear()


class HubMachine(RuleBasedStateMachine):
    followers = Bundle("followers")

    def __init__(self) -> None:
        super().__init__()
        self.hub = Hub((0, 0))
        self.numbers = count(1)
        self.position = 0
        self.placed: list[Place] = [(0, 0)]
        self.portion: deque[tuple[Place, list[Message], set[bytes]]] = deque()
        self.model: list[Follower] = []

    def message(self, topic: tuple[str, str], size: int) -> Message:
        digest = next(self.numbers).to_bytes(32, "big")
        return Message(topic, digest, digest + bytes(size - 1) if size > 32 else digest[-size:])

    @rule(
        target=followers,
        wanted=filters,
        include_data=st.booleans(),
        back=st.sampled_from([0, 0, 1]),
    )
    def subscribe(self, wanted: TopicFilter, include_data: bool, back: int) -> Follower:
        place = self.placed[max(0, len(self.placed) - 1 - back)]
        return self.follower(wanted, place, include_data, place < self.placed[-1])

    @rule(target=followers, wanted=filters)
    def subscribe_where_the_hub_stands(self, wanted: TopicFilter) -> Follower:
        return self.follower(wanted, self.hub.head, True, bool(self.portion))

    def follower(
        self, wanted: TopicFilter, place: Place, include_data: bool, is_behind: bool
    ) -> Follower:
        wakes = Counter[str]()
        subscriber = Subscriber(wanted, include_data, place, lambda: wakes.update(["done"]))
        self.hub.subscribe(subscriber)
        self.model.append(Follower(subscriber, place, is_behind, wakes))
        return self.model[-1]

    @rule(follower=consumes(followers))
    def unsubscribe(self, follower: Follower) -> None:
        self.hub.unsubscribe(follower.subscriber)
        self.model.remove(follower)

    @precondition(lambda self: not self.portion)
    @rule(groups=st.lists(commits, min_size=1, max_size=3), gap=st.integers(0, 2))
    def read(self, groups: list[list[tuple[tuple[str, str], int]]], gap: int) -> None:
        """Read the rows of new commits for the current subscribers."""
        portion = []
        for group in groups:
            self.position += 1 + gap
            place = (self.position, self.position * 31 % 1_000)
            portion.append((place, [self.message(*each) for each in group]))
            self.placed.append(place)
        self.hub.expect(self.placed[-1])
        keys = {message.key: message.topic for _, group in portion for message in group}
        self.hub.learn({key: keys[key] for key in self.hub.unnamed(keys)})
        wanted = set(self.hub.wanted(keys))
        self.portion.extend((place, group, wanted) for place, group in portion)

    @precondition(lambda self: self.portion)
    @rule()
    def dispatch(self) -> None:
        place, group, wanted = self.portion.popleft()
        rows = [(each.key, each.hash, each.frame) for each in group if each.key in wanted]
        self.hub.dispatch(place, rows)
        assert self.hub.head == place
        for follower in self.model:
            if follower.place < place:
                follower.offer(group, place)

    @rule(message=messages)
    def announce(self, message: tuple[tuple[str, str], int]) -> None:
        each = self.message(*message)
        self.hub.announce([Ephemeral(each.key, *each.topic, each.frame, each.hash)])
        for follower in self.model:
            follower.offer([each], None)

    @rule(follower=followers, most=st.sampled_from([1, 2_000, MAX_QUEUED_BYTES]))
    def take(self, follower: Follower, most: int) -> None:
        delivery = follower.subscriber.take(most)
        if not follower.waiting:
            assert delivery is None
            return
        taken: list[Message] = []
        size = 0
        while follower.waiting:
            group, place = follower.waiting[0]
            grown = size + sum(len(follower.entry(message)) for message in group)
            if taken and grown > most:
                break
            follower.waiting.popleft()
            taken += group
            size, follower.place = grown, max(follower.place, place)
        assert delivery is not None
        assert delivery.frames == b"".join(map(follower.entry, taken)), len(taken)
        assert (delivery.count, delivery.place) == (len(taken), follower.place)

    @rule(found=st.booleans(), lost=st.integers(0, 3))
    def reconnect(self, found: bool, lost: int) -> None:
        """Reconnect to the database; unless the head was found again, some commits are lost."""
        self.portion.clear()
        head = self.hub.head
        if not found:
            head = self.placed[max(0, self.placed.index(head) - lost)]
        self.hub.rebase(head, head if found else (0, 0))
        del self.placed[self.placed.index(head) + 1 :]
        # What is written next takes the place of what was lost, or is read again.
        self.position = max(self.position, head[0])
        for follower in self.model:
            last = follower.waiting[-1][1] if follower.waiting else follower.place
            if last > (head if found else (0, 0)):
                follower.cut_off()
                follower.wakes["due"] += 1

    @invariant()
    def agrees(self) -> None:
        self.hub.check()
        assert len(self.hub) == len(self.model)
        for follower in self.model:
            subscriber = follower.subscriber
            assert subscriber.lagging == follower.lagging
            assert subscriber.place == follower.place
            assert follower.wakes["done"] == follower.wakes["due"]
            assert subscriber.queued_bytes == follower.size() <= MAX_QUEUED_BYTES
            idle = not follower.waiting and not follower.lagging
            expected = max(follower.place, self.hub.head) if idle else follower.place
            assert self.hub.place_of(subscriber) == expected


TestHub = HubMachine.TestCase
TestHub.settings = settings(max_examples=40, stateful_step_count=40)
