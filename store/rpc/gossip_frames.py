"""The codec of gossip: frames of a stream and the values of the machine.

Source: the schema of ``GossipFrame``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from store.domain.admission import Admission
from store.gossip.events import (
    Bodies,
    FrameIn,
    FrameOut,
    GetEvents,
    Inventory,
    OutgoingBodies,
    SyncLeaves,
)
from store.messages.fields import chunk_messages
from store.rpc.limits import MAX_GOSSIP_ENTRIES, MAX_GOSSIP_FRAME_BYTES
from store.serving.failure import malformed, over_limit
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES
from storenode.message.rules import MALFORMED
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawEvents, RawGossipFrame
from storenode.wire.storenode.v1 import peer_pb2

_NO_REST: Final = bytes(HASH_BYTES)
_NO_FRAME: Final = "the frame is no GossipFrame: encode it as the schema says"


def encode_gossip(frame: FrameOut) -> bytes:
    """Encode a frame."""
    raw = RawGossipFrame()
    match frame:
        case OutgoingBodies():
            raw.events.CopyFrom(RawEvents(messages=frame.messages))
        case Inventory():
            raw.inv.CopyFrom(
                peer_pb2.Inventory(ids=frame.ids, content_digests=frame.content_digests)
            )
        case GetEvents():
            raw.get_events.CopyFrom(peer_pb2.Inventory(ids=frame.ids))
        case SyncLeaves():
            leaves = peer_pb2.Inventory(ids=frame.ids, content_digests=frame.content_digests)
            if frame.rest_count:
                leaves.rest_xor, leaves.rest_count = frame.rest_xor, frame.rest_count
            raw.sync_leaves.CopyFrom(leaves)
    return raw.SerializeToString()


async def decode_gossip(frame: bytes, admission: Admission) -> FrameIn:
    """Read a frame; messages are judged, and others have a turn now and then.

    Raises:
        CallError: INVALID_ARGUMENT, it is none; RESOURCE_EXHAUSTED, it passes a limit.
    """
    if len(frame) > MAX_GOSSIP_FRAME_BYTES:
        raise over_limit(
            f"the frame has {len(frame):,} bytes: send {MAX_GOSSIP_FRAME_BYTES:,} at most"
        )
    try:
        raw = RawGossipFrame.FromString(frame)
    except DecodeError:
        raise malformed(_NO_FRAME) from None
    match raw.WhichOneof("kind"):
        case "events":
            return await _bodies(raw.events.messages, len(frame), admission)
        case "inv":
            return Inventory(_checked(raw.inv), _checked_digests(raw.inv))
        case "get_events":
            return GetEvents(_checked(raw.get_events))
        case "sync_leaves":
            ids, leaves = _checked(raw.sync_leaves), raw.sync_leaves
            rest = leaves.rest_xor if leaves.HasField("rest_xor") else _NO_REST
            if len(rest) != HASH_BYTES:
                raise malformed(f"rest_xor has {len(rest)} bytes: send {HASH_BYTES}")
            return SyncLeaves(ids, rest, leaves.rest_count, _checked_digests(leaves))
        case _:
            raise malformed("the frame holds nothing that this version knows: send one of its kind")


def _checked_digests(inventory: peer_pb2.Inventory) -> Sequence[bytes]:
    digests = list(inventory.content_digests)
    if digests and len(digests) != len(inventory.ids):
        raise malformed(
            f"the frame has {len(inventory.ids):,} IDs and {len(digests):,} content digests: send"
            " one for each ID, or none"
        )
    if set(map(len, digests)) - {0, CONTENT_DIGEST_BYTES}:
        raise malformed(
            f"a content digest of the frame has not {CONTENT_DIGEST_BYTES} bytes: send the first"
            " ones of the digest, or nothing for a message whose digest is not known"
        )
    return digests or ()


def _checked(inventory: peer_pb2.Inventory) -> list[bytes]:
    _check_count(len(inventory.ids))
    ids = list(inventory.ids)
    if set(map(len, ids)) - {HASH_BYTES}:
        raise malformed(f"an ID of the frame has not {HASH_BYTES} bytes: send message hashes")
    return ids


def _check_count(count: int) -> None:
    if count > MAX_GOSSIP_ENTRIES:
        raise over_limit(f"the frame has {count:,} entries: send {MAX_GOSSIP_ENTRIES:,} at most")


async def _bodies(messages: Sequence[bytes], size_bytes: int, admission: Admission) -> Bodies:
    """Judge the messages of a frame, which is malformed if none of them is a message."""
    count = len(messages)
    _check_count(count)
    step = chunk_messages(count, size_bytes)
    for start in range(0, count, step):
        if start:
            await asyncio.sleep(0)
        admission.admit(messages[start : start + step])
    published = admission.admitted
    if count and list(published.refusals.values()) == [MALFORMED] * count:
        raise malformed(_NO_FRAME)
    refused = [
        (published.hashes[index], refusal.label) for index, refusal in published.refusals.items()
    ]
    return Bodies(published.batch, refused, size_bytes)
