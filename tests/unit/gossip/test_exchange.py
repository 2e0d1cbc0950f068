"""Machines among each other: who gets what, how often, and what is confirmed."""

import random
from itertools import pairwise

import pytest

from store.gossip.events import (
    Committed,
    Confirm,
    CutOff,
    Effect,
    Inventory,
    OutgoingBodies,
    Read,
    SyncLeaves,
)
from store.gossip.limits import NEWS_ORDER, NEWS_PATIENCE_NS, NEWS_WINDOW
from store.gossip.machine import Gossip
from tests.unit.gossip.gossip_world import Fleet, S, Single, entries, frames, ids, of


def triangle() -> Fleet:
    fleet = Fleet("abc")
    for one, other in ("ab", "bc", "ac"):
        fleet.connect(one, other)
    return fleet


def test_what_a_client_publishes_is_pushed_and_confirmed_by_those_who_got_it() -> None:
    fleet, messages = triangle(), ids(100)
    fleet["a"].publish(messages, min_confirms=2)
    fleet.run()
    kinds = {(one, other): type(frame) for one, other, frame in fleet.sent}
    assert kinds["a", "b"] is kinds["a", "c"] is OutgoingBodies
    assert {kinds[pair] for pair in (("b", "a"), ("b", "c"), ("c", "a"), ("c", "b"))} == {Inventory}
    assert fleet.bodies() == 200
    assert fleet["a"].confirms == dict.fromkeys(messages, 2)
    assert entries(fleet["a"], "unread") == 0
    assert all(list(member.stored) == messages for member in fleet.members.values())
    fleet.check()


def test_of_two_nodes_on_one_database_one_gets_the_body() -> None:
    single = Single()
    for peer in ("b1", "b2"):
        single.step(Gossip.join, peer, "store of b")
    messages = ids(1)
    effects = single.answer(single.publish(messages), messages)
    assert [type(frame) for frame in frames(effects, "b1")] == [OutgoingBodies]
    assert [type(frame) for frame in frames(effects, "b2")] == [Inventory]


def test_a_node_on_the_same_database_is_turned_away() -> None:
    single = Single()
    (cut,) = of(CutOff, single.step(Gossip.join, "b", "own"))
    assert "same database" in cut.reason
    assert not cut.fault
    assert not single.is_reading("b")


def announced(effects: list[Effect]) -> list[bytes]:
    return [each for frame in frames(effects) if isinstance(frame, Inventory) for each in frame.ids]


def test_no_more_news_are_out_than_the_peer_can_deal_with() -> None:
    single, messages = Single(), ids(3 * NEWS_WINDOW)
    single.join("b")
    out = announced(single.answer(single.step(Gossip.commit, Committed(messages))))
    assert out == messages[:NEWS_WINDOW]
    more = announced(single.answer(single.receive("b", Inventory(out[:100]))))
    assert more == messages[NEWS_WINDOW : NEWS_WINDOW + 100]
    # It holds a late one: it has passed over those that were announced long before.
    more = announced(single.answer(single.receive("b", Inventory(out[-1:]))))
    assert len(more) == NEWS_WINDOW - NEWS_ORDER - 100
    assert not single.answer(single.after(NEWS_PATIENCE_NS - 1))
    late = announced(single.answer(single.after(1)))
    assert len(late) == NEWS_WINDOW


def test_who_asks_again_is_reported_again_and_that_ends_there() -> None:
    fleet, messages = Fleet("ab"), ids(4)
    fleet.connect("a", "b")
    fleet["a"].publish(messages)
    fleet.run()
    before = len(fleet.sent)
    fleet["a"].step(Gossip.want, messages, 1)
    fleet.run()
    assert fleet["a"].confirms == dict.fromkeys(messages, 1)
    assert len(fleet.sent) == before  # the peer had said so already
    fleet["a"].machine._recent.forget_store(1)
    fleet["a"].step(Gossip.want, messages, 1)
    fleet.run()
    kinds = [(one, type(frame)) for one, _, frame in fleet.sent[before:]]
    assert kinds == [("a", Inventory), ("b", Inventory)]


def test_unread_events_are_announced_again_until_they_are_confirmed() -> None:
    single, messages = Single(max_confirms=1, unread_interval_ns=5 * S), ids(3)
    single.step(Gossip.commit, Committed(messages))
    single.answer(single.join("b"), messages)
    assert not single.after(4 * S)
    (frame,) = frames(single.answer(single.after(S)))
    assert frame == Inventory(messages)
    effects = single.receive("b", Inventory(messages[:2]))
    assert of(Confirm, effects) == [Confirm("store of b", messages[:2], [1, 1])]
    assert of(Read, effects) == [Read(messages[:2])]
    (frame,) = frames(single.answer(single.after(5 * S)))
    assert frame == Inventory(messages[2:])


def test_leaves_bring_what_follows_on_them() -> None:
    fleet, messages = Fleet("ab", catch_up_ids=0), ids(40)
    fleet.parents = {each: (before,) for before, each in pairwise(messages)}
    fleet.parents[messages[0]] = ()
    for member, known in (("a", messages[:30]), ("b", messages[:10])):
        fleet[member].stored.update(dict.fromkeys(known))
        fleet[member].step(Gossip.commit, Committed(known, fleet.events(known), fresh=False))
    fleet.connect("a", "b")
    fleet.run()
    leaves = [frame for *_, frame in fleet.sent if isinstance(frame, SyncLeaves)]
    assert leaves[:2] == [SyncLeaves([messages[29]]), SyncLeaves([messages[9]])]
    assert sorted(fleet["b"].stored) == sorted(messages[:30])


@pytest.mark.parametrize("seed", range(16))
def test_whatever_happens_first_all_hold_the_same_in_the_end(seed: int) -> None:
    # Any connected topology, any order of events, breaks and failures of databases.
    rng = random.Random(seed)
    names = "abcdef"[: rng.randint(2, 6)]
    fleet = Fleet(
        names, rng.randrange, max_confirms=rng.choice((0, 1)), pushed_ids=rng.choice((0, 3, 99))
    )
    links = [(one, rng.choice(names[:at])) for at, one in enumerate(names) if at]
    for link in links:
        fleet.connect(*link)
    messages = ids(60)
    fleet.parents = {
        each: rng.sample(messages[:at], min(at, 2)) for at, each in enumerate(messages) if at % 2
    }
    for member in fleet.members.values():
        member.fails = lambda: rng.random() < 0.1
    for start in range(0, 60, 4):
        fleet[rng.choice(names)].publish(messages[start : start + 4])
        if rng.random() < 0.3:
            fleet.run()
            fleet.check()
        if rng.random() < 0.3:
            link = rng.choice(links)
            fleet.disconnect(*link)
            fleet.connect(*link)
        if rng.random() < 0.3:
            fleet.now_ns += S
    for _ in range(60):
        fleet.pass_time(2 * S)
        fleet.check()
    for member in fleet.members.values():
        assert sorted(member.stored) == sorted(messages)
        assert not member.cut
        assert not any(entries(member, table) for table in ("unread", "missing", "fetches"))
