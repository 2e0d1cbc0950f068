"""The tables of gossip, each against something simple that a reader can see is right."""

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from unittest.mock import patch

import pytest

from store.gossip.events import Confirm, GraphEvent, Read
from store.gossip.graph import Graph
from store.gossip.limits import MAX_OFFENDERS, MAX_PEERS, MAX_STORES
from store.gossip.recent_messages import RecentMessages, SeenMessage, Stores, free_bit
from store.gossip.scores import CUT_POINTS, HALF_LIFE_NS, SLOW_POINTS, PeerStanding, Scores
from store.gossip.unread import UnreadEvents
from tests.unit.gossip.gossip_world import S, ids


def test_a_store_that_is_forgotten_leaves_no_trace() -> None:
    forgotten: list[int] = []
    stores = Stores(forgotten.append)
    first = stores.meet("s0", "p0", set())
    for number in range(1, MAX_STORES):
        stores.meet(f"s{number}", f"p{number}", set())
    other = stores.meet("another", "p", {"s0"})
    assert forgotten == [2]
    assert other.bit == 2
    assert stores.of_mask(first.bit | other.bit) == [first, other]
    stores.check()


# Scores


def test_points_fade_and_add_up() -> None:
    scores = Scores(60 * S)
    assert scores.standing(0, "x") is PeerStanding.GOOD
    assert scores.add(0, "x", SLOW_POINTS, "why") is PeerStanding.SLOWED
    assert scores.standing(HALF_LIFE_NS, "x") is PeerStanding.GOOD
    assert scores.add(HALF_LIFE_NS, "x", CUT_POINTS, "why") is PeerStanding.CUT_OFF
    assert scores.cut_off(HALF_LIFE_NS) == [("x", HALF_LIFE_NS + 60 * S, "why")]
    scores.check()


