"""The calls that this node makes of peers: sessions, ``Scan`` and ``GetSdsMessages``.

The answers are bounded, and checked as far as they must be. A scan must end, and must miss nothing
when it goes on later: its pages ascend, inside the range and strictly. A message that cannot be
decoded has no position in the order. A cursor is the peer's own: it is handed back as it came. Of a
look-up each message must have been asked for: its payload claims one of the IDs in the channel, or
cannot be read and has the hash that a hint names. All else is judged on admission, which computes
the hashes, too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from reconcile.ids import SyncId
from store.domain.claims import RequestedEntries
from store.domain.ports import CursorOutOfRange, HistoryEntry, PeerAddress
from store.rpc.connector import PEER_CONNECT_TIMEOUT_S, PeerCallError, PeerConnector
from store.serving.failure import CallError
from store.serving.methods.decode import COUNTED_REQUEST_BYTES, clip, decode
from store.sync.errors import ProtocolBrokenError
from store.sync.peers import ScannedPage
from store.sync.session.exchange import Exchange
from store.sync.session.reconciliation import in_time
from store.sync.session.report import SessionReport, Window
from storenode.message.hashing import message_hash
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import delimited
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawScanPage
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

MAX_PEER_CURSOR_BYTES: Final = 4_096
"""A peer's cursor, which is kept until its next page."""

MAX_PEER_PAGE_BYTES: Final = 16 * 1024 * 1024
"""A page of a peer's ``Scan``: four times what this node sends in one."""

MAX_EMPTY_PAGES: Final = 8
"""Pages without messages that a peer may send in a row."""

PEER_SCAN_PAGE_MESSAGES: Final = 2_000
"""Messages that are asked for in a page of a peer's ``Scan``."""

MAX_LOOKUP_MESSAGES: Final = 20_000
"""Messages that are taken from a peer for one look-up of SDS message IDs: 1,000 IDs with as many
claimants as a node returns by default, and one more that a hint names, fit."""


_STORE: Final = store_pb2.DESCRIPTOR.services_by_name["Store"].full_name
SCAN: Final = f"/{_STORE}/Scan"
LOOKUP: Final = f"/{_STORE}/GetSdsMessages"

_REFUSED: Final = grpc.StatusCode.INVALID_ARGUMENT
"""The status for a cursor that a peer cannot read: of another version, or none of its own."""

_MESSAGES: Final = "messages"
_MESSAGE_FIELD: Final = b"\x0a"
_TOPIC_FIELD: Final = b"\x12"

_M = TypeVar("_M", bound=Message)


class PeerReader:
    """The calls of peers: `store.sync.peers.PeerCaller`."""

    def __init__(self, connector: PeerConnector, exchange: Exchange) -> None:
        self._connector = connector
        self._exchange = exchange
        self.connected = connector.connected
        self.node_id = connector.node_id

    async def synchronize(self, peer: PeerAddress, window: Window) -> SessionReport:
        """Run one session with a peer."""
        return await self._exchange.initiate(self._connector, peer, window)

    async def scan(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> AsyncGenerator[ScannedPage, None]:
        """Yield what a peer stores of a time range, in ascending order.

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
            async for data in self._pages(peer, SCAN, request):
                page, before = _decode_scan(data), last
                last = _last_of(page, last, end)
                empty = empty + 1 if last == before else 0
                if empty > MAX_EMPTY_PAGES:
                    raise ProtocolBrokenError(
                        "the peer sends pages without messages, over and over"
                    )
                if page.messages:
                    hashes = [entry.message_hash for entry in page.messages]
                    yield ScannedPage(_join(page), hashes, page.cursor, last[0])
        except PeerCallError as error:
            if error.code is grpc.StatusCode.OUT_OF_RANGE or (cursor and error.code is _REFUSED):
                raise CursorOutOfRange(str(error)) from error
            raise

    async def lookup(
        self, peer: PeerAddress, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield pages of encoded ``WakuMessageAndTopic`` that the entries select at a peer.

        Raises:
            PeerFailed: the call failed, or the peer does not keep to its rules.
        """
        request = store_pb2.GetSdsMessagesRequest(
            channel_id=channel_id.decode(),
            entries=[
                message_pb2.HistoryEntry(
                    message_id=entry.message_id.decode(), retrieval_hint=entry.retrieval_hint
                )
                for entry in entries
            ],
            prefer_proven=True,
        ).SerializeToString()
        asked, left = RequestedEntries(channel_id, entries), MAX_LOOKUP_MESSAGES
        async for data in self._pages(peer, LOOKUP, request):
            messages = _decode(store_pb2.SdsMessagesPage, data, left).messages
            if len(messages) > left:
                raise ProtocolBrokenError(
                    f"the peer sends more than {MAX_LOOKUP_MESSAGES:,} messages: ask for fewer IDs"
                    " at once"
                )
            left -= len(messages)
            yield [_require_asked(asked, each.stored) for each in messages]

    async def close(self) -> None:
        """End all sessions, calls and connections."""
        self._exchange.close()
        await self._connector.close()

    async def _pages(
        self, peer: PeerAddress, method: str, request: bytes
    ) -> AsyncGenerator[bytes, None]:
        silence_s = self._exchange.work.silence_s
        async with self._connector.call(
            peer, method, request=request, patience_s=PEER_CONNECT_TIMEOUT_S
        ) as call:
            await call.identify()
            while (data := await in_time(call.read(), silence_s)) is not None:
                yield data


def _decode(kind: type[_M], data: bytes, messages: int) -> _M:
    """Decode a page, cut after one message too many: decoding takes more memory than the bytes."""
    try:
        if len(data) > COUNTED_REQUEST_BYTES:
            field = kind.DESCRIPTOR.fields_by_name[_MESSAGES].number
            data = clip(data, field, messages + 1)
        return decode(kind, data)
    except CallError as error:
        raise ProtocolBrokenError(
            f"the peer sends a page that cannot be decoded: {error}"
        ) from None


def _decode_scan(data: bytes) -> RawScanPage:
    if len(data) > MAX_PEER_PAGE_BYTES:
        raise ProtocolBrokenError(
            f"the peer sends a page of {len(data):,} bytes: at most {MAX_PEER_PAGE_BYTES:,} are "
            "taken"
        )
    page = _decode(RawScanPage, data, PEER_SCAN_PAGE_MESSAGES)
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


def _last_of(page: RawScanPage, last: SyncId, end: SyncId) -> SyncId:
    """Return the end of a page.

    Raises:
        ProtocolBrokenError: it does not ascend from the end of the page before it.
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


def _join(page: RawScanPage) -> list[bytes]:
    return [
        delimited(_MESSAGE_FIELD, entry.message) + delimited(_TOPIC_FIELD, entry.pubsub_topic)
        for entry in page.messages
    ]


def _require_asked(asked: RequestedEntries, stored: WakuMessageKeyValue) -> bytes:
    """Encode a message for admission.

    Raises:
        ProtocolBrokenError: it was not asked for.
    """
    message = stored.message
    if not asked.selects(message.payload, lambda: _hash_of(stored)):
        raise ProtocolBrokenError("the peer sends a message that was not asked for")
    return WakuMessageAndTopic(
        message=message, pubsub_topic=stored.pubsub_topic
    ).SerializeToString()


def _hash_of(stored: WakuMessageKeyValue) -> bytes:
    message = stored.message
    meta = message.meta if message.HasField("meta") else None
    try:
        return message_hash(
            stored.pubsub_topic, message.payload, message.content_topic, meta, message.timestamp
        )
    except ValueError as error:
        raise ProtocolBrokenError(f"the peer sends a message without a hash: {error}") from None
