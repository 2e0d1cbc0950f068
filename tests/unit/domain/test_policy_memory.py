from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from store.sync.limits import REMEMBERED_NS
from store.sync.transfer.policy_memory import OTHER, OTHER_NS, PolicyMemory, Side

NOW = 10**18
LIMIT = 12


def ids(*numbers: int, timestamp: int = NOW) -> SyncIds:
    return SyncIds.of((timestamp, number.to_bytes(32, "big")) for number in numbers)


def known(memory: PolicyMemory, now_ns: int = NOW, side: Side = Side.OURS) -> dict[int, str]:
    labels = memory.known("p", side, now_ns)
    return {int.from_bytes(digest, "big"): label for digest, label in labels.items()}


def test_refusals_are_forgotten_when_they_may_have_passed() -> None:
    memory = PolicyMemory()
    add = partial(memory.add, "p", Side.OURS, NOW)
    add(ids(1), ["wrong_shard"])
    add(ids(2), [OTHER])
    add(ids(3, timestamp=NOW + 100), ["too_new"])
    add(ids(4, timestamp=NOW + 2 * REMEMBERED_NS), ["too_new"])
    everything = {1: "wrong_shard", 2: OTHER, 3: "too_new", 4: "too_new"}
    assert known(memory, NOW + 99) == everything
    del everything[3]
    assert known(memory, NOW + 100) == everything
    assert known(memory, NOW + OTHER_NS - 1) == everything
    del everything[2]
    assert known(memory, NOW + OTHER_NS) == everything
    assert known(memory, NOW + REMEMBERED_NS) == {}
    assert len(memory) == 0
    memory.check()


def test_a_peer_with_many_refusals_does_not_displace_the_others() -> None:
    memory = PolicyMemory(limit=100)
    memory.add("p", Side.OURS, NOW, ids(*range(10)), ["too_large"] * 10)
    for start in range(0, 1_000, 50):
        part = ids(*range(start, start + 50))
        memory.add("flood", Side.OURS, NOW, part, ["too_large"] * 50)
        memory.check()
    assert set(known(memory)) == set(range(10))
    assert len(memory.books["flood", Side.OURS]) == 90


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "forget"]),
        st.sampled_from("pqr"),
        st.lists(st.integers(0, 30), max_size=12, unique=True),
    ),
    max_size=20,
)


@given(operations)
def test_what_is_left_is_the_newest_of_each_peer(todo: list[tuple[str, str, list[int]]]) -> None:
    memory, added = PolicyMemory(limit=LIMIT), {peer: list[int]() for peer in "pqr"}
    full = False
    for what, peer, numbers in todo:
        added[peer] = [number for number in added[peer] if number not in numbers]
        if what == "add":
            memory.add(peer, Side.OURS, NOW, ids(*numbers), ["too_large"] * len(numbers))
            added[peer] += numbers
        else:
            forgotten = [number.to_bytes(32, "big") for number in numbers]
            memory.forget(peer, Side.OURS, forgotten)
        memory.check()
        full = full or sum(map(len, added.values())) > LIMIT
        for name, listed in added.items():
            left = list(memory.known(name, Side.OURS, NOW))
            expected = [number.to_bytes(32, "big") for number in listed]
            assert left == expected[len(expected) - len(left) :]
            assert full or len(left) == len(listed)
