"""Frames of one machine: to whom they go, how often, and the confirmations that follow.

Machines of many nodes with faults between them are in the simulator (`tests/sim`).
"""

from itertools import pairwise

from store.gossip.events import Committed, Confirm, Effect, LoadBodies, Read
from store.gossip.graph import graph_events
from store.gossip.limits import NEWS_ORDER, NEWS_PATIENCE_NS, NEWS_WINDOW
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
    sent_bodies,
    sync_leaves,
)


def test_what_a_client_publishes_is_pushed_once_and_confirmed_by_those_who_have_it() -> None:
    single, messages = Single(), ids(100)
    for peer in "bc":
        single.answer(single.join(peer))
    effects = single.publish(messages, min_confirms=2)
    assert frames(effects, "b") == frames(effects, "c") == [sent_bodies(messages)]
    first = single.answer(single.receive("b", inv(messages)))
    assert of(Confirm, first) == [Confirm("store of b", messages, [1] * 100)]
    last = single.answer(single.receive("c", inv(messages)))
    assert of(Confirm, last) == [Confirm("store of c", messages, [2] * 100)]
    assert of(Read, last) == [Read(messages)]
    assert not frames([*first, *last])
    assert single.entries("unread") == 0


def test_what_came_as_a_body_is_announced_to_all_and_passed_on_when_it_is_asked_for() -> None:
    single, messages = Single(), ids(3)
    for peer in "ac":
        single.answer(single.join(peer))
    effects = single.answer(single.receive("a", bodies(messages)))
    contents = [digest[:16] for digest in messages]
    assert frames(effects, "a") == frames(effects, "c") == [inv(messages, contents)]
    asked = single.answer(single.receive("c", get_events(messages)), messages)
    assert frames(asked) == [sent_bodies(messages)]


def test_what_is_asked_for_again_while_it_is_read_is_read_again() -> None:
    single, messages = Single(), ids(1)
    single.answer(single.join("b"))
    (early,) = of(LoadBodies, single.receive("b", get_events(messages)))
    single.answer(single.step(Gossip.commit, Committed(messages)))
    assert not of(LoadBodies, single.receive("b", get_events(messages)))
    (late,) = of(LoadBodies, single.step(Gossip.loaded, early.token, [None]))
    loaded = single.step(Gossip.loaded, late.token, messages)
    assert frames(single.answer(loaded))[-1] == sent_bodies(messages)


def test_of_two_nodes_on_one_database_one_gets_the_body() -> None:
    single, messages = Single(), ids(1)
    for peer in ("b1", "b2"):
        single.step(Gossip.join, peer, "store of b")
    effects = single.publish(messages)
    assert frames(effects, "b1") == [sent_bodies(messages)]
    assert frames(effects, "b2") == [inv(messages)]


def test_a_node_on_the_same_database_is_turned_away() -> None:
    single = Single()
    assert "same database" in single.machine.refusal(single.now_ns, "b", "own")
    assert not single.machine.refusal(single.now_ns, "b", "store of b")


def announced(effects: list[Effect]) -> list[bytes]:
    return [each for frame in frames(effects) for each in frame.inv.ids]


def test_no_more_news_are_out_than_the_peer_can_deal_with() -> None:
    single, messages = Single(), ids(3 * NEWS_WINDOW)
    single.join("b")
    out = announced(single.answer(single.step(Gossip.commit, Committed(messages))))
    assert out == messages[:NEWS_WINDOW]
    more = announced(single.answer(single.receive("b", inv(out[:100]))))
    assert more == messages[NEWS_WINDOW : NEWS_WINDOW + 100]
    # It holds a late one: it has passed over those that were announced long before.
    more = announced(single.answer(single.receive("b", inv(out[-1:]))))
    assert len(more) == NEWS_WINDOW - NEWS_ORDER - 100
    assert not single.answer(single.after(NEWS_PATIENCE_NS - 1))
    late = announced(single.answer(single.after(1)))
    assert len(late) == NEWS_WINDOW


def test_who_asks_again_is_reported_again_and_that_ends_there() -> None:
    single, messages = Single(), ids(4)
    single.answer(single.join("b"))
    single.publish(messages)
    single.answer(single.receive("b", inv(messages)))
    known = single.answer(single.step(Gossip.want, messages, 1))
    assert of(Confirm, known) == [Confirm("store of b", messages, [1] * 4)]
    assert not frames(known), "the peer has announced them already"
    single.machine._recent.forget_store(1)
    again = single.answer(single.step(Gossip.want, messages, 1))
    assert frames(again) == [inv(messages)]
    assert not frames(single.answer(single.receive("b", inv(messages)))), "that is the answer"
    assert frames(single.answer(single.receive("b", inv(messages)))) == [inv(messages)]


def test_unread_events_are_announced_again_until_they_are_confirmed() -> None:
    single, messages = Single(max_confirms=1, unread_interval_ns=5 * S), ids(3)
    single.step(Gossip.commit, Committed(messages))
    single.answer(single.join("b"), messages)
    assert not single.after(4 * S)
    assert frames(single.answer(single.after(S))) == [inv(messages)]
    effects = single.receive("b", inv(messages[:2]))
    assert of(Confirm, effects) == [Confirm("store of b", messages[:2], [1, 1])]
    assert of(Read, effects) == [Read(messages[:2])]
    assert frames(single.answer(single.after(5 * S))) == [inv(messages[2:])]


def test_leaves_bring_what_follows_on_them() -> None:
    messages = ids(30)
    parents = {child: (parent,) for parent, child in pairwise(messages)} | {messages[0]: ()}
    older = graph_events(records(messages, parents))
    sides = Single(catch_up_ids=0), Single(catch_up_ids=0)
    for side, known in zip(sides, (30, 10), strict=True):
        committed = Committed(messages[:known], older[:known], fresh=False)
        side.step(Gossip.commit, committed)
        (leaves,) = frames(side.answer(side.join("b")))
        assert list(leaves.sync_leaves.ids) == messages[known - 1 : known]
    ahead, behind = sides
    assert announced(ahead.answer(ahead.receive("b", sync_leaves(messages[9:10])))) == messages[10:]
    asked = behind.answer(behind.receive("b", sync_leaves(messages[29:])))
    assert get_events(messages[29:]) in frames(asked)
