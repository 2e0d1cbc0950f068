"""The calls that this node makes of peers: connections, the callee's identity, and checked reads.

The contract, "Peers": every call carries this node's ID, store ID and version, and the callee
answers with its own in the initial metadata, and again in the trailing ones. It may send them with
its first answer only: frames of a call can be sent before, and none is read before.
With TLS both show certificates. The caller has the certificate verified for the name that it was
given, the ID of ``ID@HOST:PORT``, else the host, and takes no callee that gives another ID, so that
no node passes for one whose certificate it lacks.
Without TLS the ID is accepted, on loopback or where the operator allows it.

gRPC connects again by itself, with bounded pauses. A connection that is known to be down when a
call begins is made again at once. One on which a call was not answered in time may be dead without
notice: it is not used again.

The answers of ``Scan`` and ``GetSdsMessages`` are bounded, and checked as far as they must be. A
scan must end, and must miss nothing when it continues later: its pages ascend, inside the range and
strictly. A message that cannot be decoded has no position in the order. A cursor is the peer's own:
it is handed back as it came. Of a lookup each message must have been asked for: its payload claims
one of the IDs in the channel, or cannot be read and has the hash that a hint names. All else is
judged on admission, which computes the hashes, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from reconcile.ids import SyncId
from store.domain.claims import RequestedEntries
from store.domain.ports import CursorOutOfRangeError, HistoryEntry, PeerAddress
from store.observe.clocks import ClockComparison, parse_time
from store.rpc.identity import NODE_ID, PEER_FIELD, STORE_ID, TIME, VERSION, own_metadata
from store.serving.arrivals import MAX_PEER_FRAME_BYTES
from store.serving.context import NodeIdentity
from store.serving.methods.decode import COUNTED_REQUEST_BYTES, MAX_OTHER_FIELDS, count_fields
from store.serving.tls import Reloader, TlsCredentials, TlsFiles
from store.sync.errors import CallFailedError, ProtocolBrokenError, shown
from store.sync.limits import SILENCE_NS
from store.sync.peers import ScannedPage
from store.sync.session.reconciliation import in_time
from storenode.connection.arguments import is_loopback
from storenode.connection.call_status import BROKEN_WRITE, STATUS_TIMEOUT_S, Ending
from storenode.message.hashing import message_hash
from storenode.message.limits import HASH_BYTES, NS_PER_S
from storenode.message.varint import delimited
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawScanPage
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

PEER_CONNECT_TIMEOUT_S: Final = 10.0
"""The time from a request to a peer to its names, a new connection included."""

PEER_ANSWER_TIMEOUT_S: Final = 20.0
"""The same for a call whose first frame it may answer before it names itself."""

_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", MAX_PEER_FRAME_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.min_reconnect_backoff_ms", int(PEER_CONNECT_TIMEOUT_S * 1000)),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The connection is this channel's: a new channel is a new attempt, with its own credentials.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy named by the environment would stand between two nodes that know each other.
    ("grpc.enable_http_proxy", 0),
)

_DOWN: Final = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)

MAX_PEER_CURSOR_BYTES: Final = 4_096
"""A peer's cursor, which is kept until its next page."""

MAX_PEER_PAGE_BYTES: Final = 16 * 1024 * 1024
"""A page of a peer's ``Scan``: four times what this node sends in one."""

MAX_EMPTY_PAGES: Final = 8
"""Pages without messages that a peer may send in a row."""

PEER_SCAN_PAGE_MESSAGES: Final = 2_000
"""Messages that are asked for in a page of a peer's ``Scan``."""

MAX_LOOKUP_MESSAGES: Final = 20_000
"""Messages that are taken from a peer for one lookup of SDS message IDs: 1,000 IDs with as many
claimants as a node returns by default, and one more that a hint names, fit."""

_STORE: Final = store_pb2.DESCRIPTOR.services_by_name["Store"].full_name
SCAN: Final = f"/{_STORE}/Scan"
LOOKUP: Final = f"/{_STORE}/GetSdsMessages"

_MESSAGE_FIELD: Final = b"\x0a"
_TOPIC_FIELD: Final = b"\x12"

_Named = tuple[NodeIdentity, int | None]
_M = TypeVar("_M", bound=Message)


