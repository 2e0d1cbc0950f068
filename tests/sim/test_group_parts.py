"""The parts of simulated groups: how missing messages are asked for, and what a store answers."""

from collections.abc import Sequence

from sim.groups.limits import MAX_QUESTS
from sim.groups.quests import DEEP_ROUNDS, Quests
from sim.groups.shelf import Shelf
from sim.groups.spoken import ByHint, ById, Causes, Spoken
from sim.limits import NS_PER_S, START_NS
from store.domain.limits import RequestLimits
from storenode.sds.envelope import Entry, SdsMessage, encode_message
from storenode.sds.events import MissingMessage

LIMITS = RequestLimits(
    query_hashes=2, sds_entries=2, causal_heads=2, causal_messages=3, sds_claimants=2
)


def hint(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def missing(*names: str, hinted: bool = True) -> list[MissingMessage]:
    return [MissingMessage(name, (hint(name),) if hinted else ()) for name in names]


def known(most: int) -> Sequence[str]:
    return ["known"][:most]


def test_hints_are_tried_before_ids_a_few_at_a_time() -> None:
    quests = Quests(LIMITS)
    quests.want(missing("a", "b", "c") + missing("d", hinted=False), 0)
    asked = []
    while (request := quests.next(0, known)) is not None:
        asked.append(request)
        quests.answered(request, {"a", "b", "c", "d"}, 0)
    assert asked[:2] == [ByHint((hint("a"), hint("b"))), ByHint((hint("c"),))]
    ids = [
        entry.message_id for each in asked[2:] if isinstance(each, ById) for entry in each.entries
    ]
    assert ids == ["a", "b", "c", "d"]


def test_what_nobody_has_is_asked_for_ever_more_rarely() -> None:
    quests = Quests(LIMITS)
    quests.want(missing("a", hinted=False), 0)
    now_ns, rests = 0, []
    for _ in range(8):
        request = quests.next(now_ns, known)
        assert request == ById([Entry("a")])
        quests.answered(request, {"a"}, now_ns)
        due_ns = quests.next_due_ns()
        assert due_ns is not None
        rests.append((due_ns - now_ns) / NS_PER_S)
        now_ns = due_ns
    assert rests == [0.5, 1, 2, 4, 8, 8, 8, 8]
    assert quests.next(now_ns - 1, known) is None


def test_a_deep_gap_is_asked_for_as_a_causal_history() -> None:
    quests = Quests(LIMITS)
    for turn in range(DEEP_ROUNDS):
        quests.want(missing(f"m{turn}"), 0)
        request = quests.next(0, known)
        assert isinstance(request, ByHint)
        quests.answered(request, (), 0)
        quests.deepened(deeper=True)
    quests.want(missing("x", "y", "z"), 0)
    request = quests.next(0, known)
    assert request == Causes([Entry("x", hint("x")), Entry("y", hint("y"))], ["known"])
    quests.answered(request, (), 0)
    assert quests.next(0, known) is None
    assert not quests.by_id


def test_quests_are_bounded() -> None:
    quests = Quests(LIMITS)
    quests.want(missing(*map(str, range(2 * MAX_QUESTS))), 0)
    assert len(quests.by_id) == MAX_QUESTS


def spoken(name: str, *causes: str, copy: int = 0) -> Spoken:
    history = tuple(Entry(cause, hint(cause + "0")) for cause in causes)
    message = SdsMessage("room", name, "somebody", START_NS, history, content=b"%d" % copy)
    return Spoken(encode_message(message), hint(f"{name}{copy}"), START_NS + copy, message, True)


def shelf(*messages: Spoken) -> Shelf:
    made = Shelf("room", LIMITS)
    assert all(made.add(each) for each in messages)
    return made


def names(found: Sequence[Spoken]) -> list[str]:
    return [each.message.message_id for each in found]


def test_a_store_finds_by_hint_and_by_id_and_says_where_it_cuts() -> None:
    held = shelf(*[spoken("a", copy=copy) for copy in range(3)], spoken("b"))
    assert not held.add(spoken("b"))
    assert names(held.by_hint([hint("a1"), hint("none"), hint("b0")])) == ["a", "b"]
    found, truncated = held.by_id([Entry("a"), Entry("c")])
    assert ([each.hint for each in found], truncated) == ([hint("a0"), hint("a1")], True)
    assert held.by_id([Entry("a", hint("a2"))]) == ([held.held[hint("a2")]], False)


def test_a_store_gives_causes_parents_first_up_to_its_limit() -> None:
    chain = [spoken("m0")] + [spoken(f"m{n}", f"m{n - 1}") for n in range(1, 6)]
    held = shelf(*chain)
    found, truncated = held.causes([Entry("m2")], [])
    assert (names(found), truncated) == (["m0", "m1", "m2"], False)
    found, truncated = held.causes([Entry("m5")], [])
    assert (names(found), truncated) == (["m3", "m4", "m5"], True)
    found, truncated = held.causes([Entry("m5")], ["m4"])
    assert (names(found), truncated) == (["m5"], False)
