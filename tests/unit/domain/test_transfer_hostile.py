"""A transfer with a peer that breaks the rules, floods, lets messages trickle, or does nothing."""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from reconcile.session import Role
from store.domain.admission import Admitted, Verdict
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.sync.errors import Fault
from store.sync.limits import SILENCE_NS, TRANSFER_TICK_S, TransferLimits
from store.sync.session.report import SessionReport
from store.sync.transfer.halves import Receiving
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.message.rules import Refusal
from storenode.wire.storenode.v1.peer_pb2 import TransferFrame, TransferRefusal
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import bad_messages
from tests.support.virtual_time import virtual_time
from tests.unit.builders import NOW_NS, entry
from tests.unit.domain.transfer_world import (
    NONE,
    NS_PER_S,
    SESSION,
    SMALL,
    Side,
    Store,
    ids_of,
    messages,
    raw,
    sent_form,
    store_of,
)

PEER = store_of(messages(2_000))
"""The peer's messages; a session has found the first ones missing."""

HASHES = sorted(PEER.frames, key=lambda digest: (PEER.frames[digest][0], digest))
MINE = store_of(messages(3, 3_000))
OWN = next(iter(MINE.frames))
TICK_NS = int(TRANSFER_TICK_S) * NS_PER_S
PACE_NS, TOTAL_NS = TransferLimits().pace_ns, TransferLimits().total_ns
SILENCE_S = SILENCE_NS // NS_PER_S

seeds = st.integers(0, 2**32)


def receiver(count: int = 3, **more: Any) -> Side:  # noqa: ANN401 - as of `Side`
    """Return a side that expects the first ``count`` messages of the peer."""
    return Side(Store(), NONE, ids_of(PEER, HASHES[:count]), **more)


def sender(count: int = 3, **more: Any) -> Side:  # noqa: ANN401 - as of `Side`
    """Return a side that has ``count`` messages for the peer."""
    store = store_of(messages(count, 3_000))
    return Side(store, store.ids, **more)


def items(start: int, end: int) -> list[bytes]:
    """Return some of the peer's messages as it sends them."""
    return sent_form(PEER, HASHES[start:end])


async def silent_after(side: Side) -> int:
    """Return how long a side bears silence, in nanoseconds."""
    began_ns = side.passed_ns
    report = await side.ended()
    assert report.fault is Fault.SILENCE
    assert "the peer has said nothing for 6" in report.error
    return side.passed_ns - began_ns


# What is not expected


@pytest.mark.parametrize(
    "script",
    [[items(0, 3) + items(1, 3)], [items(0, 3), items(1, 3)], [items(0, 1), items(1, 3) * 2]],
)
@virtual_time
async def test_what_comes_twice_is_stored_and_answered_once(script: list[list[bytes]]) -> None:
    side = receiver()
    await side.receive(*(raw(items=each) for each in script), raw(done=True))
    report = await side.ended()
    assert sorted(side.stored()) == sorted(HASHES[:3])
    assert side.labels() == dict.fromkeys(HASHES[1:3], "sent twice")
    assert (report.repeated, report.stored) == (2, 3)


@virtual_time
async def test_an_id_that_was_announced_with_another_time_does_not_exist() -> None:
    timestamp, digest = PEER.frames[HASHES[0]][0], HASHES[0]
    side = Side(Store(), NONE, SyncIds.of([(timestamp - 1, digest)]))
    await side.receive(raw(items=items(0, 1), done=True))
    report = await side.ended()
    assert not side.contents.frames
    assert (report.unsolicited, report.undelivered) == (1, 1)


@virtual_time
async def test_messages_without_a_hash_are_counted() -> None:
    side = Side(Store(), NONE, SyncIds.of([(NOW_NS, bytes(32))]))
    untimed = [entry(timestamp=each).SerializeToString() for each in (None, 0)]
    await side.receive(raw(items=[*untimed, b""], done=True))
    assert (await side.ended()).unsolicited == 3
    assert side.refusals() == [(bytes(32), "not received")]


