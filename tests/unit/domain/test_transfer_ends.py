"""The end of a transfer that takes long, whose stream closes early, or whose result was cut."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from store.domain.ports import ContentConflict
from store.messages.record import RecordBatch
from store.sync.limits import (
    CALLER_GRACE_NS,
    PACE_IDS,
    PACE_NS,
    SILENCE_NS,
    TOTAL_NS,
    TransferLimits,
)
from store.sync.transfer.events import (
    MAX_KEPT_CONFLICTS,
    Begin,
    SendReady,
    StreamLost,
    Ticked,
    TransferFault,
)
from store.sync.transfer.policy_memory import PolicyMemory, Side
from storenode.message.rules import Reason
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entry
from tests.unit.domain.transfer_world import (
    POLICY,
    SMALL,
    Node,
    Store,
    began,
    ended,
    ids_of,
    join,
    messages,
    pair,
    raw,
    require_silence,
    run,
    sent_form,
    store_of,
)

NS_PER_S = 10**9
PEER = store_of(messages(2_000))
HASHES = sorted(PEER.frames, key=lambda digest: (PEER.frames[digest][0], digest))
STEP_NS = SILENCE_NS - 1

seeds = st.integers(0, 2**32)


def receiver(limits: TransferLimits = SMALL) -> Node:
    """Return a node that expects all that the peer has."""
    return began(Store(), None, ids_of(PEER, HASHES), limits=limits)


def trickle(node: Node, each_ns: int, count: int = 1, most: int = 2_000) -> int:
    """Send so many messages every so often until the node ends it; how many nanoseconds it took."""
    sent, began_ns = 0, node.now_ns
    while node.report is None and sent < most:
        node.now_ns += each_ns
        node.receive(raw(items=sent_form(PEER, HASHES[sent : sent + count])))
        run(random.Random(sent), node)
        node.give(Ticked())
        sent += count
    return node.now_ns - began_ns


def test_a_peer_that_lets_messages_trickle_is_given_up() -> None:
    node = receiver()
    assert PACE_NS <= trickle(node, STEP_NS) < PACE_NS + 2 * SILENCE_NS
    assert ended(node).fault is TransferFault.SLOW
    assert "in 300 s, and 64 or 262,144 are due" in ended(node).error
    assert ended(node).stored > 0, "what came stays"


def test_small_messages_at_a_fair_pace_and_few_large_ones_are_not_too_slow() -> None:
    node = receiver(replace(SMALL, pace_bytes=2**40))
    trickle(node, PACE_NS // PACE_IDS, most=3 * PACE_IDS)
    assert node.report is None
    slow = replace(SMALL, pace_bytes=100)
    node = receiver(slow)
    trickle(node, STEP_NS, most=30)
    assert node.report is None


def test_what_is_left_at_the_end_may_be_less_than_the_pace() -> None:
    node = began(Store(), None, ids_of(PEER, HASHES[:3]))
    for number in range(3):
        assert node.report is None
        node.now_ns += STEP_NS
        node.receive(raw(items=sent_form(PEER, HASHES[number : number + 1])))
        run(random.Random(number), node)
        node.give(Ticked())
    for _ in range(2 * PACE_NS // STEP_NS):
        node.now_ns += STEP_NS
        if node.report is None:
            node.give(Ticked())
    assert ended(node).fault is TransferFault.SILENCE


def test_a_transfer_ends_after_its_time_however_well_it_goes() -> None:
    node = receiver(replace(SMALL, pace_ids=1))
    assert TOTAL_NS <= trickle(node, STEP_NS) <= TOTAL_NS + SILENCE_NS
    assert ended(node).fault is TransferFault.SLOW
    assert "not done within 3600 s" in ended(node).error


def test_a_slow_database_of_the_own_does_not_count_against_the_pace() -> None:
    node = receiver()
    node.receive(raw(items=sent_form(PEER, HASHES[:1])))
    while SendReady in node.work:
        node.work.remove(SendReady)
        node.give(SendReady())
    for _ in range(3):
        node.now_ns += PACE_NS
        node.give(Ticked())
    assert node.report is None


def test_who_began_is_the_more_patient_one() -> None:
    limits = TransferLimits()
    grace = limits.with_grace()
    assert grace.total_ns - limits.total_ns == grace.pace_ns - limits.pace_ns == CALLER_GRACE_NS
    assert grace.silence_ns == limits.silence_ns


def test_a_clock_that_is_set_neither_kills_nor_prolongs_a_transfer() -> None:
    """Show that only what is remembered depends on the clock, from the beginning on."""
    for clock_ns in (0, NOW_NS, 2 * NOW_NS):
        memory = PolicyMemory()
        store = store_of(messages(1, 3_000))
        node = Node(store, ids_of(store, store.frames), SyncIds.empty(), memory=memory)
        node.now_ns = 5 * NS_PER_S
        node.give(Begin(clock_ns))
        (digest,) = store.frames
        node.now_ns += NS_PER_S
        node.receive(raw(refused=[(digest, f"{Reason.TOO_LARGE}: no")]))
        ((until_ns, label),) = memory.book("peer", Side.THEIRS).entries.values()
        assert label == Reason.TOO_LARGE
        assert until_ns == memory.until_ns(clock_ns + NS_PER_S, 0, label)
        run(random.Random(0), node)
        require_silence(node)


@given(seeds, st.booleans())
def test_a_stream_that_closes_when_all_is_answered_was_only_closed(seed: int, sends: bool) -> None:
    """Let the other side end before this one has the result of its last write."""
    batch = messages(5)
    left, right = (store_of(batch), Store()) if sends else (Store(), store_of(batch))
    one, other = pair(left, right)
    rng = random.Random(seed)
    while other.report is None:
        rng.choice(one.events() + other.events())()
    while one.inbox and one.report is None:
        one.receive(one.inbox.popleft())
    if one.report is None:
        assert one.work == [SendReady]
        one.give(StreamLost("the peer ended the transfer"))
    assert (ended(one).fault, ended(one).error, ended(one).equal) == (TransferFault.NONE, "", True)
    assert ended(other).equal


def test_a_stream_that_is_lost_before_is_lost() -> None:
    node = receiver()
    node.receive(raw(items=sent_form(PEER, HASHES[:1])))
    node.give(StreamLost("the network is gone"))
    assert (ended(node).fault, ended(node).error) == (TransferFault.LOST, "the network is gone")


@given(seeds, st.integers(0, 20))
def test_a_larger_limit_of_differences_is_no_fault(seed: int, limit: int) -> None:
    left, right = store_of(messages(40)), Store()
    missing = right.lacks(left)
    sender = Node(left, missing, SyncIds.empty(), peer="b")
    lacking = SyncIds.of(missing.pairs()[:limit])
    receiver = Node(right, SyncIds.empty(), lacking, peer="a", partial=True)
    join(sender, receiver)
    run(random.Random(seed), sender, receiver)
    for node in (sender, receiver):
        assert ended(node).fault is TransferFault.NONE, ended(node).error
    assert len(right.frames) == limit
    assert ended(sender).stored_by_peer == limit
    assert ended(sender).missed_by_peer == 40 - limit
    assert not ended(sender).equal
    assert len(receiver.machine._receiving.answers) == 0


@given(seeds, st.integers(0, 20))
def test_answers_about_what_only_the_peer_has_found_are_passed_over(seed: int, limit: int) -> None:
    left, right = store_of(messages(40)), Store()
    missing = right.lacks(left)
    sender = Node(left, SyncIds.of(missing.pairs()[:limit]), SyncIds.empty(), partial=True)
    receiver = Node(right, SyncIds.empty(), missing, peer="a")
    join(sender, receiver)
    run(random.Random(seed), sender, receiver)
    assert ended(sender).fault is TransferFault.NONE, ended(sender).error
    assert ended(sender).stored_by_peer == limit
    assert len(right.frames) == limit


def test_a_flood_after_a_cut_is_read_no_faster_than_it_is_answered() -> None:
    node = began(Store(), None, ids_of(PEER, HASHES[:1]), partial=True)
    sent = 0
    while node.machine.reading:
        assert sent < 100, "it reads on, however much waits"
        node.receive(raw(items=sent_form(PEER, HASHES[10 + sent : 15 + sent])))
        sent += 5
    assert node.report is None
    run(random.Random(0), node)
    assert node.machine.reading


@pytest.mark.parametrize("partial", [False, True])
def test_an_answer_that_comes_twice_is_a_fault_of_its_sender(partial: bool) -> None:
    store = store_of(messages(2, 3_000))
    ids = ids_of(store, store.frames)
    node = began(store, ids, partial=partial)
    node.receive(raw(stored=[ids.at(0)[1]]))
    node.receive(raw(stored=[ids.at(0)[1]]))
    assert ended(node).fault is TransferFault.PROTOCOL


def same_hash(count: int) -> tuple[RecordBatch, RecordBatch]:
    """Return two batches whose messages have the same hashes and different contents."""
    times = range(NOW_NS - count, NOW_NS)
    ones = [entry(b"pay/a", content="b/1/c/proto", timestamp=time_ns) for time_ns in times]
    others = [entry(b"pay", content="/ab/1/c/proto", timestamp=time_ns) for time_ns in times]
    first, second = (admit(items, NOW_NS, POLICY).batch for items in (ones, others))
    assert first.hashes == second.hashes
    return first, second


@pytest.mark.parametrize("count", [1, MAX_KEPT_CONFLICTS + 5])
def test_a_message_whose_hash_another_one_has_is_refused_as_a_conflict(count: int) -> None:
    ones, others = same_hash(count)
    receiving, sending = pair(Store(), store_of(others))
    # They come by another way, after the session has found that they are missing.
    receiving.store.add(ones)
    run(random.Random(count), receiving, sending)
    report, sent = ended(receiving), ended(sending)
    assert report.conflict_count == report.in_conflict == count
    assert len(report.conflicts) == min(count, MAX_KEPT_CONFLICTS)
    assert set(report.conflicts) <= {
        ContentConflict(*each)
        for each in zip(
            ones.timestamps,
            ones.hashes,
            ones.content_digests,
            others.content_digests,
            strict=True,
        )
    }
    assert (report.stored, report.duplicates, report.equal) == (0, 0, False)
    assert (sent.stored_by_peer, sent.in_conflict, sent.equal) == (0, count, False)
    assert {reason for _, reason in receiving.refusals()} == {
        "conflict: another message has this hash; change its timestamp"
    }
    assert receiving.store.contents == store_of(ones).contents