class PeerCallError(CallFailedError):
    """The error that a call of a peer ended with: its status, and one sentence for the operator."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence, aborted=code is grpc.StatusCode.ABORTED)
        self.code = code


class PeerCall:
    """A call of a peer, in bytes; made by `PeerConnector.call`.

    Every method raises `PeerCallError` when the peer ended the call with an error.
    """

    def __init__(
        self,
        peer: PeerAddress,
        call: Any,  # noqa: ANN401 - grpc.aio's, untyped
        identify: Callable[[PeerCall], Awaitable[NodeIdentity]],
    ) -> None:
        self.peer = peer
        self.call = call
        self._identify = identify
        self._callee: NodeIdentity | None = None
        self._ending = Ending(call)

    async def identify(self) -> NodeIdentity:
        """Wait until the callee has named itself."""
        if self._callee is None:
            self._callee = await self._identify(self)
        return self._callee

    async def read_names(self) -> _Named:
        """Read the metadata by which the callee names itself.

        gRPC drops the initial metadata of a call whose end it learns of first.
        """
        try:
            named = _parse_callee(await self.call.initial_metadata())
        except grpc.aio.AioRpcError as error:
            raise _failed(self.peer, error.code(), error.details()) from None
        if named is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(STATUS_TIMEOUT_S):
                    if (code := await self.call.code()) is not grpc.StatusCode.OK:
                        raise _failed(self.peer, code, await self.call.details())
                    named = _parse_callee(await self.call.trailing_metadata())
        if named is None:
            raise _refusal(
                f"what answers at {self.peer} does not say which node it is: name the peer listener"
                " of a store node"
            )
        return named

    async def read(self) -> bytes | None:
        """Return the next frame; None when the peer has ended the call with OK."""
        await self.identify()
        try:
            frame = await self.call.read()
        except grpc.aio.AioRpcError:
            frame = None
        except asyncio.CancelledError:
            _reraise_own()
            raise _shut() from None
        if isinstance(frame, bytes):
            return frame
        await self._demand_ok()
        return None

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the peer does not read."""
        try:
            await self.call.write(frame)
        except asyncio.CancelledError:
            _reraise_own()
            raise _shut() from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._demand_ok()
            raise PeerCallError(
                grpc.StatusCode.UNKNOWN,
                f"the peer at {self.peer} ended the call before its end: it does not keep to the "
                "protocol",
            ) from None

    async def half_close(self) -> None:
        """End the frames of this side; the callee then ends the call."""
        try:
            await self.call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            await self._demand_ok()

    async def _demand_ok(self) -> None:
        code, details = await self._ending.status()
        if code is not grpc.StatusCode.OK:
            raise _failed(self.peer, code, details)


@dataclass(slots=True, eq=False)
class _Line:
    """A channel, how many calls are on it, and with TLS its credentials."""

    peer: PeerAddress
    channel: grpc.aio.Channel
    credentials: grpc.ChannelCredentials | None
    calls: int = 0


