"""Peers that flood, repeat and lie: they are slowed, then cut off, and nothing grows with them."""

from collections.abc import Callable
from itertools import count

import pytest

from store.gossip.events import (
    Bodies,
    Committed,
    Confirm,
    CutOff,
    FrameIn,
    GossipCounter,
    Listen,
    LookUp,
    PersistBatch,
)
from store.gossip.limits import MAX_FAILURES, MAX_TRIES, PATIENCE_NS
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
    (again,) = of(CutOff, single.join("x"))
    assert again.reason == cut.reason
    single.now_ns = cut.until_ns
    assert not of(CutOff, single.join("x"))


def test_who_is_silent_is_no_liar() -> None:
    single, messages = Single(), ids(500)
    for peer in "xy":
        single.answer(single.join(peer))
    single.answer(single.receive("x", inv(messages)))
    effects = single.answer(single.receive("y", inv(messages)))
    assert not frames(effects, "y")
    asked = frames(single.answer(single.after(5 * S)), "y")
    assert asked == [get_events(messages)]
    assert not of(CutOff, single.after(3_600 * S))
    assert not single.counts[GossipCounter.UNDELIVERED]


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


@pytest.mark.parametrize("frame", [get_events(ids(2_000)), sync_leaves(ids(3))])
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


def test_more_asked_for_than_may_wait_is_a_fault() -> None:
    single, messages = Single(asked_ids=100, round_ids=10), ids(200)
    single.step(Gossip.commit, Committed(messages))
    single.answer(single.join("x"), messages)
    for _ in range(20):
        effects = single.receive("x", get_events(messages))
        for cut in of(CutOff, effects):
            assert "bodies are asked for: wait for them" in cut.reason
            return
    pytest.fail("it goes on for ever")


def test_asking_for_the_same_over_and_over_cuts_off() -> None:
    single, messages = Single(), ids(100)
    single.step(Gossip.commit, Committed(messages))
    single.answer(single.join("x"), messages)
    for _ in range(200):
        effects = single.answer(single.receive("x", get_events(messages)), messages)
        if of(CutOff, effects):
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


def test_a_peer_confirms_once_in_however_many_names() -> None:
    single, messages = Single(max_confirms=2), ids(1)
    single.step(Gossip.commit, Committed(messages))
    confirms: list[Confirm] = []
    for name in ("s1", "s2", "s3"):
        single.answer(single.step(Gossip.join, "x", name))
        confirms += of(Confirm, single.receive("x", inv(messages)))
        single.step(Gossip.leave, "x")
    assert confirms == [Confirm("s1", messages, [1])]
    single.join("y")
    assert of(Confirm, single.receive("y", inv(messages)))
    assert single.entries("unread") == 0


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


def test_what_the_database_could_not_do_is_asked_again() -> None:
    single, messages = Single(max_confirms=1), ids(2)
    single.join("x")
    (look,) = of(LookUp, single.receive("x", inv(messages)))
    assert not single.step(Gossip.failed, look.token)
    assert of(LookUp, single.after(S)) == [look]
    asked = single.step(Gossip.looked_up, look.token, [False, False])
    assert frames(asked) == [get_events(messages)]
    single.step(Gossip.sent, "x")
    (persist,) = of(PersistBatch, single.receive("x", bodies(messages)))
    single.step(Gossip.failed, persist.token)
    assert of(PersistBatch, single.after(S)) == [persist]
    assert frames(single.step(Gossip.persisted, persist.token, [True, True]))


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