@virtual_time
async def test_a_bad_message_keeps_no_other_out() -> None:
    side, sent = receiver(12, limits=replace(SMALL, unsolicited_messages=11)), items(0, 12)
    bad = bad_messages(WakuMessageAndTopic.FromString(items(12, 13)[0]))
    for place, each in enumerate(bad.values()):
        sent.insert(2 * place + 1, each)
    await side.receive(raw(items=sent, done=True))
    report = await side.ended()
    assert (report.error, report.stored) == ("", 12)
    assert report.unsolicited == len(bad)
    assert sorted(side.contents.frames) == sorted(HASHES[:12])


# What breaks the rules

Given = dict[str, Any]

_SHORT = TransferFrame(
    session_id=SESSION, refused=[TransferRefusal(message_hash=b"short", reason="no")]
)

BREACHES: dict[str, tuple[Callable[..., Side], Given | None, bytes]] = {
    "sends messages after it was done": (sender, {"done": True}, raw(items=items(0, 1))),
    "second time": (sender, {"stored": [OWN]}, raw(refused=[(OWN, "too_large: now")])),
    "an ID for the second time": (sender, None, raw(stored=[OWN, OWN])),
    "for the second": (partial(sender, partial=True), {"stored": [OWN]}, raw(stored=[OWN])),
    "which it was not sent": (sender, None, raw(stored=[HASHES[0]])),
    f"{HASHES[1].hex()}": (sender, None, raw(refused=[(HASHES[1], "no")])),
    "more IDs than are open": (partial(sender, 1), None, raw(stored=[bytes(32)] * 2)),
    "does not have 32 bytes": (sender, None, _SHORT.SerializeToString()),
    "names another session": (receiver, None, raw(session_id="other")),
    "or the first one none": (receiver, None, raw(session_id="")),
    "is no TransferFrame": (receiver, None, b"\xff"),
}


@pytest.mark.parametrize("words", BREACHES)
@virtual_time
async def test_a_peer_that_breaks_the_rules_ends_the_transfer(words: str) -> None:
    make, before, frame = BREACHES[words]
    side = make()
    await side.receive(*([] if before is None else [raw(**before)]))
    stored = side.report.messages_sent
    await side.receive(frame)
    report = await side.ended()
    assert report.fault is Fault.PROTOCOL
    assert words in report.error
    assert (report.messages_sent, report.stored) == (stored, 0)


@virtual_time
async def test_a_frame_is_taken_whole_or_not_at_all() -> None:
    side = Side(store_of(messages(3, 3_000)), MINE.ids, ids_of(PEER, HASHES[:1]))
    await side.receive(raw(items=items(0, 1), stored=[OWN], refused=[(HASHES[2], "no")]))
    report = await side.ended()
    assert report.fault is Fault.PROTOCOL
    assert (report.messages_sent, report.unanswered, report.outstanding) == (0, 3, 1)
    assert not side.writes


@virtual_time
async def test_too_many_unsolicited_messages_end_the_transfer() -> None:
    side = receiver(1)
    await side.receive(raw(items=items(10, 16) + items(0, 1)), raw(items=items(16, 21)))
    report = await side.ended()
    assert report.fault is Fault.LIMIT
    assert "limit of 10 messages" in report.error
    assert list(side.contents.frames) == HASHES[:1]


# Bounds on what waits


