"""Reads what a peer holds of a time range, by its ``Scan``.

What comes is checked as far as it must be for the scan to end, and to miss nothing when it goes on
later: pages ascend, inside the range and strictly, and are bounded. Whether the hashes by which
they ascend are those of the messages is seen on admission, which computes them. A cursor is
the peer's own: it is handed back as it came, and how far the scan has come is known from the
messages. A message that cannot be decoded has no place in the order: it goes on to admission, which
refuses it, and the others of its page are taken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from store.domain.ports import CursorOutOfRange, PeerAddress, ScannedPage, SyncId
from store.rpc.dial import CallFailed, PeerDialer
from store.rpc.limits import (
    MAX_EMPTY_PAGES,
    MAX_PEER_CURSOR_BYTES,
    MAX_PEER_PAGE_BYTES,
    PEER_SCAN_PAGE_MESSAGES,
)
from store.serving.failure import CallFailure
from store.serving.limits import COUNTED_REQUEST_BYTES
from store.serving.methods.decode import clip, decode
from store.sync.errors import ProtocolBrokenError
from store.sync.session.reconciliation import in_time
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import delimited
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawScanPage
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

SCAN: Final = f"/{store_pb2.DESCRIPTOR.services_by_name['Store'].full_name}/Scan"

_REFUSED: Final = grpc.StatusCode.INVALID_ARGUMENT
"""What a peer says to a cursor that it cannot read: of another version, or none of its own."""

_MESSAGES: Final = store_pb2.ScanPage.DESCRIPTOR.fields_by_name["messages"].number
_MESSAGE_FIELD: Final = b"\x0a"
_TOPIC_FIELD: Final = b"\x12"


async def scan(
    dialer: PeerDialer,
    peer: PeerAddress,
    start_ns: int,
    end_ns: int,
    cursor: bytes,
    *,
    silence_s: float,
) -> AsyncGenerator[ScannedPage, None]:
    """Pages in ascending order.

    Raises:
        PeerFailed: the call failed, or the peer does not keep to its rules.
        CursorOutOfRange: the peer does not serve this cursor.
    """
    request = store_pb2.ScanRequest(
        time_start=start_ns,
        time_end=end_ns,
        include_data=True,
        cursor=cursor,
        page_size=PEER_SCAN_PAGE_MESSAGES,
    ).SerializeToString()
    last: SyncId = (start_ns, b"")
    empty = 0
    end: SyncId = (end_ns, b"")
    try:
        async with dialer.ask(peer, SCAN, request) as call:
            while (data := await in_time(call.read(), silence_s)) is not None:
                page, before = _decoded(data), last
                last = _last_of(page, last, end)
                empty = empty + 1 if last == before else 0
                if empty > MAX_EMPTY_PAGES:
                    raise ProtocolBrokenError(
                        "the peer sends pages without messages, over and over"
                    )
                if page.messages:
                    hashes = [entry.message_hash for entry in page.messages]
                    yield ScannedPage(_messages(page), hashes, page.cursor, last[0])
    except CallFailed as error:
        if error.code is grpc.StatusCode.OUT_OF_RANGE or (cursor and error.code is _REFUSED):
            raise CursorOutOfRange(str(error)) from error
        raise


def _decoded(data: bytes) -> RawScanPage:
    if len(data) > MAX_PEER_PAGE_BYTES:
        raise ProtocolBrokenError(
            f"the peer sends a page of {len(data):,} bytes: at most {MAX_PEER_PAGE_BYTES:,} are "
            "taken"
        )
    if len(data) > COUNTED_REQUEST_BYTES:
        data = _counted(data)
    try:
        page = decode(RawScanPage, data)
    except CallFailure:
        raise ProtocolBrokenError("the peer sends a page that cannot be decoded") from None
    if len(page.messages) > PEER_SCAN_PAGE_MESSAGES:
        raise ProtocolBrokenError(
            f"the peer sends a page of more than {PEER_SCAN_PAGE_MESSAGES:,} messages, which is "
            "what was asked for"
        )
    if len(page.cursor) > MAX_PEER_CURSOR_BYTES:
        raise ProtocolBrokenError(
            f"the peer sends a cursor of {len(page.cursor):,} bytes: at most "
            f"{MAX_PEER_CURSOR_BYTES:,} are kept"
        )
    return page


def _counted(data: bytes) -> bytes:
    """A page, cut after one message too many: decoding takes more memory than the bytes."""
    try:
        return clip(data, _MESSAGES, PEER_SCAN_PAGE_MESSAGES + 1)
    except CallFailure as error:
        raise ProtocolBrokenError(f"the peer sends a page that cannot be read: {error}") from None


def _last_of(page: RawScanPage, last: SyncId, end: SyncId) -> SyncId:
    """Return where a page ends.

    Raises:
        ProtocolBrokenError: it does not ascend from where the page before it ended.
    """
    for entry in page.messages:
        try:
            here = (WakuMessage.FromString(entry.message).timestamp, entry.message_hash)
        except DecodeError:
            continue
        if len(here[1]) != HASH_BYTES or not last < here < end:
            raise ProtocolBrokenError(
                "the peer sends messages out of order, or outside the range that was asked for"
            )
        last = here
    return last


def _messages(page: RawScanPage) -> list[bytes]:
    return [
        delimited(_MESSAGE_FIELD, entry.message) + delimited(_TOPIC_FIELD, entry.pubsub_topic)
        for entry in page.messages
    ]
