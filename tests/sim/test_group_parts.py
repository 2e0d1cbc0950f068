"""The parts of simulated groups: what a store answers."""

from collections.abc import Sequence

from sim.groups.shelf import Shelf
from sim.limits import START_NS
from store.domain.query import RequestLimits
from storenode.sds.aio.transport import Fetched
from storenode.sds.codec import Entry, SdsMessage, decode_message, encode_message

LIMITS = RequestLimits(causal_messages=3, sds_claimants=2)


def hint(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def spoken(name: str, *causes: str, copy: int = 0) -> Fetched:
    history = tuple(Entry(cause, hint(cause + "0")) for cause in causes)
    message = SdsMessage("room", name, "somebody", START_NS, history, content=b"%d" % copy)
    return Fetched(encode_message(message), hint(f"{name}{copy}"), START_NS + copy)


def shelf(*messages: Fetched) -> Shelf:
    made = Shelf("room", LIMITS)
    assert all(made.add(each) for each in messages)
    return made


def names(found: Sequence[Fetched]) -> list[str]:
    return [decode_message(each.payload).message_id for each in found]


def test_a_store_finds_by_hint_and_by_id_and_says_where_it_cuts() -> None:
    subject = shelf(*[spoken("a", copy=copy) for copy in range(3)], spoken("b"))
    assert not subject.add(spoken("b"))
    assert names(subject.by_hint([hint("a1"), hint("none"), hint("b0")])[0]) == ["a", "b"]
    found, truncated = subject.by_id([Entry("a"), Entry("c")])
    assert ([each.hint for each in found], truncated) == ([hint("a0"), hint("a1")], True)
    assert subject.by_id([Entry("a", hint("a2"))]) == ([subject.stored[hint("a2")]], False)


def test_a_store_gives_causes_parents_first_up_to_its_limit() -> None:
    chain = [spoken("m0")] + [spoken(f"m{n}", f"m{n - 1}") for n in range(1, 6)]
    subject = shelf(*chain)
    found, truncated = subject.causes([Entry("m2")], [])
    assert (names(found), truncated) == (["m0", "m1", "m2"], False)
    found, truncated = subject.causes([Entry("m5")], [])
    assert (names(found), truncated) == (["m3", "m4", "m5"], True)
    found, truncated = subject.causes([Entry("m5")], ["m4"])
    assert (names(found), truncated) == (["m5"], False)