@virtual_time
@pytest.mark.parametrize("pieces", [512, 2])
async def test_a_peer_that_sends_faster_than_the_database_is_not_read(pieces: int) -> None:
    side = receiver(200, limits=replace(SMALL, unstored_pieces=pieces))
    side.stores.clear()
    frames = [raw(items=items(at, at + 1)) for at in range(200)]
    await side.receive(*frames)
    most = -(-SMALL.unstored_bytes // len(frames[0]))
    assert side.reads == side.writes == min(most, pieces)
    side.stores.set()
    await side.receive()
    assert len(side.contents.frames) == 200


@virtual_time
async def test_a_flood_after_a_cut_is_read_no_faster_than_it_is_answered() -> None:
    side = receiver(1, partial=True)
    side.takes.clear()
    await side.receive(*(raw(items=items(10 + at, 15 + at)) for at in range(0, 500, 5)))
    assert side.reads <= 3, "it reads on, however much waits"
    side.takes.set()
    await side.receive()
    assert side.reads == 100
    assert not side.has_ended


@virtual_time
async def test_a_peer_that_takes_no_frame_is_silent_and_costs_little() -> None:
    side = sender(100)
    side.takes.clear()
    await side.receive()
    assert side.unsent_bytes <= SMALL.unsent_bytes + 100
    assert SILENCE_NS - NS_PER_S <= await silent_after(side) <= SILENCE_NS + TICK_NS


# Time


@virtual_time
async def test_silence_ends_it_and_empty_frames_are_silence() -> None:
    side = receiver()
    for _ in range(0, SILENCE_S, 10):
        assert not side.has_ended
        await side.receive(raw())
        await asyncio.sleep(9)
    assert await silent_after(side) <= TICK_NS


@pytest.mark.parametrize(
    "what",
    [
        {"items": items(0, 1)},
        {"stored": [OWN]},
        {"refused": [(OWN, "not received")]},
        {"done": True},
    ],
)
@virtual_time
async def test_what_counts_breaks_the_silence(what: dict[str, Any]) -> None:
    side = Side(store_of(messages(3, 3_000)), MINE.ids, ids_of(PEER, HASHES[:2]))
    await side.receive(raw())
    await asyncio.sleep(SILENCE_S - 10)
    await side.receive(raw(**what))
    assert SILENCE_NS - NS_PER_S <= await silent_after(side) <= SILENCE_NS + TICK_NS


@virtual_time
async def test_a_slow_database_is_neither_silence_nor_slowness_of_the_peer() -> None:
    side = receiver()
    side.stores.clear()
    await side.receive(raw(items=items(0, 3)))
    await asyncio.sleep(3 * PACE_NS // NS_PER_S)
    assert not side.has_ended
    side.stores.set()
    await side.receive()
    assert await silent_after(side) >= SILENCE_NS - TICK_NS - NS_PER_S
    assert side.report.stored == 3


async def trickle(side: Side, each_s: float, most: int = 2_000) -> int:
    """Send a message every so often until the side ends; return how long it took."""
    sent, began_ns = 0, side.passed_ns
    while not side.has_ended and sent < most:
        await asyncio.sleep(each_s - 1)
        await side.receive(raw(items=items(sent, sent + 1)))
        sent += 1
    return side.passed_ns - began_ns


@virtual_time
async def test_a_peer_that_lets_messages_trickle_is_given_up() -> None:
    side = receiver(2_000)
    assert PACE_NS <= await trickle(side, SILENCE_S - 1) < PACE_NS + 2 * SILENCE_NS
    report = await side.ended()
    assert report.fault is Fault.SLOW
    assert "in 300 s, and 64 or 262,144 are due" in report.error
    assert report.stored > 0, "what came stays"


@virtual_time
async def test_what_is_left_at_the_end_may_be_less_than_the_pace() -> None:
    side = receiver(3)
    await trickle(side, SILENCE_S - 1, 3)
    assert await silent_after(side)


@virtual_time
async def test_a_transfer_ends_after_its_time_however_well_it_goes() -> None:
    side = receiver(2_000, limits=replace(SMALL, pace_ids=1))
    assert TOTAL_NS <= await trickle(side, SILENCE_S - 1) <= TOTAL_NS + SILENCE_NS
    report = await side.ended()
    assert report.fault is Fault.SLOW
    assert "not done within 3600 s" in report.error


# Anything

digests = st.sampled_from([*HASHES[:6], *MINE.frames, bytes(32)])
frames = st.builds(
    raw,
    session_id=st.sampled_from([SESSION, SESSION, SESSION, "", "other"]),
    items=st.lists(st.sampled_from(items(0, 6)), max_size=4),
    stored=st.lists(digests, max_size=2),
    refused=st.lists(st.tuples(digests, st.sampled_from(["no", "too_large: x"])), max_size=2),
    done=st.sampled_from([False, False, False, True]),
)


@settings(max_examples=150)
@given(seeds, st.lists(st.tuples(frames, st.floats(0, 0.02)), max_size=8))
@virtual_time
async def test_whatever_a_peer_sends_only_what_is_expected_is_stored(
    seed: int, script: list[tuple[bytes, float]]
) -> None:
    expected = HASHES[:4]
    store = store_of(messages(3, 3_000))
    side = Side(store, MINE.ids, ids_of(PEER, expected), seed=seed)
    for frame, pause_s in script:
        side.inbox.put_nowait(frame)
        await asyncio.sleep(pause_s)
    await side.receive()
    added = store.frames.keys() - MINE.frames.keys()
    assert added <= set(expected)
    named = [digest for digest, label in side.labels().items() if label[:4] not in ("unso", "sent")]
    answers = Counter([*side.stored(), *named])
    assert set(answers.values()) <= {1}
    assert answers.keys() <= set(expected)
    assert set(side.stored()) <= added
    if side.has_ended and not side.report.fault:
        assert answers.keys() == set(expected)


# Memory

COUNT = 10_000
FRAME = 200
BYTES_PER_ID = 48


def random_ids(count: int) -> SyncIds:
    """Return random IDs as a peer may announce them."""
    noise = np.random.default_rng(7)
    times = np.arange(count, dtype=np.int64) + NOW_NS - 10**12
    return SyncIds(times, noise.integers(0, 256, (count, 32), np.uint8))


def published(ids: SyncIds, verdict: Verdict) -> Admitted:
    """Return what admission would say of some messages."""
    times, hashes = zip(*ids.pairs(), strict=True)
    count = len(ids)
    if verdict is Verdict.REJECTED:
        reasons = {at: Refusal("too_large", f"number {at} is too large") for at in range(count)}
        return Admitted([verdict] * count, [-1] * count, list(hashes), refusals=reasons)
    empty = [b""] * count
    digests = [digest[:16] for digest in hashes]
    batch = RecordBatch(
        list(times), list(hashes), [b"k" * 16] * count, digests, empty, empty, empty,
        {b"k" * 16: ("p", "c")},
    )  # fmt: skip
    return Admitted([verdict] * count, list(range(count)), list(hashes), batch)


@contextmanager
def no_more_than(size_bytes: int) -> Iterator[None]:
    """Check that what the block leaves takes less."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[0] < size_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", ["stored", "refused"])
def test_memory_is_bounded_while_the_peer_takes_no_answers(what: str) -> None:
    ids, memory = random_ids(COUNT), PolicyMemory(1_000)
    with no_more_than(COUNT * (BYTES_PER_ID + 4) + 1_000_000):
        report = SessionReport(Role.RESPONDER, 0)
        half = Receiving(ids[np.arange(COUNT)], TransferLimits(), report, memory)
        verdict = Verdict.REJECTED if what == "refused" else Verdict.ACCEPTED
        for start in range(0, COUNT, FRAME):
            part = published(ids[start : start + FRAME], verdict)
            accepted = half.receive(NOW_NS, part, 5_000)
            if accepted is not None:
                half.persisted(accepted, StoreResult([True] * FRAME))
        half.peer_is_done = True
        while (missing := half.find()) is not None:
            half.found([False] * len(missing))
        assert len(half.answers) == COUNT
        assert not half.outstanding