def test_cut_offs_that_follow_each_other_last_longer_up_to_an_hour() -> None:
    scores, now_ns, lengths = Scores(60 * S), 0, []
    for _ in range(8):
        scores.add(now_ns, "x", CUT_POINTS, "why")
        until_ns, _ = scores.sentence("x")
        lengths.append((until_ns - now_ns) // S)
        now_ns = until_ns
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    scores.add(now_ns + 3_600 * S, "x", CUT_POINTS, "why")
    assert scores.sentence("x")[0] == now_ns + 3_660 * S


def test_the_least_offender_is_forgotten() -> None:
    scores = Scores(S)
    scores.add(0, "worst", CUT_POINTS, "why")
    for number in range(MAX_OFFENDERS + 5):
        scores.add(0, f"x{number}", 0.1 + number / 10_000, "why")
    scores.check()
    assert scores.standing(0, "worst") is PeerStanding.CUT_OFF


# Unread events


def test_each_store_counts_once_and_the_last_that_is_needed_ends_the_wait() -> None:
    unread, (event,) = UnreadEvents(10, 100 * S, S), ids(1)
    unread.add(0, event, 1)
    unread.add(0, event, 3)
    assert unread.confirm(event, "a", report=False)
    assert [unread.confirm(event, name) for name in ("a", "b")] == [False, True]
    assert unread.flush() == [Confirm("b", [event], [2])]
    unread.report(event)
    assert unread.confirm(event, "c")
    reports = [Confirm("a", [event], [2]), Confirm("b", [event], [2]), Confirm("c", [event], [3])]
    assert unread.flush() == [*reports, Read([event])]
    assert not unread.confirm(event, "d")
    unread.check()


def test_events_expire_by_age_and_by_number() -> None:
    unread, events = UnreadEvents(3, 10 * S, S), ids(5)
    assert [unread.add(at * S, each, 1) for at, each in enumerate(events)] == [
        [],
        [],
        [],
        [events[0]],
        [events[1]],
    ]
    assert unread.take_due(3 * S, 10) == ([events[2]], [])
    assert unread.take_due(12 * S, 2) == ([events[3], events[4]], [])
    assert unread.take_due(12 * S, 10) == ([], [events[2]])
    unread.check()


# Who has what


def test_peers_that_left_are_forgotten_together() -> None:
    recent, bits = RecentMessages(10), list[int]()
    recent[b"m"] = SeenMessage(b"", quiet=False, notified=-1)
    with patch.object(recent, "values", wraps=recent.values) as values:
        for _ in range(3 * MAX_PEERS):
            bits.append(free_bit((recent.gone,)))
            recent.forget_peer(bits[-1])
        assert values.call_count == 3
    assert len(set(bits)) == MAX_PEERS
    assert not any(recent[b"m"].notified & bit for bit in bits)


# The graph


def naive_leaves(events: list[GraphEvent]) -> set[bytes]:
    named = {parent for event in events for parent in event.parents}
    return {event.id for event in events} - named


@pytest.mark.parametrize("seed", range(16))
def test_leaves_are_events_that_are_no_parents(seed: int) -> None:
    rng = random.Random(seed)
    graph, names = Graph(1_000), ids(30)
    events: dict[bytes, GraphEvent] = {}
    for _ in range(60):
        name = rng.choice(names)
        parents = tuple(rng.sample(names, rng.randint(0, 3)))
        event = GraphEvent(name, rng.randint(1, 20), parents)
        graph.add(event)
        events.setdefault(name, event)
        graph.check()
        most = rng.randint(0, 10)
        leaves = graph.leaves(most)
        expected = naive_leaves(list(events.values()))
        times = [events[each].timestamp_ns for each in leaves.ids]
        assert times == sorted(times, reverse=True)
        assert set(leaves.ids) <= expected
        assert len(leaves.ids) + leaves.rest_count == len(expected)
        rest = 0
        for digest in expected - set(leaves.ids):
            rest ^= int.from_bytes(digest)
        assert leaves.rest_xor == (rest.to_bytes(32) if leaves.rest_count else b"")


def test_the_oldest_events_are_forgotten_and_their_parents_are_no_leaves_for_that() -> None:
    graph, names = Graph(3), ids(6)
    graph.add(GraphEvent(names[0], 1, (names[1],)))
    graph.add(GraphEvent(names[1], 1, ()))
    for name in names[2:4]:
        graph.add(GraphEvent(name, 1, ()))
        graph.check()
    assert names[0] not in graph
    assert set(graph.leaves(9).ids) == set(names[2:4])
    graph.add(GraphEvent(names[4], 1, tuple(ids(12, "p"))))
    graph.add(GraphEvent(names[5], 1, (names[0],)))
    graph.check()
    assert len(graph) == 1


def test_of_many_edges_to_the_same_descendants_few_are_followed() -> None:
    graph, parents, looks = Graph(10_000), ids(100), list[bytes]()
    for number in range(400):
        graph.add(GraphEvent(b"%032d" % number, 1, tuple(parents)))

    def counted(edges: Iterable[bytes], most: int) -> Iterator[bytes]:
        for each in islice(edges, most):
            looks.append(each)
            yield each

    with patch("store.gossip.graph.islice", counted):
        assert len(graph.descendants(parents, 500)) == 400
    assert len(looks) <= 2_000


def test_descendants_are_found_a_generation_at_a_time_and_circles_end() -> None:
    graph, names = Graph(100), ids(6)
    for child, parent in ((1, 0), (2, 1), (3, 1), (4, 3), (1, 4)):
        graph.add(GraphEvent(names[child], 1, (names[parent],)))
    assert graph.descendants([names[0]], 99) == [names[each] for each in (1, 2, 3, 4)]
    assert graph.descendants([names[0]], 2) == names[1:3]
    graph.add(GraphEvent(names[0], 1, (names[4],)))
    assert set(graph.descendants([names[0]], 99)) == set(names[:5])
