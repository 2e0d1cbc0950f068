"""The hub beyond `test_hub_machine`: bounds of all subscribers, and memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain import hub as hub_module
from store.domain.hub import (
    MESSAGE_OVERHEAD_BYTES,
    Commit,
    CommitRow,
    Hub,
    OwnCommits,
    Place,
    Row,
    Subscriber,
    at_most,
)
from store.domain.ports import Ephemeral, Source, TopicFilter
from store.domain.unread import OwnBatch
from store.messages.transfer import transferred
from storenode.message.topics import topic_key
from tests.integration.storage.world import NOW, random_batch

PUBSUB = "/waku/2/rs/1/0"
CHAT, NEWS = "/app/1/chat/proto", "/app/1/news/proto"
CHAT_ONLY = TopicFilter(PUBSUB, (CHAT,))
START: Place = (0, 0)
EVERYTHING = 10**9


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


def commit(position: int, *rows: Row) -> Commit:
    return Commit((position, position * 7), rows)


def ephemeral(content: str, frame: bytes) -> Ephemeral:
    return Ephemeral(topic_key(PUBSUB, content), PUBSUB, content, frame, frame.rjust(32, b"#"))


def test_topics_of_ephemeral_messages_are_not_remembered(hub: Hub) -> None:
    followed(hub, TopicFilter("other"))
    tracemalloc.start()
    try:
        for number in range(5_000):
            hub.announce([ephemeral(f"topic-{number}", b"e")])
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 250_000
    assert hub.unnamed([topic_key(PUBSUB, "topic-1")]) == [topic_key(PUBSUB, "topic-1")]


def test_the_longest_queues_go_when_too_much_waits_for_all(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MAX_ALL_QUEUED_BYTES", 25_000)
    crowd = [followed(hub) for _ in range(50)]
    both = followed(hub, TopicFilter(PUBSUB, (CHAT, NEWS)))
    # What a crowd waits for is there once.
    hub.dispatch(commit(1, row(CHAT, b"c" * 10_000), row(NEWS, b"n" * 100)))
    assert not any(each.lagging for each in (*crowd, both))
    assert len({id(each.queue[0].frames) for each in crowd}) == 1
    hub.dispatch(commit(2, row(NEWS, b"n" * 10_000)))
    assert [each.lagging for each in (both, crowd[0])] == [True, False]
    assert (both.place, len(both.queue)) == (START, 0)
    hub.check()
    for each in crowd[1:]:
        assert each.take(EVERYTHING) is not None
        hub.check()
    hub.unsubscribe(crowd[0])
    hub.check()


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
