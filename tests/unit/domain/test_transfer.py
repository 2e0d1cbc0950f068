"""Machines of a transfer, joined in memory: whatever the order of events, both end equal."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from store.domain.admission import Admitted
from store.sync.limits import TransferLimits
from store.sync.transfer.core import Transfer, TransferStateError
from store.sync.transfer.events import (
    Begin,
    Direction,
    Found,
    Frame,
    Input,
    Loaded,
    MessageOutcome,
    Persisted,
    SendReady,
    StreamLost,
    Ticked,
    TransferFault,
    TransferReceived,
)
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.message.rules import Policy
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entry
from tests.unit.domain.transfer_world import (
    POLICY,
    SESSION,
    Node,
    Store,
    began,
    encoded,
    ended,
    ids_of,
    messages,
    pair,
    raw,
    run,
    sent_form,
    store_of,
)

NS_PER_S = 10**9

seeds = st.integers(0, 2**32)


@settings(max_examples=60)
@given(seeds, st.integers(0, 30), st.integers(0, 30), st.integers(0, 5), st.integers(5, 300))
def test_both_sides_end_with_everything(
    seed: int, only_left: int, only_right: int, both: int, size: int
) -> None:
    shared = messages(both, 1000)
    left = store_of(shared, messages(only_left, 0, size))
    right = store_of(shared, messages(only_right, 500, size))
    one, other = pair(left, right)
    run(random.Random(seed), one, other)
    assert left.frames == right.frames
    for node, sent, received in ((one, only_left, only_right), (other, only_right, only_left)):
        report = ended(node)
        assert report.equal
        assert (report.sent, report.stored_by_peer, report.stored) == (sent, sent, received)
        assert not report.refused_by_policy
        assert [frame.session_id for frame in node.sent if frame.session_id] == [SESSION]
        counted = {(each.direction, each.outcome): 0 for each in node.counted}
        for each in node.counted:
            counted[each.direction, each.outcome] += each.count
        expected = {
            (Direction.SENT, MessageOutcome.STORED): sent,
            (Direction.RECEIVED, MessageOutcome.STORED): received,
        }
        assert counted == {key: count for key, count in expected.items() if count}


@settings(max_examples=60)
@given(seeds, st.integers(0, 30), st.integers(0, 30), st.integers(0, 120))
def test_a_lost_connection_costs_nothing_that_was_stored(
    seed: int, only_left: int, only_right: int, steps: int
) -> None:
    rng = random.Random(seed)
    left, right = store_of(messages(only_left)), store_of(messages(only_right, 500))
    everything = left.frames | right.frames
    first = pair(left, right)
    run(rng, *first, steps=steps)
    for node, other in (first, first[::-1]):
        # What was acknowledged is durable at that moment, whatever happens next.
        assert all(digest in node.store.frames for digest in node.stored())
        assert other.machine.report.stored_by_peer <= len(node.stored())
        node.lose(rng)
        assert ended(node).fault in (TransferFault.NONE, TransferFault.LOST)
    missing = len(everything) - len(left.frames), len(everything) - len(right.frames)
    second = pair(left, right)
    run(rng, *second)
    assert left.frames == right.frames == everything
    assert tuple(ended(node).stored for node in second) == missing
    assert sum(ended(node).sent for node in second) == sum(missing)


@given(seeds)
def test_nothing_to_transfer_is_two_frames(seed: int) -> None:
    one, other = pair(Store(), Store())
    run(random.Random(seed), one, other)
    for node in (one, other):
        assert ended(node).equal
        assert node.sent == [Frame(SESSION, [], [], [], done=True)]


@given(seeds, st.integers(1, 12), st.integers(1, 12))
def test_messages_that_were_pruned_are_passed_over(seed: int, count: int, gone: int) -> None:
    left, right = store_of(messages(count)), Store()
    one, other = pair(left, right)
    for digest in list(left.frames)[:gone]:
        del left.frames[digest]
    run(random.Random(seed), one, other)
    assert right.frames == left.frames
    lost = min(gone, count)
    assert (ended(one).pruned, ended(one).sent, ended(one).equal) == (lost, count - lost, True)
    assert ended(other).undelivered == lost
    assert [reason for _, reason in other.refusals()] == ["not received"] * lost


@given(seeds, st.integers(1, 12), st.integers(0, 12), st.integers(0, 20))
def test_what_came_another_way_is_answered_as_stored(
    seed: int, count: int, another_way: int, steps: int
) -> None:
    rng = random.Random(seed)
    left, right = store_of(messages(count)), Store()
    one, other = pair(left, right)
    run(rng, one, other, steps=steps)
    right.frames |= dict(list(left.frames.items())[:another_way])
    for digest in list(left.frames)[: another_way // 2]:
        del left.frames[digest]
    run(rng, one, other)
    report = ended(other)
    assert report.stored + report.duplicates + report.elsewhere == count
    assert report.equal
    assert sorted(other.stored()) == sorted(right.frames)
    assert not other.refusals()


@given(seeds, st.integers(1, 12))
def test_an_answer_that_comes_first_saves_the_message(seed: int, count: int) -> None:
    rng = random.Random(seed)
    store = store_of(messages(count))
    ids = ids_of(store, store.frames)
    node = began(store, ids)
    known = [digest for _, digest in ids.pairs()]
    early = rng.sample(known, rng.randrange(count + 1))
    node.receive(raw(stored=early))
    run(rng, node)
    sent = sum(len(frame.messages) for frame in node.sent)
    assert sent == count - len(early)
    node.receive(raw(stored=[digest for digest in known if digest not in early], done=True))
    run(rng, node)
    assert ended(node).stored_by_peer == count
    assert ended(node).equal


def test_a_message_that_is_answered_while_it_waits_is_not_sent() -> None:
    store = store_of(messages(3))
    node = began(store, ids_of(store, store.frames))
    while len(node.work) > 1:
        node.work.remove(load := next(work for work in node.work if work is not SendReady))
        node.give(load())
    node.receive(raw(stored=list(store.frames)[:2]))
    run(random.Random(0), node)
    assert [message for frame in node.sent for message in frame.messages] == sent_form(
        store, list(store.frames)[2:]
    )


def test_a_large_message_does_not_share_a_frame_with_many_answers() -> None:
    rules = replace(POLICY, max_message_bytes=4 * 1024 * 1024)
    large = store_of(admit([entry(bytes(4_100_000))], NOW_NS, rules).batch)
    node = began(large, ids_of(large, large.frames), limits=TransferLimits())
    strangers = store_of(messages(3_000))
    node.receive(raw(items=sent_form(strangers, strangers.frames), done=True))
    node.give(node.work.pop(node.work.index(SendReady) - 1)())
    run(random.Random(0), node)
    assert [len(frame.refused) for frame in node.sent] == [0, 3_000, 0]
    assert max(len(encoded(frame)) for frame in node.sent) <= 4 * 1024 * 1024


STRICT = replace(POLICY, max_message_bytes=100)


@given(seeds, st.integers(0, 8), st.integers(1, 8))
def test_what_policy_refuses_is_sent_only_once(seed: int, small: int, large: int) -> None:
    rng = random.Random(seed)
    left, right = store_of(messages(small), messages(large, 500, 200)), Store()
    memories = PolicyMemory(), PolicyMemory()
    sent = [small + large, 0]
    for round_ in range(2):
        one, other = pair(left, right, memories=memories, policies=(POLICY, STRICT))
        run(rng, one, other)
        assert ended(one).sent == sent[round_]
        assert dict(ended(one).refused_by_peer) == {"too_large": large}
        assert dict(ended(other).refused) == {"too_large": large}
        assert ended(one).equal
        assert ended(other).equal
        assert len(right.frames) == small
        assert {reason.partition(":")[0] for _, reason in other.refusals()} == {"too_large"}
    assert "too_large" in ended(one).reasons_of_peer[0]
    assert list(map(len, memories)) == [large, large]


def test_what_was_refused_before_is_passed_over_when_it_comes_again() -> None:
    peer, memory = store_of(messages(3, size=200)), PolicyMemory()
    hashes, items = list(peer.frames), sent_form(peer, peer.frames)
    for round_ in range(2):
        node = began(Store(), None, ids_of(peer, hashes), memory=memory, policy=STRICT)
        node.receive(raw(items=items))
        node.receive(raw(items=items[:round_], done=True))
        run(random.Random(0), node)
        refused = Counter(reason.partition(":")[0] for _, reason in node.refusals())
        assert refused == Counter({"too_large": 3, "sent twice": round_})
        assert dict(ended(node).refused) == {"too_large": 3}
        assert (ended(node).repeated, ended(node).equal) == (round_, True)


@given(seeds)
def test_a_peer_that_has_other_rules_now_gets_it_the_time_after(seed: int) -> None:
    rng = random.Random(seed)
    left, right, memory = store_of(messages(3, size=200)), Store(), PolicyMemory()
    expected = [(3, False, 0), (0, False, 0), (3, True, 3)]
    sessions = zip([STRICT, POLICY, POLICY], expected, strict=True)
    for number, (policy, (sent, gets_there, stored)) in enumerate(sessions):
        one, other = pair(left, right, memories=(memory, PolicyMemory()), policies=(POLICY, policy))
        run(rng, one, other)
        assert (ended(one).sent, len(right.frames)) == (sent, stored)
        assert (ended(one).stored_by_peer == 3) is gets_there
        # The second time this side says nothing of it, and learns that the peer would take it.
        assert ended(one).equal is (number != 1)
    assert len(memory) == 0


@given(seeds, st.booleans())
def test_a_message_too_new_is_fetched_when_its_time_has_come(seed: int, late: bool) -> None:
    rng = random.Random(seed)
    exact = Policy(max_drift_ns=0)
    ahead = messages(1)
    (time_ns,) = ahead.timestamps
    left, right = store_of(ahead), Store()
    memories = PolicyMemory(), PolicyMemory()
    later_ns = time_ns if late else time_ns - NS_PER_S
    expected = [(time_ns - 10 * NS_PER_S, 1, 0), (later_ns, int(late), int(late))]
    for now_ns, sent, stored in expected:
        one, other = pair(left, right, memories=memories, policies=(exact, exact), now_ns=now_ns)
        run(rng, one, other)
        assert (ended(one).sent, len(right.frames)) == (sent, stored)
        assert dict(ended(other).refused) == ({} if stored else {"too_new": 1})


@settings(max_examples=5)
@given(seeds)
def test_frames_of_large_messages_stay_small_enough(seed: int) -> None:
    left = store_of(messages(30, size=150_000), messages(2, 700, 2_500_000))
    right = store_of(messages(30, 900, size=150_000), messages(1, 800, 4_000_000))
    rules = replace(POLICY, max_message_bytes=4_100_000)
    one, other = pair(left, right, limits=TransferLimits(), policies=(rules, rules))
    run(random.Random(seed), one, other)
    assert left.frames == right.frames
    assert ended(one).equal


def refuses(machine: Transfer, words: str, *inputs: Input) -> None:
    """Check that none of these inputs is allowed now."""
    for one in inputs:
        with pytest.raises(TransferStateError, match=words):
            machine.step(NOW_NS, one)


def test_an_input_that_is_not_allowed_changes_nothing() -> None:
    left = store_of(messages(4))
    one, _ = pair(left, Store())
    ids = ids_of(left, left.frames)
    fresh = Transfer(SESSION, ids, ids, memory=PolicyMemory(), peer="b")
    frame = TransferReceived("", Admitted(), 0)
    refuses(fresh, "has not begun", frame, SendReady(), Ticked(), Loaded([None]))
    wrong = Begin(NOW_NS), Persisted(1, [True]), Found([True]), Loaded([]), Loaded([b"x"] * 2)
    refuses(one.machine, "runs", *wrong)
    one.give(Loaded([b"x"]))
    for _ in range(2):
        one.work.remove(SendReady)
        one.give(SendReady())
    refuses(one.machine, "runs", SendReady())
    one.give(StreamLost("the node stops"))
    assert ended(one).error == "the node stops"
    assert (ended(one).unanswered, ended(one).sent, ended(one).equal) == (4, 1, False)
    refuses(one.machine, "has ended", Ticked(), StreamLost("again"), Begin(NOW_NS), frame)


def test_a_transfer_can_be_lost_before_it_begins() -> None:
    ids = ids_of(store := store_of(messages(2)), store.frames)
    node = Node(store, SyncIds.empty(), ids)
    node.give(StreamLost("no connection"))
    assert (ended(node).outstanding, ended(node).fault) == (2, TransferFault.LOST)