class PeerConnector:
    """The caller of peers, one per node, with one connection per peer.

    ``tls``: the node's certificate and key, and in ``client_ca`` who signs those of peers; None
    calls in clear, which is refused beyond loopback unless ``insecure``. ``clocks``: those of peers
    are compared in it. ``silence_ns``: how long a page of a peer is waited for.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        tls: TlsFiles | None = None,
        *,
        insecure: bool = False,
        clocks: ClockComparison | None = None,
        silence_ns: int = SILENCE_NS,
    ) -> None:
        self.identity = identity
        self._clocks = clocks or ClockComparison()
        self._metadata = own_metadata(identity)
        self._tls = None if tls is None else Reloader(tls, _make_credentials)
        self._insecure = insecure
        self._silence_s = silence_ns / NS_PER_S
        self._lines: dict[PeerAddress, _Line] = {}
        self._answered: dict[PeerAddress, str] = {}
        self._closed = False

    def connected(self, peer: PeerAddress) -> bool:
        """Return True while there is a connection to the peer."""
        line = self._lines.get(peer)
        return line is not None and line.channel.get_state() is grpc.ChannelConnectivity.READY

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID that a peer gave when it last answered, the configured one, or ""."""
        return self._answered.get(peer, peer.node_id)

    async def close(self) -> None:
        """End all calls and connections; none can be made any more."""
        self._closed = True
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.channel.close(None)

    @asynccontextmanager
    async def call(
        self,
        peer: PeerAddress,
        method: str,
        identified: Callable[[str, str], None] = lambda *_: None,
        *,
        request: bytes | None = None,
        patience_s: float | None = PEER_ANSWER_TIMEOUT_S,
    ) -> AsyncIterator[PeerCall]:
        """Begin a call (see `store.sync.peers.Connector`); with one ``request``, if given.

        ``patience_s``: how long the callee may take to name itself.

        Raises:
            PeerCallError: this node may not call the peer.
        """
        old = self._lines.get(peer)
        line = self._take(peer, old)
        channel: Any = line.channel
        metadata = (*self._metadata, (TIME, str(time.time_ns())))
        try:
            if old is not None:
                await self._close_replaced(old)
            if request is None:
                call = channel.stream_stream(method)(metadata=metadata)
            else:
                call = channel.unary_stream(method)(request, metadata=metadata)
            try:
                yield PeerCall(peer, call, partial(self._identify, line, identified, patience_s))
            finally:
                call.cancel()
        finally:
            line.calls -= 1
            await self._close_replaced(line)

    async def _identify(
        self,
        line: _Line,
        identified: Callable[[str, str], None],
        patience_s: float | None,
        call: PeerCall,
    ) -> NodeIdentity:
        """Identify the callee, and refuse one that this node must not call."""
        peer, own, began_ns = line.peer, self.identity, time.monotonic_ns()
        try:
            async with asyncio.timeout(patience_s):
                callee, time_ns = await call.read_names()
        except TimeoutError:
            if self._lines.get(peer) is line:
                del self._lines[peer]
            raise PeerCallError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the peer at {peer} did not answer within {patience_s:.0f} s: check that "
                "it runs and can be reached",
            ) from None
        waited_ns = time.monotonic_ns() - began_ns
        if callee.node_id == own.node_id or callee.store_id == own.store_id:
            what = "this node itself" if callee.node_id == own.node_id else "a node of this store"
            raise _refusal(
                f"the peer at {peer} is {what}, which holds the same messages: remove it from "
                "--peer"
            )
        expected = peer.node_id or (peer.host if self._tls else callee.node_id)
        if callee.node_id != expected:
            raise _refusal(
                f"the node at {peer} is {callee.node_id} instead of {expected}: correct the address"
                " or the ID of --peer"
            )
        self._answered[peer] = callee.node_id
        self._clocks.note(callee.node_id, time_ns, waited_ns // 2)
        identified(callee.node_id, callee.store_id)
        return callee

    def _take(self, peer: PeerAddress, old: _Line | None) -> _Line:
        """Return the channel of a peer, counted as used; a new one where the old cannot do."""
        shown = None if self._tls is None else self._tls.newest()
        if old is None or old.credentials is not shown or old.channel.get_state() in _DOWN:
            old = self._lines[peer] = _Line(peer, self._open(peer, shown), shown)
        old.calls += 1
        return old

    async def _close_replaced(self, line: _Line) -> None:
        """Close a channel on which no further call begins, when the last one has ended."""
        if not line.calls and self._lines.get(line.peer) is not line:
            await line.channel.close(None)

    def _open(self, peer: PeerAddress, shown: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        if self._closed:
            raise _shut()
        if shown is None:
            if not (self._insecure or is_loopback(peer.host)):
                raise _refusal(
                    f"the peer at {peer} is not called, since the messages would travel in clear: "
                    "give --tls-cert, --tls-key and --tls-ca, or allow it with --insecure peer"
                )
            return grpc.aio.insecure_channel(peer.target, options=list(_OPTIONS))
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", peer.node_id or peer.host)]
        return grpc.aio.secure_channel(peer.target, shown, options=options)

    # Reads

    async def scan(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> AsyncGenerator[ScannedPage, None]:
        """Yield what a peer stores of a time range, in ascending order.

        Raises:
            PeerError: the call failed, or the peer does not keep to its rules.
            CursorOutOfRangeError: the peer does not serve this cursor.
        """
        request = store_pb2.ScanRequest(
            time_start=start_ns,
            time_end=end_ns,
            include_data=True,
            cursor=cursor,
            page_size=PEER_SCAN_PAGE_MESSAGES,
        ).SerializeToString()
        last: SyncId = (start_ns, b"")
        empty, end = 0, (end_ns, b"")
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
                    messages = [
                        delimited(_MESSAGE_FIELD, each.message)
                        + delimited(_TOPIC_FIELD, each.pubsub_topic)
                        for each in page.messages
                    ]
                    hashes = [each.message_hash for each in page.messages]
                    yield ScannedPage(messages, hashes, page.cursor, last[0])
        except PeerCallError as error:
            # It cannot read a cursor of another version, or one that is none of its own.
            is_unread = cursor and error.code is grpc.StatusCode.INVALID_ARGUMENT
            if is_unread or error.code is grpc.StatusCode.OUT_OF_RANGE:
                raise CursorOutOfRangeError(str(error)) from error
            raise

    async def lookup(
        self, peer: PeerAddress, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield pages of encoded ``WakuMessageAndTopic`` that the entries select at a peer.

        Raises:
            PeerError: the call failed, or the peer does not keep to its rules.
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

    async def _pages(
        self, peer: PeerAddress, method: str, request: bytes
    ) -> AsyncGenerator[bytes, None]:
        async with self.call(
            peer, method, request=request, patience_s=PEER_CONNECT_TIMEOUT_S
        ) as call:
            await call.identify()
            while (data := await in_time(call.read(), self._silence_s)) is not None:
                yield data


def _make_credentials(found: TlsCredentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(found.authorities, found.key, found.chain)


def _reraise_own() -> None:
    """Raise the current ``CancelledError`` again unless it was the call that was cancelled.

    A call that ends because its channel is closed raises the same error as the cancellation of
    the task that waits for it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise  # noqa: PLE0704 - the caller is handling it


def _shut() -> PeerCallError:
    return PeerCallError(grpc.StatusCode.CANCELLED, "the node is shutting down")


def _refusal(sentence: str) -> PeerCallError:
    return PeerCallError(grpc.StatusCode.FAILED_PRECONDITION, sentence)


def _parse_callee(metadata: Any) -> _Named | None:  # noqa: ANN401 - grpc.aio's are untyped
    """Return the callee that metadata name, and what its clock showed; None: they name none."""
    fields = {str(name): value for name, value in metadata or () if isinstance(value, str)}
    names = [fields.get(name, "") for name in (NODE_ID, STORE_ID, VERSION)]
    if not all(map(PEER_FIELD.fullmatch, names)):
        return None
    return NodeIdentity(names[0], names[1], names[2]), parse_time(fields.get(TIME))


def _failed(peer: PeerAddress, code: grpc.StatusCode, details: str | None) -> PeerCallError:
    """Return the end of a call as the status of this node shows it."""
    text = shown((details or "").strip())
    if code is grpc.StatusCode.UNAVAILABLE and text.lower().startswith("failed to connect to"):
        cause = text.rpartition("last error: ")[2].rpartition("remote host: ")[2]
        text = (
            f"the peer at {peer} could not be reached ({cause}): check the address, that the node "
            "runs, and on both sides the TLS options"
        )
    elif code is grpc.StatusCode.UNIMPLEMENTED:
        text = (
            f"the node at {peer} does not serve this call of peers: name its peer listener, or "
            "install a newer version there"
        )
    elif (code, text) == BROKEN_WRITE:
        code = grpc.StatusCode.UNAVAILABLE
        text = f"the peer at {peer} ended the call, or its connection broke, while a frame was sent"
    else:
        text = f"the peer at {peer} ended the call ({code.name}): {text or 'without a reason'}"
    return PeerCallError(code, text)


def _decode(kind: type[_M], data: bytes, messages: int) -> _M:
    """Decode a page, unless it has far more fields than messages: they take more than their bytes.

    Raises:
        ProtocolBrokenError: it has, or is none.
    """
    most = messages + MAX_OTHER_FIELDS
    if len(data) > COUNTED_REQUEST_BYTES and count_fields(data, 0, len(data), None, most)[0] < 0:
        raise ProtocolBrokenError(
            f"the peer sends a page of more than {messages:,} messages, or many other fields"
        )
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ProtocolBrokenError("the peer sends a page that cannot be decoded") from None


def _decode_scan(data: bytes) -> RawScanPage:
    if len(data) <= MAX_PEER_PAGE_BYTES:
        page = _decode(RawScanPage, data, PEER_SCAN_PAGE_MESSAGES)
        is_asked = len(page.messages) <= PEER_SCAN_PAGE_MESSAGES
        if is_asked and len(page.cursor) <= MAX_PEER_CURSOR_BYTES:
            return page
    raise ProtocolBrokenError(
        f"the peer sends a page of {len(data):,} bytes that is larger than allowed: at most"
        f" {MAX_PEER_PAGE_BYTES:,} bytes, {PEER_SCAN_PAGE_MESSAGES:,} messages, and a cursor of"
        f" {MAX_PEER_CURSOR_BYTES:,} bytes"
    )


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


def _require_asked(asked: RequestedEntries, stored: WakuMessageKeyValue) -> bytes:
    """Encode a message for admission.

    Raises:
        ProtocolBrokenError: it was not asked for.
    """
    message = stored.message

    def digest() -> bytes:
        meta = message.meta if message.HasField("meta") else None
        try:
            return message_hash(
                stored.pubsub_topic, message.payload, message.content_topic, meta, message.timestamp
            )
        except ValueError as error:
            raise ProtocolBrokenError(f"the peer sends a message without a hash: {error}") from None

    if not asked.selects(message.payload, digest):
        raise ProtocolBrokenError("the peer sends a message that was not asked for")
    return WakuMessageAndTopic(
        message=message, pubsub_topic=stored.pubsub_topic
    ).SerializeToString()
