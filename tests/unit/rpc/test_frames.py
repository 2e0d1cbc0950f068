"""Frames between stores, of sessions and of gossip: as the schema has them, or refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.admission import Admission
from store.domain.ports import Source
from store.gossip.events import Bodies
from store.rpc.gossip import decode_gossip
from store.serving.failure import CallError
from store.sync import frames
from store.sync.errors import Fault, SessionFaultError
from store.sync.frames import is_session_id, parse_reconcile, pieces
from store.sync.limits import MAX_SEARCH_IDS, MAX_SEARCH_SPANS
from storenode.client.messages import hash_of, new_message
from storenode.message.rules import Policy
from storenode.message.varint import delimited
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame
from storenode.wire.storenode.internal.v1.transfer_raw_pb2 import RawTransferFrame
from storenode.wire.storenode.v1 import peer_pb2
from storenode.wire.storenode.v1.peer_pb2 import (
    ReconcileExtension,
    ReconcileFrame,
    SumSearch,
    TransferFrame,
    TransferRefusal,
)
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import UNKNOWN_FIELDS, bad_messages

SESSION_ID = "0123456789abcdef0123456789abcdef"


def messages(count: int, size: int = 10) -> list[WakuMessageAndTopic]:
    return [
        WakuMessageAndTopic(
            message=WakuMessage(payload=bytes([number % 251]) * size, timestamp=number),
            pubsub_topic="topic",
        )
        for number in range(count)
    ]


def whole(parts: Sequence[RawTransferFrame]) -> TransferFrame:
    """Return the frame that was cut."""
    joined = b"".join(part.SerializeToString() for part in parts)
    return TransferFrame.FromString(joined)


@given(
    st.builds(
        TransferFrame,
        session_id=st.sampled_from(["", SESSION_ID]),
        messages=st.integers(0, 40).map(messages),
        stored=st.lists(st.binary(min_size=32, max_size=32), max_size=40),
        refused=st.lists(
            st.builds(TransferRefusal, message_hash=st.binary(max_size=32), reason=st.text()),
            max_size=10,
        ),
        done=st.booleans(),
    )
)
def test_the_pieces_of_a_frame_are_the_frame(frame: TransferFrame) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "ADMISSION_CHUNK_MESSAGES", 7)
        patch.setattr(frames, "MAX_PIECE_ANSWERS", 5)
        parts, sizes = zip(*pieces(frame.SerializeToString()), strict=True)
    assert whole(parts) == frame
    assert not any(part.done for part in parts[:-1])
    assert sum(sizes) <= frame.ByteSize()
    assert all(len(part.messages) <= 7 for part in parts)
    assert all(len(part.stored) + len(part.refused) <= 5 for part in parts)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_are_refused(data: bytes) -> None:
    try:
        parts = [part for part, _ in pieces(data)]
    except SessionFaultError:
        return
    read = RawTransferFrame.FromString(data)
    assert [message for part in parts for message in part.messages] == read.messages
    assert [digest for part in parts for digest in part.stored] == read.stored


def test_a_frame_of_very_many_entries_is_cut_before_it_is_decoded() -> None:
    data = b"\x12\x00" * 200_000
    first, _ = next(pieces(data))
    assert len(first.messages) == 1_000
    # The same entries, with tags that are longer than they need be.
    assert len(next(pieces(b"\x92\x00\x00" * 200_000))[0].messages) == 1_000


def test_a_frame_of_unknown_fields_is_refused() -> None:
    with pytest.raises(SessionFaultError, match="fields besides its entries"):
        list(pieces(b"\x12\x00" * 140_000 + b"\x78\x00" * 20_000))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_reconcile_frame_or_malformed(data: bytes) -> None:
    with suppress(SessionFaultError):
        assert parse_reconcile(data) == ReconcileFrame.FromString(data)


@pytest.mark.parametrize(
    "extension",
    [
        delimited(b"\x8a\1", delimited(b"\x0a", b"\1" * 600_000)),
        delimited(b"\x8a\1", delimited(b"\x0a", b"\1" * 100)) * 6_000,
        delimited(b"\x8a\1", b"\x18\1" * 300_000),
        delimited(b"\x1a", b"\3" * 600_000),
    ],
)
def test_a_frame_of_very_many_numbers_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch, extension: bytes
) -> None:
    monkeypatch.setattr(frames, "ReconcileFrame", None)
    with pytest.raises(SessionFaultError, match="far more than 4,160 spans"):
        parse_reconcile(delimited(b"\x2a", extension))


def test_the_largest_step_of_a_search_is_read() -> None:
    ends = range(2**63 - 2 * MAX_SEARCH_SPANS, 2**63)
    search = SumSearch(spans=ends, sums=bytes(32 * MAX_SEARCH_SPANS))
    frame = ReconcileFrame(ranges_data=bytes(600_000), extension=ReconcileExtension(search=search))
    assert parse_reconcile(frame.SerializeToString()) == frame


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        (SumSearch(spans=[1], sums=b""), Fault.PROTOCOL),
        (SumSearch(spans=[1, 2], sums=bytes(31)), Fault.PROTOCOL),
        (SumSearch(sums=bytes(32)), Fault.PROTOCOL),
        (SumSearch(listed=[1]), Fault.PROTOCOL),
        (SumSearch(listed=[1, 2], messages=bytes(55)), Fault.PROTOCOL),
        (SumSearch(listed=range(2 * MAX_SEARCH_SPANS + 2)), Fault.LIMIT),
        (SumSearch(listed=[1, 2], messages=bytes(56 * MAX_SEARCH_IDS + 56)), Fault.LIMIT),
    ],
)
def test_steps_of_a_search_whose_parts_do_not_fit(step: SumSearch, fault: Fault) -> None:
    frame = ReconcileFrame(extension=ReconcileExtension(search=step))
    with pytest.raises(SessionFaultError) as error:
        parse_reconcile(frame.SerializeToString())
    assert error.value.fault is fault


def test_session_ids() -> None:
    assert is_session_id(SESSION_ID)
    for text in ("", SESSION_ID[1:], SESSION_ID.upper(), SESSION_ID[:-1] + "g"):
        assert not is_session_id(text)


# Gossip

KINDS = ["inv", "get_events", "sync_leaves"]
DIGESTS = st.just(b"") | st.binary(min_size=16, max_size=16)


@st.composite
def frames_of_ids(draw: st.DrawFn) -> RawGossipFrame:
    """Draw a frame without bodies, with a content digest for each ID or none, and other leaves."""
    ids = draw(st.lists(st.binary(min_size=32, max_size=32), max_size=5))
    size = len(ids) if draw(st.booleans()) else 0
    digests = draw(st.lists(DIGESTS, min_size=size, max_size=size))
    found = peer_pb2.Inventory(ids=ids, content_digests=digests)
    if draw(st.booleans()):
        found.rest_xor = draw(st.binary(min_size=32, max_size=32))
        found.rest_count = draw(st.integers(0, 2**64 - 1))
    frame = RawGossipFrame()
    getattr(frame, draw(st.sampled_from(KINDS))).CopyFrom(found)
    return frame


def admission() -> Admission:
    return Admission(Policy(max_drift_ns=None), time.time_ns(), Source.GOSSIP)


@given(frames_of_ids())
async def test_frames_of_ids_are_read_as_they_are(frame: RawGossipFrame) -> None:
    encoded = frame.SerializeToString()
    assert peer_pb2.GossipFrame.FromString(encoded).SerializeToString() == encoded
    assert await decode_gossip(encoded, admission()) == frame


async def test_bodies_are_judged_and_counted_once_each() -> None:
    now_ns = time.time_ns()
    good = [new_message(b"%d" % n, "/a/1/b/proto", "/p", now_ns - n) for n in range(3)]
    bad = new_message(b"bad", "/a/1/b/proto", "/p", now_ns + 10**18)
    nameless = new_message(b"nameless", "", "/p", 5)
    messages = [*good, bad, good[0], nameless]
    frame = peer_pb2.GossipFrame(events=peer_pb2.Events(messages=messages))
    encoded = frame.SerializeToString()
    bodies = await decode_gossip(encoded, admission())

    assert isinstance(bodies, Bodies)
    assert bodies.batch.hashes == [hash_of(message) for message in good]
    assert list(bodies.refused) == [(hash_of(bad), "too_new"), (hash_of(nameless), "missing_topic")]
    assert bodies.size_bytes == len(encoded)


async def test_a_bad_message_among_bodies_keeps_no_other_out() -> None:
    now_ns = time.time_ns()
    good = [new_message(b"%d" % n, "/a/1/b/proto", "/p", now_ns - n) for n in range(12)]
    bad = bad_messages(new_message(b"bad", "/a/1/b/proto", "/p", now_ns - 12)).values()
    sent = [good[0].SerializeToString() + UNKNOWN_FIELDS]
    for each, following in zip(bad, good[1:], strict=True):
        sent += [each, following.SerializeToString()]
    events = b"".join(delimited(b"\x0a", each) for each in sent)
    bodies = await decode_gossip(delimited(b"\x0a", events), admission())
    assert isinstance(bodies, Bodies)
    assert bodies.batch.hashes == [hash_of(message) for message in good]


@given(st.binary(max_size=200))
async def test_whatever_comes_is_a_frame_or_is_refused(data: bytes) -> None:
    try:
        await decode_gossip(data, admission())
    except CallError as failure:
        assert failure.sentence  # noqa: PT017 - either is right


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (peer_pb2.Inventory(ids=[bytes(31)]), "has not 32 bytes"),
        (peer_pb2.Inventory(ids=[bytes(32)] * 8_193), "8,193 entries"),
        (peer_pb2.Inventory(ids=[bytes(32)] * 2, content_digests=[bytes(16)]), "content digest"),
        (peer_pb2.Inventory(ids=[bytes(32)], content_digests=[bytes(15)]), "content digest"),
        (peer_pb2.Inventory(content_digests=[b""]), "content digest"),
        (peer_pb2.Inventory(rest_xor=b"short", rest_count=1), "rest_xor has 5 bytes"),
    ],
)
async def test_ids_and_what_is_beside_them_must_fit(
    kind: str, found: peer_pb2.Inventory, sentence: str
) -> None:
    frame = peer_pb2.GossipFrame(**{kind: found})  # type: ignore[arg-type]
    with pytest.raises(CallError, match=sentence):
        await decode_gossip(frame.SerializeToString(), admission())


async def test_a_frame_has_something_that_can_be_read() -> None:
    for data, sentence in ((b"", "holds nothing"), (b"\n\4\n\2\xff\xff", "no GossipFrame")):
        with pytest.raises(CallError, match=sentence):
            await decode_gossip(data, admission())
