"""Peers that flood, repeat and lie: they are slowed, then cut off, and nothing grows with them."""

from collections.abc import Callable
from itertools import count

import pytest

from store.gossip.events import (
    Bodies,
    Committed,
    Conflicting,
    CutOff,
    FrameIn,
    GossipCounter,
    Listen,
    PersistBatch,
)
from store.gossip.limits import MAX_FAILURES, MAX_PARENTS, MAX_TRIES, NEWS_WINDOW, PATIENCE_NS
from store.gossip.machine import Gossip
from tests.unit.gossip.gossip_world import (
    S,
    Single,
    bodies,
    frames,
    get_events,
    ids,
    inv,
    of,
    records,
    sync_leaves,
)


def flood(single: Single, frame: Callable[[int], FrameIn], pace_ns: int) -> tuple[int, CutOff]:
    """Send frames, while they are read, until the peer is cut off; how many, and how that was."""
    single.answer(single.join("x"))
    for number in count():
        assert number < 20_000, "it goes on for ever"
        single.now_ns += pace_ns
        rested = [] if single.is_reading("x") else single.after(S)
        effects = single.answer([*rested, *single.receive("x", frame(number))])
        for cut in of(CutOff, effects):
            return number, cut
    raise AssertionError


def test_a_million_ids_fill_nothing() -> None:
    single, million = Single(announced_ids=2_048), iter(range(10**6))

    def some(_: int) -> FrameIn:
        return inv([b"%032d" % next(million) for _ in range(512)])

    _, cut = flood(single, some, S // 100)
    assert "announced messages have not come" in cut.reason
    assert next(million) < 20_000
    assert single.entries("fetches") == 0


def test_who_announces_and_does_not_deliver_is_slowed_then_cut_off() -> None:
    single, numbers = Single(), count()

    def lie(_: int) -> FrameIn:
        return inv([b"%032d" % next(numbers) for _ in range(20)])

    _, cut = flood(single, lie, S)
    assert "not delivered" in cut.reason
    assert single.machine.refusal(single.now_ns, "x", "store of x") == cut.reason
    assert not single.machine.refusal(cut.until_ns, "x", "store of x")


def test_what_one_peer_alone_has_is_asked_of_it_again_though_not_for_ever() -> None:
    single, messages = Single(), ids(3)
    single.answer(single.join("x"))
    single.answer(single.receive("x", inv(messages)))
    wanted = messages
    for _ in range(MAX_FAILURES - 1):
        single.after(PATIENCE_NS)
        effects = single.answer(single.receive("x", inv(())))
        assert frames(effects, "x") == [get_events(wanted)]
        assert not single.counts[GossipCounter.UNDELIVERED]
        if wanted is messages:
            single.answer(single.receive("x", bodies(messages[:1])))
            wanted = messages[1:]
    single.after(PATIENCE_NS)
    single.receive("x", inv(()))
    assert single.counts[GossipCounter.UNDELIVERED] == 2
    assert single.entries("fetches") == 0


def test_bodies_that_come_again_and_again_cut_off() -> None:
    single = Single()
    number, cut = flood(single, lambda _: bodies(ids(8)), S // 10)
    assert "send each once" in cut.reason
    assert number < 60


def test_a_body_that_comes_late_or_from_two_is_no_fault() -> None:
    single, messages = Single(), ids(400)
    for peer in "xy":
        single.answer(single.join(peer))
    for peer in "xy":
        single.answer(single.receive(peer, inv(messages)))
    for peer in "yx":
        single.receive(peer, bodies(messages))
    assert not single.counts[GossipCounter.BODIES_REPEATED]


@pytest.mark.parametrize(
    "frame", [get_events(ids(2_000)), sync_leaves(ids(3)), inv(()), bodies(())]
)
def test_what_comes_too_often_is_slowed(frame: FrameIn) -> None:
    single = Single()
    for peer in "xy":
        single.answer(single.join(peer))
    for _ in range(100):
        single.now_ns += S // 50
        single.answer(single.receive("x", frame))
    assert single.machine.peers(single.now_ns, 0)[0].slowed
    assert not single.is_reading("x")
    assert single.is_reading("y")


@pytest.mark.parametrize(
    ("asked_ids", "count", "times", "reason"),
    [(100, 200, 20, "bodies are asked for: wait for them"), (10_000, 100, 200, "that were sent")],
)
def test_who_asks_for_too_much_or_for_the_same_over_and_over_is_cut_off(
    asked_ids: int, count: int, times: int, reason: str
) -> None:
    single, messages = Single(asked_ids=asked_ids, round_ids=10), ids(count)
    single.step(Gossip.commit, Committed(messages))
    single.answer(single.join("x"), messages)
    for _ in range(times):
        effects = single.receive("x", get_events(messages))
        effects = effects if times == 20 else single.answer(effects, messages)
        for cut in of(CutOff, effects):
            assert reason in cut.reason
            return
    pytest.fail("it goes on for ever")


def test_who_sends_what_policy_refuses_is_slowed_and_never_cut_off() -> None:
    single, messages = Single(), ids(5_000)
    single.join("x")
    for start in range(0, 5_000, 100):
        some = messages[start : start + 100]
        refused = [(digest, "too_new") for digest in some]
        effects = single.receive("x", Bodies(records(()), refused, 100))
        assert not of(CutOff, effects)
    assert single.machine.peers(single.now_ns, 0)[0].slowed
    assert not single.is_reading("x")
    assert of(Listen, single.after(S)) == [Listen("x", True)]


def test_what_was_refused_is_asked_for_again_only_later_but_from_others() -> None:
    single, messages = Single(), ids(3)
    for peer in "xy":
        single.answer(single.join(peer))
    single.answer(single.receive("x", inv(messages)))
    single.receive("x", Bodies(records(()), [(digest, "too_new") for digest in messages], 10))
    assert not frames(single.answer(single.receive("x", inv(messages))))
    assert frames(single.answer(single.receive("y", inv(messages))), "y")
    single.receive("y", Bodies(records(()), [(digest, "too_large") for digest in messages], 10))
    single.now_ns += 61 * S
    assert frames(single.answer(single.receive("x", inv(messages))), "x")
    assert not frames(single.answer(single.receive("y", inv(messages))), "y")


def test_unknown_parents_delay_nothing_that_is_announced() -> None:
    single, (child, *unknown) = Single(round_ids=2), ids(7)
    announced = ids(2, "announced")
    single.answer(single.join("x"))
    event = bodies([child], {child: unknown})
    guessed = frames(single.answer(single.receive("x", event)), "x")
    assert get_events(unknown[:2]) in guessed
    asked = frames(single.answer(single.receive("x", inv(announced))), "x")
    assert asked == [get_events(announced)]


def test_unknown_parents_take_no_room_of_what_is_announced() -> None:
    single, events, announced = Single(), ids(128), ids(NEWS_WINDOW, "announced")
    single.answer(single.join("x"))
    parents = {each: ids(MAX_PARENTS, each.hex()) for each in events}
    single.answer(single.receive("x", bodies(events, parents)))
    single.answer(single.receive("x", inv(announced)))
    assert not single.counts[GossipCounter.IDS_DROPPED]
    assert single.counts[GossipCounter.IDS_ASKED]
    assert not single.machine.peers(single.now_ns, 0)[0].slowed


def test_a_peer_that_begins_streams_over_and_over_is_cut_off() -> None:
    single, messages = Single(), ids(1)
    single.answer(single.step(Gossip.commit, Committed(messages)), messages)
    for _ in range(300):
        single.now_ns += S // 100
        for cut in of(CutOff, single.answer(single.join("x"), messages)):
            assert "keep one" in cut.reason
            return
    pytest.fail("it goes on for ever")


def test_other_contents_without_end_are_counted_and_not_all_reported() -> None:
    single, messages = Single(), ids(1_000)
    contents = [digest[:16] for digest in messages]
    single.step(Gossip.commit, Committed(messages, content_digests=contents))
    single.answer(single.join("x"), messages)
    reported = 0
    for number in range(10):
        other = [b"%016d" % number] * len(messages)
        effects = single.answer(single.receive("x", inv(messages, other)), messages)
        reported += len(of(Conflicting, effects))
        assert not of(CutOff, effects)
    assert single.counts[GossipCounter.CONFLICTS] == 10_000
    assert 200 < reported < 300
    assert not single.is_reading("x")


def test_what_waits_for_the_database_is_bounded_although_its_peer_has_left() -> None:
    single, taken = Single(), 0
    for number in range(200):
        single.now_ns += 10 * S
        single.join("x")
        if single.is_reading("x"):
            frame = Bodies(records(ids(1, f"{number}/")), (), 4 * 1024 * 1024)
            (persist,) = of(PersistBatch, single.receive("x", frame))
            taken += 1
    assert taken == 16
    assert Listen("x", True) in single.step(Gossip.persisted, persist.token, [True])


def test_a_peer_is_not_read_from_while_much_of_it_waits_for_the_database() -> None:
    single, messages = Single(unstored_bytes=1_000), ids(40)
    single.join("x")
    persists: list[PersistBatch] = []
    for start in range(0, 40, 10):
        if single.is_reading("x"):
            persists += of(PersistBatch, single.receive("x", bodies(messages[start : start + 10])))
    assert len(persists) == 1
    effects = single.step(Gossip.persisted, persists[0].token, [True] * 10)
    assert Listen("x", True) in effects


def test_what_can_never_be_stored_is_given_up_and_may_come_again() -> None:
    single, messages = Single(), ids(2)
    single.join("x")
    (persist,) = of(PersistBatch, single.receive("x", bodies(messages)))
    for _ in range(MAX_TRIES - 1):
        single.step(Gossip.failed, persist.token)
        assert of(PersistBatch, single.after(S)) == [persist]
    single.step(Gossip.failed, persist.token)
    assert not single.after(S)
    assert of(PersistBatch, single.receive("x", bodies(messages)))
