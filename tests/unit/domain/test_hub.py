"""The rules of the hub, one by one; `test_hub_machine` tries them in any order."""

from __future__ import annotations

import tracemalloc

import pytest

from store.domain import hub as hub_module
from store.domain.hub import (
    MAX_NAMED_TOPICS,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_COMMITS,
    Commit,
    Delivery,
    Hub,
    Place,
    Row,
    Subscriber,
)
from store.domain.ports import Ephemeral, TopicFilter, TopicRights
from store.messages.frames import presence
from storenode.message.topics import topic_key

PUBSUB = "/waku/2/rs/1/0"
CHAT, NEWS = "/app/1/chat/proto", "/app/1/news/proto"
START: Place = (0, 0)
EVERYTHING = 10**9


class Woken:
    """Counts how often it is called."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def subscriber(
    wanted: TopicFilter, place: Place = START, *, include_data: bool = True
) -> tuple[Subscriber, Woken]:
    woken = Woken()
    return Subscriber(wanted, include_data, place, woken), woken


def row(content: str, frame: bytes, pubsub: str = PUBSUB) -> Row:
    return topic_key(pubsub, content), frame.rjust(32, b"#")[:32], frame


def commit(position: int, *rows: Row) -> Commit:
    return Commit((position, position * 7), rows)


def name(hub: Hub, *contents: str, pubsub: str = PUBSUB) -> None:
    hub.learn({topic_key(pubsub, content): (pubsub, content) for content in contents})


CHAT_ONLY = TopicFilter(PUBSUB, (CHAT,))


def test_an_exact_filter_gets_its_rows_in_order_and_no_others() -> None:
    hub = Hub(START)
    follower, woken = subscriber(CHAT_ONLY)
    hub.subscribe(follower)
    hub.dispatch(commit(1, row(CHAT, b"a"), row(NEWS, b"b"), row(CHAT, b"c")))
    hub.dispatch(commit(2, row(CHAT, b"d")))
    assert woken.times == 2
    assert follower.take(EVERYTHING) == Delivery(b"acd", 3, (2, 14))
    assert follower.take(EVERYTHING) is None
    hub.check()


def test_without_data_a_follower_gets_hashes() -> None:
    hub = Hub(START)
    follower, _ = subscriber(CHAT_ONLY, include_data=False)
    full, _ = subscriber(CHAT_ONLY)
    hub.subscribe(follower)
    hub.subscribe(full)
    rows = [row(CHAT, b"a"), row(CHAT, b"b")]
    hub.dispatch(commit(1, *rows))
    assert follower.take(EVERYTHING) == Delivery(
        presence(rows[0][1]) + presence(rows[1][1]), 2, (1, 7)
    )
    assert full.take(EVERYTHING) == Delivery(b"ab", 2, (1, 7))


def test_an_idle_follower_is_not_woken_and_stands_at_the_head() -> None:
    hub = Hub(START)
    follower, woken = subscriber(CHAT_ONLY)
    hub.subscribe(follower)
    for position in range(1, 1_000):
        hub.dispatch(commit(position, row(NEWS, b"n")))
    assert woken.times == 0
    assert hub.place_of(follower) == hub.head == (999, 6_993)
    hub.dispatch(commit(1_000, row(CHAT, b"c")))
    assert hub.place_of(follower) == START
    assert follower.take(EVERYTHING) == Delivery(b"c", 1, (1_000, 7_000))


def test_who_stands_ahead_of_the_head_gets_nothing_twice() -> None:
    hub = Hub(START)
    follower, _ = subscriber(CHAT_ONLY, (2, 14))
    hub.subscribe(follower)
    assert hub.place_of(follower) == (2, 14)
    for position in (1, 2, 3):
        hub.dispatch(commit(position, row(CHAT, b"%d" % position)))
    assert follower.take(EVERYTHING) == Delivery(b"3", 1, (3, 21))


def test_who_stands_behind_the_head_is_lagging() -> None:
    hub = Hub((5, 1))
    follower, _ = subscriber(CHAT_ONLY, (4, 1))
    hub.subscribe(follower)
    assert follower.lagging
    hub.dispatch(commit(6, row(CHAT, b"x")))
    assert follower.take(EVERYTHING) is None
    assert hub.place_of(follower) == (4, 1)


def test_who_comes_while_a_commit_is_read_is_lagging() -> None:
    hub = Hub(START)
    early, _ = subscriber(TopicFilter(PUBSUB, (NEWS,)))
    hub.subscribe(early)
    hub.expect((3, 21))
    assert hub.wanted([topic_key(PUBSUB, CHAT), topic_key(PUBSUB, NEWS)]) == [
        topic_key(PUBSUB, NEWS)
    ]
    late, _ = subscriber(CHAT_ONLY)
    ahead, _ = subscriber(CHAT_ONLY, (3, 21))
    hub.subscribe(late)
    hub.subscribe(ahead)
    assert (early.lagging, late.lagging, ahead.lagging) == (False, True, False)
    hub.check()


@pytest.mark.parametrize(
    ("wanted", "gets"),
    [
        (TopicFilter(), b"abc"),
        (TopicFilter(PUBSUB), b"ab"),
        (TopicFilter(None, (CHAT,)), b"ac"),
        (TopicFilter("other", (CHAT, NEWS)), b"c"),
        (TopicFilter(rights=TopicRights(("oth",), ())), b"c"),
        (TopicFilter(PUBSUB, rights=TopicRights((), ("/app/1/n",))), b"b"),
        (TopicFilter(PUBSUB, (CHAT, NEWS), TopicRights((), ("/app/1/n",))), b"b"),
        (TopicFilter(PUBSUB, (CHAT,), TopicRights(("other",))), b""),
    ],
)
def test_filters_of_every_kind(wanted: TopicFilter, gets: bytes) -> None:
    hub = Hub(START)
    follower, woken = subscriber(wanted)
    hub.subscribe(follower)
    name(hub, CHAT, NEWS)
    name(hub, CHAT, pubsub="other")
    hub.dispatch(commit(1, row(CHAT, b"a"), row(NEWS, b"b"), row(CHAT, b"c", "other")))
    delivery = follower.take(EVERYTHING)
    assert (delivery.frames if delivery else b"") == gets
    assert woken.times == (1 if gets else 0)
    hub.check()


def test_names_are_asked_for_only_when_somebody_needs_them() -> None:
    hub = Hub(START)
    key = topic_key(PUBSUB, CHAT)
    exact, _ = subscriber(CHAT_ONLY)
    hub.subscribe(exact)
    assert hub.unnamed([key]) == []
    wide, _ = subscriber(TopicFilter(PUBSUB))
    hub.subscribe(wide)
    assert hub.unnamed([key]) == [key]
    name(hub, CHAT)
    assert hub.unnamed([key]) == []
    hub.unsubscribe(wide)
    assert hub.unnamed([topic_key(PUBSUB, NEWS)]) == []


def test_names_in_use_outlive_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "MAX_NAMED_TOPICS", 10)
    hub = Hub(START)
    wide, _ = subscriber(TopicFilter())
    hub.subscribe(wide)
    name(hub, CHAT)
    for number in range(100):
        assert hub.unnamed([topic_key(PUBSUB, CHAT)]) == []
        name(hub, f"topic-{number}")
        hub.check()
    hub.dispatch(commit(1, row(CHAT, b"a")))
    assert wide.take(EVERYTHING) == Delivery(b"a", 1, (1, 7))


def ephemeral(content: str, frame: bytes) -> Ephemeral:
    return Ephemeral(topic_key(PUBSUB, content), PUBSUB, content, frame, frame.rjust(32, b"#"))


def test_an_ephemeral_message_reaches_who_is_there_and_moves_nobody() -> None:
    hub = Hub(START)
    exact, _ = subscriber(CHAT_ONLY)
    wide, _ = subscriber(TopicFilter(PUBSUB), include_data=False)
    other, woken = subscriber(TopicFilter("other"))
    for follower in (exact, wide, other):
        hub.subscribe(follower)
    hub.announce([ephemeral(CHAT, b"e")])
    assert exact.take(EVERYTHING) == Delivery(b"e", 1, START)
    assert wide.take(EVERYTHING) == Delivery(presence(b"e".rjust(32, b"#")), 1, START)
    assert woken.times == 0
    hub.dispatch(commit(1, row(CHAT, b"a")))
    hub.announce([ephemeral(CHAT, b"f"), ephemeral(CHAT, b"g")])
    assert exact.take(1) == Delivery(b"a", 1, (1, 7))
    assert exact.take(1) == Delivery(b"f", 1, (1, 7))
    assert exact.take(1) == Delivery(b"g", 1, (1, 7))


def test_topics_of_ephemeral_messages_are_not_remembered() -> None:
    hub = Hub(START)
    wide, _ = subscriber(TopicFilter("other"))
    hub.subscribe(wide)
    tracemalloc.start()
    try:
        for number in range(20_000):
            hub.announce([ephemeral(f"topic-{number}", b"e")])
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 1_000_000
    assert hub.unnamed([topic_key(PUBSUB, "topic-1")]) == [topic_key(PUBSUB, "topic-1")]


def is_cut_off(follower: Subscriber) -> bool:
    return follower.lagging


def test_a_follower_that_takes_nothing_is_cut_off_by_bytes() -> None:
    hub = Hub(START)
    follower, woken = subscriber(CHAT_ONLY)
    hub.subscribe(follower)
    frame = b"x" * (MAX_QUEUED_BYTES // 4)
    for position in range(1, 5):
        hub.dispatch(commit(position, row(CHAT, frame)))
    assert not is_cut_off(follower)
    assert follower.queued_bytes == 4 * len(frame)
    hub.dispatch(commit(5, row(CHAT, b"yyyy")))
    assert is_cut_off(follower)
    assert (follower.queued_bytes, len(follower.queue), woken.times) == (0, 0, 5)
    assert follower.take(EVERYTHING) is None
    assert hub.place_of(follower) == START
    hub.dispatch(commit(6, row(CHAT, b"z")))
    assert woken.times == 5
    hub.check()


def test_a_follower_with_smaller_pages_is_cut_off_earlier() -> None:
    hub = Hub(START)
    follower = Subscriber(CHAT_ONLY, True, START, Woken(), most_bytes=10)
    hub.subscribe(follower)
    hub.dispatch(commit(1, row(CHAT, b"x" * 10)))
    assert not follower.lagging
    hub.check()
    hub.dispatch(commit(2, row(CHAT, b"x")))
    assert follower.lagging


def test_a_follower_that_takes_nothing_is_cut_off_by_commits() -> None:
    hub = Hub(START)
    follower, _ = subscriber(CHAT_ONLY)
    hub.subscribe(follower)
    for position in range(1, MAX_QUEUED_COMMITS + 1):
        hub.dispatch(commit(position, row(CHAT, b"x")))
    assert not is_cut_off(follower)
    hub.dispatch(commit(MAX_QUEUED_COMMITS + 1, row(CHAT, b"x")))
    assert is_cut_off(follower)


def test_the_longest_queues_go_when_too_much_waits_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_module, "MAX_ALL_QUEUED_BYTES", 25_000)
    hub = Hub(START)
    crowd = [subscriber(CHAT_ONLY)[0] for _ in range(50)]
    both, _ = subscriber(TopicFilter(PUBSUB, (CHAT, NEWS)))
    for each in (*crowd, both):
        hub.subscribe(each)
    # What a crowd waits for is there once.
    hub.dispatch(commit(1, row(CHAT, b"c" * 10_000), row(NEWS, b"n" * 100)))
    assert not any(each.lagging for each in (*crowd, both))
    hub.dispatch(commit(2, row(NEWS, b"n" * 10_000)))
    assert [each.lagging for each in (both, crowd[0])] == [True, False]
    assert (both.place, both.queue) == (START, type(both.queue)())
    hub.check()
    for each in crowd[1:]:
        assert each.take(EVERYTHING) is not None
        hub.check()
    hub.unsubscribe(crowd[0])
    hub.check()


def test_what_is_taken_fits_the_limit_unless_one_commit_does_not() -> None:
    hub = Hub(START)
    follower, _ = subscriber(CHAT_ONLY)
    hub.subscribe(follower)
    for position, frame in enumerate([b"aaa", b"bb", b"c", b"d" * 9], start=1):
        hub.dispatch(commit(position, row(CHAT, frame)))
    assert follower.take(5) == Delivery(b"aaabb", 2, (2, 14))
    assert follower.take(5) == Delivery(b"c", 1, (3, 21))
    assert follower.take(5) == Delivery(b"d" * 9, 1, (4, 28))
    assert follower.queued_bytes == 0


def test_frames_are_joined_once_for_all_who_want_the_same() -> None:
    hub = Hub(START)
    followers = [subscriber(CHAT_ONLY)[0] for _ in range(50)]
    for follower in followers:
        hub.subscribe(follower)
    hub.dispatch(commit(1, row(CHAT, b"x" * 1_000), row(CHAT, b"y" * 1_000)))
    assert len({id(follower.queue[0].frames) for follower in followers}) == 1


def test_after_an_absence_only_places_that_were_found_again_are_trusted() -> None:
    hub = Hub(START)
    followers = [subscriber(CHAT_ONLY)[0] for _ in range(3)]
    at_head, ahead, full = followers
    ahead.place = (9, 63)
    for follower in followers:
        hub.subscribe(follower)
    hub.dispatch(commit(1, row(CHAT, b"a")))
    at_head.take(EVERYTHING)
    hub.expect((4, 28))
    hub.rebase((1, 7), (1, 7))
    assert [each.lagging for each in followers] == [False, True, False]
    hub.dispatch(commit(2, row(CHAT, b"b")))
    assert at_head.take(EVERYTHING) == Delivery(b"b", 1, (2, 14))
    assert full.take(EVERYTHING) == Delivery(b"ab", 2, (2, 14))
    newcomer, _ = subscriber(CHAT_ONLY, (2, 14))
    hub.subscribe(newcomer)
    assert not newcomer.lagging
    hub.check()


def test_after_a_loss_nobody_is_trusted_who_has_seen_something() -> None:
    hub = Hub(START)
    seen, _ = subscriber(CHAT_ONLY)
    waiting, woken = subscriber(CHAT_ONLY)
    idle, _ = subscriber(TopicFilter(PUBSUB, (NEWS,)))
    for follower in (seen, waiting, idle):
        hub.subscribe(follower)
    hub.dispatch(commit(8, row(CHAT, b"a")))
    seen.take(EVERYTHING)
    hub.rebase((5, 99), START)
    assert hub.head == hub.frontier == (5, 99)
    assert (seen.lagging, waiting.lagging, idle.lagging) == (True, True, False)
    assert woken.times == 2
    assert waiting.take(EVERYTHING) is None
    hub.dispatch(commit(6, row(NEWS, b"n")))
    assert idle.take(EVERYTHING) == Delivery(b"n", 1, (6, 42))


def test_who_leaves_leaves_no_trace() -> None:
    hub = Hub(START)
    followers = [subscriber(wanted)[0] for wanted in (CHAT_ONLY, CHAT_ONLY, TopicFilter())]
    for follower in followers:
        hub.subscribe(follower)
    assert len(hub) == 3
    for follower in followers:
        hub.unsubscribe(follower)
        hub.unsubscribe(follower)
        hub.check()
    assert len(hub) == 0
    assert hub.wanted([topic_key(PUBSUB, CHAT)]) == []


def test_check_finds_damage() -> None:
    hub = Hub(START)
    follower, _ = subscriber(CHAT_ONLY)
    hub.subscribe(follower)
    hub.dispatch(commit(1, row(CHAT, b"abc")))
    hub.check()
    follower.queued_bytes += 1
    with pytest.raises(ValueError, match="counted wrong"):
        hub.check()
    follower.queued_bytes -= 1
    follower.place = (7, 0)
    with pytest.raises(ValueError, match="order"):
        hub.check()
    follower.place = START
    follower.lagging = True
    with pytest.raises(ValueError, match="too much"):
        hub.check()
    follower.lagging = False
    follower.filter = TopicFilter()
    with pytest.raises(ValueError, match="wrong kind"):
        hub.check()
    follower.filter = CHAT_ONLY
    hub.frontier = (0, 0)
    with pytest.raises(ValueError, match="frontier"):
        hub.check()


def test_many_names_fit() -> None:
    hub = Hub(START)
    hub.learn({b"%016d" % number: ("p", str(number)) for number in range(MAX_NAMED_TOPICS + 10)})
    hub.check()
