"""Frames of gossip are those of the schema, both ways."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.admission import Admission
from store.domain.ports import Source
from store.gossip.events import Bodies, FrameOut, GetEvents, Inventory, OutgoingBodies, SyncLeaves
from store.rpc.gossip import decode_gossip, encode_gossip
from store.serving.failure import CallError
from storenode.client.messages import hash_of, new_message
from storenode.message.rules import Policy
from storenode.wire.storenode.v1 import peer_pb2

IDS = st.lists(st.binary(min_size=32, max_size=32), max_size=5)
LEAVES = st.builds(
    SyncLeaves, IDS, st.binary(min_size=32, max_size=32), st.integers(1, 2**64 - 1)
) | st.builds(SyncLeaves, IDS)
DIGESTS = st.just(b"") | st.binary(min_size=16, max_size=16)


@st.composite
def with_digests(draw: st.DrawFn) -> Inventory | SyncLeaves:
    """Draw an inventory or leaves with a content digest for each ID, of which some are unknown."""
    ids = draw(IDS.filter(bool))
    digests = draw(st.lists(DIGESTS, min_size=len(ids), max_size=len(ids)))
    if draw(st.booleans()):
        return Inventory(ids, digests)
    return SyncLeaves(ids, content_digests=digests)


FRAMES = st.builds(Inventory, IDS) | st.builds(GetEvents, IDS) | LEAVES | with_digests()


def admission() -> Admission:
    return Admission(Policy(max_drift_ns=None), time.time_ns(), Source.GOSSIP)


def expected(frame: FrameOut) -> peer_pb2.GossipFrame:
    match frame:
        case Inventory():
            inv = peer_pb2.Inventory(ids=frame.ids, content_digests=frame.content_digests)
            return peer_pb2.GossipFrame(inv=inv)
        case GetEvents():
            return peer_pb2.GossipFrame(get_events=peer_pb2.Inventory(ids=frame.ids))
        case SyncLeaves():
            leaves = peer_pb2.Inventory(ids=frame.ids, content_digests=frame.content_digests)
            if frame.rest_count:
                leaves.rest_xor, leaves.rest_count = frame.rest_xor, frame.rest_count
            return peer_pb2.GossipFrame(sync_leaves=leaves)
        case _:
            raise AssertionError(frame)


@given(FRAMES)
async def test_inventories_are_written_and_read_as_protobuf_does(frame: FrameOut) -> None:
    encoded = encode_gossip(frame)
    assert encoded == expected(frame).SerializeToString()
    assert await decode_gossip(encoded, admission()) == frame


async def test_bodies_are_judged_and_counted_once_each() -> None:
    now_ns = time.time_ns()
    good = [new_message(b"%d" % n, "/a/1/b/proto", "/p", now_ns - n) for n in range(3)]
    bad = new_message(b"bad", "/a/1/b/proto", "/p", now_ns + 10**18)
    nameless = new_message(b"nameless", "", "/p", 5)
    messages = [*good, bad, good[0], nameless]
    encoded = encode_gossip(OutgoingBodies([message.SerializeToString() for message in messages]))
    assert (
        encoded
        == peer_pb2.GossipFrame(events=peer_pb2.Events(messages=messages)).SerializeToString()
    )

    bodies = await decode_gossip(encoded, admission())

    assert isinstance(bodies, Bodies)
    assert bodies.batch.hashes == [hash_of(message) for message in good]
    assert list(bodies.refused) == [
        (hash_of(bad), "too_new"),
        (hash_of(nameless), "missing_topic"),
    ]
    assert bodies.size_bytes == len(encoded)


@given(st.binary(max_size=200))
async def test_whatever_comes_is_a_frame_or_is_refused(data: bytes) -> None:
    try:
        await decode_gossip(data, admission())
    except CallError as failure:
        assert failure.sentence  # noqa: PT017 - either is right


@pytest.mark.parametrize("kind", ["inv", "get_events", "sync_leaves"])
async def test_ids_are_message_hashes(kind: str) -> None:
    frame = peer_pb2.GossipFrame()
    getattr(frame, kind).ids.append(bytes(31))
    with pytest.raises(CallError, match="has not 32 bytes"):
        await decode_gossip(frame.SerializeToString(), admission())


@pytest.mark.parametrize(("ids", "digests"), [(2, [bytes(16)]), (1, [bytes(15)]), (0, [b""])])
@pytest.mark.parametrize("kind", ["inv", "sync_leaves"])
async def test_content_digests_that_do_not_fit_the_ids_are_refused(
    kind: str, ids: int, digests: list[bytes]
) -> None:
    inventory = peer_pb2.Inventory(ids=[bytes(32)] * ids, content_digests=digests)
    frame = peer_pb2.GossipFrame(**{kind: inventory}).SerializeToString()  # type: ignore[arg-type]
    with pytest.raises(CallError, match="content digest"):
        await decode_gossip(frame, admission())
