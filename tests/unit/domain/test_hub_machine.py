"""Random life of a hub against a model that keeps, for each follower, what it must be given."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from store.domain.hub import MAX_QUEUED_BYTES, MAX_QUEUED_COMMITS, Commit, Hub, Place, Subscriber
from store.domain.ports import Ephemeral, TopicFilter, TopicRights
from store.messages.frames import presence
from storenode.message.topics import topic_key

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
        self.hub.dispatch(Commit(place, rows))
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
