"""Transfers of two sides to each other: whatever the order of events, both end equal."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from store.domain.ports import PeerError, StoreBusyError
from store.messages.record import RecordBatch
from store.sync.errors import Fault
from store.sync.limits import BUSY_PATIENCE_S, MAX_SHOWN_HIDDEN, TransferLimits
from store.sync.session.report import ContentConflict
from store.sync.transfer.halves import IdLookup
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.peer_pb2 import TransferFrame
from tests.support.admission import admit
from tests.support.virtual_time import virtual_time
from tests.unit.builders import NOW_NS, entry
from tests.unit.domain.transfer_world import (
    NONE,
    NS_PER_S,
    POLICY,
    SESSION,
    Side,
    Store,
    finish,
    join,
    messages,
    pair,
    raw,
    sent_form,
    store_of,
)

STRICT = replace(POLICY, max_message_bytes=100)

seeds = st.integers(0, 2**32)


@settings(max_examples=40)
@given(seeds, st.integers(0, 30), st.integers(0, 30), st.integers(0, 5), st.integers(5, 300))
@virtual_time
async def test_both_sides_end_with_everything(
    seed: int, only_left: int, only_right: int, both: int, size: int
) -> None:
    shared = messages(both, 1000)
    left = store_of(shared, messages(only_left, 0, size))
    right = store_of(shared, messages(only_right, 500, size))
    sides = pair(left, right, seed=seed)
    reports = await finish(*sides)
    assert left.frames == right.frames
    assert sides[1].sent[0] != TransferFrame(session_id=SESSION), "a frame that says nothing"
    counts = (only_left, only_right), (only_right, only_left)
    for side, report, (sent, received) in zip(sides, reports, counts, strict=True):
        assert report.moved_all
        assert (report.sent, report.messages_sent, report.stored) == (sent, sent, received)
        assert not report.refused_by_policy
        assert [frame.session_id for frame in side.sent if frame.session_id] == [SESSION]
        assert side.sent[0].session_id == SESSION
        expected = Counter({("sent", "stored"): sent, ("received", "stored"): received})
        assert report.take_progress() == +expected
        if not sent + received:
            assert side.sent == [TransferFrame(session_id=SESSION, done=True)]


@settings(max_examples=25)
@given(seeds, st.integers(1, 12), st.integers(0, 12), st.floats(0, 0.1))
@virtual_time
async def test_what_came_another_way_is_answered_as_stored(
    seed: int, count: int, another_way: int, seconds: float
) -> None:
    left, right = store_of(messages(count)), Store()
    one, other = pair(left, right, seed=seed)
    await asyncio.sleep(seconds)
    right.frames |= dict(list(left.frames.items())[:another_way])
    for digest in list(left.frames)[: another_way // 2]:
        del left.frames[digest]
    _, report = await finish(one, other)
    assert report.stored + report.duplicates + report.elsewhere == count
    assert report.moved_all
    assert sorted(other.stored()) == sorted(right.frames)
    assert not other.refusals()


@virtual_time
async def test_a_message_that_is_answered_while_it_waits_is_not_sent() -> None:
    store = store_of(messages(3))
    side = Side(store, store.ids)
    side.takes.clear()
    await side.receive(raw(stored=list(store.frames)[:2]))
    side.takes.set()
    await asyncio.sleep(1)
    sent = [each.SerializeToString() for frame in side.sent for each in frame.messages]
    assert sent == sent_form(store, list(store.frames)[2:])


@virtual_time
async def test_a_large_message_does_not_share_a_frame_with_many_answers() -> None:
    rules = replace(POLICY, max_message_bytes=4 * 1024 * 1024)
    large = store_of(admit([entry(bytes(4_100_000))], NOW_NS, rules).batch)
    side = Side(large, large.ids, limits=TransferLimits())
    side.takes.clear()
    strangers = store_of(messages(3_000))
    await side.receive(raw(items=sent_form(strangers, strangers.frames), done=True))
    side.takes.set()
    await asyncio.sleep(1)
    assert sorted(len(frame.refused) for frame in side.sent) == [0, 0, 3_000]
    assert [len(frame.messages) * len(frame.refused) for frame in side.sent] == [0, 0, 0]


# What policy refuses


@settings(max_examples=15)
@given(seeds, st.integers(0, 8), st.integers(1, 8))
@virtual_time
async def test_what_policy_refuses_is_sent_only_once(seed: int, small: int, large: int) -> None:
    left, right = store_of(messages(small), messages(large, 500, 200)), Store()
    memories = PolicyMemory(), PolicyMemory()
    for sent in (small + large, 0):
        sides = pair(left, right, memories=memories, policies=(POLICY, STRICT), seed=seed)
        one, other = await finish(*sides)
        assert one.sent == sent
        assert dict(one.refused_by_peer) == dict(other.refused) == {"too_large": large}
        assert one.moved_all
        assert other.moved_all
        assert len(right.frames) == small
        assert set(sides[1].labels().values()) == {"too_large"}
        assert "too_large" in one.reasons_of_peer[0]
        assert other.rejected()["too_large"] == (large if sent else 0)
    assert list(map(len, memories)) == [large, large]


@virtual_time
async def test_what_was_refused_before_is_passed_over_when_it_comes_again() -> None:
    peer, memory = store_of(messages(3, size=200)), PolicyMemory()
    items = sent_form(peer, peer.frames)
    for repeated in range(2):
        side = Side(Store(), NONE, peer.ids, memory=memory, policy=STRICT)
        await side.receive(raw(items=items), raw(items=items[:repeated], done=True))
        report = await side.ended()
        refused = Counter(reason.partition(":")[0] for _, reason in side.refusals())
        assert refused == Counter({"too_large": 3, "sent twice": repeated})
        assert dict(report.refused) == {"too_large": 3}
        assert (report.repeated, report.moved_all) == (repeated, True)


@virtual_time
async def test_a_peer_that_has_other_rules_now_gets_it_the_time_after() -> None:
    left, right, memory = store_of(messages(3, size=200)), Store(), PolicyMemory()
    expected = [(3, 0, 0), (0, 0, 0), (3, 3, 3)]
    sessions = zip([STRICT, POLICY, POLICY], expected, strict=True)
    for number, (policy, (sent, stored_there, stored)) in enumerate(sessions):
        sides = pair(left, right, memories=(memory, PolicyMemory()), policies=(POLICY, policy))
        report, _ = await finish(*sides)
        assert (report.sent, report.messages_sent) == (sent, stored_there)
        assert len(right.frames) == stored
        # The second time this side says nothing of it, and learns that the peer would take it.
        assert report.moved_all is (number != 1)
    assert len(memory) == 0


@pytest.mark.parametrize("late", [True, False])
@virtual_time
async def test_a_message_too_new_is_fetched_when_its_time_has_come(late: bool) -> None:
    exact = Policy(max_drift_ns=0)
    ahead = messages(1)
    (time_ns,) = ahead.timestamps
    left, right = store_of(ahead), Store()
    memories = PolicyMemory(), PolicyMemory()
    later_ns = time_ns if late else time_ns - 100 * NS_PER_S
    for clock_ns, sent, stored in (
        (time_ns - 200 * NS_PER_S, 1, 0),
        (later_ns, int(late), int(late)),
    ):
        sides = pair(left, right, memories=memories, policies=(exact, exact), clock_ns=clock_ns)
        one, other = await finish(*sides)
        assert (one.sent, len(right.frames)) == (sent, stored)
        assert dict(other.refused) == ({} if stored else {"too_new": 1})


# Results that were cut, and conflicts


@settings(max_examples=20)
@given(seeds, st.integers(0, 20), st.booleans())
@virtual_time
async def test_a_larger_limit_of_differences_on_one_side_is_no_fault(
    seed: int, limit: int, sender_is_cut: bool
) -> None:
    left, right = store_of(messages(40)), Store()
    missing = right.lacks(left)
    found = SyncIds.of(missing.pairs()[:limit])
    to_send, to_receive = (found, missing) if sender_is_cut else (missing, found)
    sender = Side(left, to_send, partial=sender_is_cut, seed=seed)
    receiver = Side(right, NONE, to_receive, partial=True, seed=~seed)
    sent, received = await finish(*join(sender, receiver))
    assert sent.fault is received.fault is Fault.NONE, (sent.error, received.error)
    assert len(right.frames) == sent.messages_sent == limit
    assert received.moved_all is (not sender_is_cut)
    if not sender_is_cut:
        assert sent.missed_by_peer == 40 - limit
        assert not sent.moved_all


def same_hash(count: int) -> tuple[RecordBatch, RecordBatch]:
    """Return two batches whose messages have the same hashes and different contents."""
    times = range(NOW_NS - count, NOW_NS)
    ones = [entry(b"pay/a", content="b/1/c/proto", timestamp=time_ns) for time_ns in times]
    others = [entry(b"pay", content="/ab/1/c/proto", timestamp=time_ns) for time_ns in times]
    first, second = (admit(items, NOW_NS, POLICY).batch for items in (ones, others))
    assert first.hashes == second.hashes
    return first, second


@pytest.mark.parametrize("count", [1, MAX_SHOWN_HIDDEN + 5])
@virtual_time
async def test_a_message_whose_hash_another_one_has_is_refused_as_a_conflict(count: int) -> None:
    ones, others = same_hash(count)
    receiving, sending = pair(Store(), store_of(others))
    # They come by another way, after the session has found that they are missing.
    receiving.contents.add(ones)
    report, sent = await finish(receiving, sending)
    assert report.unstored_conflicts == report.conflicts == count
    assert len(report.shown_conflicts) == min(count, MAX_SHOWN_HIDDEN)
    columns = ones.timestamps, ones.hashes, ones.content_digests, others.content_digests
    every = {ContentConflict(*each) for each in zip(*columns, strict=True)}
    assert set(report.shown_conflicts) <= every
    assert (report.stored, report.duplicates, report.moved_all) == (0, 0, False)
    assert (sent.messages_sent, sent.conflicts, sent.moved_all) == (0, count, False)
    assert {reason for _, reason in receiving.refusals()} == {
        "conflict: another message has this hash; change its timestamp"
    }
    assert receiving.contents.contents == store_of(ones).contents


# The database and the end of the stream


@pytest.mark.parametrize("seconds", [BUSY_PATIENCE_S / 2, 10 * BUSY_PATIENCE_S])
@virtual_time
async def test_a_busy_store_is_asked_again_for_a_while(seconds: float) -> None:
    left, right = store_of(messages(3)), Store()
    one, other = pair(left, right)
    store, began_ns = other.store, other.passed_ns

    async def busy(*batch: RecordBatch) -> object:
        if other.passed_ns - began_ns < seconds * NS_PER_S:
            raise StoreBusyError("the queue is full")
        return await store(*batch)  # type: ignore[arg-type]

    other.store = busy  # type: ignore[method-assign, assignment]
    if seconds < BUSY_PATIENCE_S:
        assert [report.moved_all for report in await finish(one, other)] == [True, True]
        assert right.frames == left.frames
    else:
        report = await other.ended()
        assert report.error == "the database of this node does not serve: the queue is full"
        assert report.fault is Fault.LOST


@virtual_time
async def test_a_stream_that_is_lost_before_all_is_answered_is_lost() -> None:
    peer = store_of(messages(3))
    for end, words in ((PeerError("it broke"), "it broke"), (None, "before everything was")):
        side = Side(Store(), NONE, peer.ids)
        await side.receive(raw(items=sent_form(peer, list(peer.frames)[:1])))
        side.inbox.put_nowait(end)
        report = await side.ended()
        assert report.fault is Fault.LOST
        assert (report.stored, report.outstanding, report.moved_all) == (1, 2, False)
        assert words in report.error


@virtual_time
async def test_a_stream_that_closes_when_all_is_answered_was_only_closed() -> None:
    store = store_of(messages(1))
    side = Side(store, store.ids)
    await asyncio.sleep(1)
    side.takes.clear()
    await side.receive(raw(stored=store.frames, done=True))
    side.inbox.put_nowait(None)
    report = await side.ended()
    assert (report.fault, report.error, report.moved_all) == (Fault.NONE, "", True)


# Few different hashes, with common beginnings and zeros at the end.
hashes = st.builds(
    lambda start, end: bytes(start) + b"\x01" + bytes(30 - start) + bytes([end]),
    st.integers(0, 30),
    st.sampled_from([0, 1, 255]),
)


@given(st.lists(hashes, unique=True, max_size=40), st.lists(hashes, max_size=40))
@example([], [bytes(32)])
@example([bytes(32)], [])
@example([bytes(32)], [bytes(32), b"\xff" * 32])
def test_every_hash_is_found_at_its_place(stored: list[bytes], wanted: list[bytes]) -> None:
    lookup = IdLookup(SyncIds.of((number, digest) for number, digest in enumerate(stored)))
    found = lookup.find(wanted).tolist()
    assert found == [stored.index(digest) if digest in stored else -1 for digest in wanted]
