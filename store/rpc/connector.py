"""Calls of other nodes: one connection per peer, and proof of the callee's identity.

The contract, "Peers": every call carries this node's ID, store ID and version, and the callee
answers with its own in the initial metadata, and again in the trailing ones. It may send them with
its first answer only: frames of a call can be sent before, and none is read before.
With TLS both show certificates. The caller has the certificate verified for the name that it was
given, the ID of ``ID@HOST:PORT``, else the host, and takes no callee that gives another ID, so that
no node passes for one whose certificate it lacks.
Without TLS the ID is accepted, on loopback or where the operator allows it.

gRPC connects again by itself, with bounded pauses. A connection that is known to be down when a
call begins is made anew at once. One on which a call was not answered in time may be dead without
notice: it is not used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from store.domain.ports import PeerAddress
from store.observe.clocks import ClockComparison, parse_time
from store.rpc.identity import NODE_ID, PEER_FIELD, STORE_ID, TIME, VERSION, own_metadata
from store.rpc.listeners import MAX_PEER_FRAME_BYTES
from store.serving.context import NodeIdentity
from store.serving.tls import Stamp, TlsError, TlsFiles, check, stamp_of
from store.sync.errors import CallFailedError, shown
from storenode.connection.arguments import is_loopback
from storenode.connection.call_status import BROKEN_WRITE, STATUS_TIMEOUT_S, Ending

PEER_CONNECT_TIMEOUT_S: Final = 10.0
"""From a request to a peer to its names, a new connection included."""

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
_NOT_CONNECTED: Final = "failed to connect to"


class PeerCallError(CallFailedError):
    """The error that a call of a peer ended with: its status, and one sentence for the operator."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.aborted = code is grpc.StatusCode.ABORTED


class _UnansweredError(PeerCallError):
    pass


@dataclass(frozen=True, slots=True)
class Callee:
    """The node that answers a call, by its metadata (and, with TLS, its certificate).

    ``time_ns``: what its clock showed.
    """

    node_id: str
    store_id: str
    version: str
    time_ns: int | None = None


class PeerCall:
    """A call of a peer, in bytes; made by `PeerConnector.call`.

    Every method raises `PeerCallError` when the peer ended the call with an error.
    """

    def __init__(
        self,
        peer: PeerAddress,
        call: Any,  # noqa: ANN401 - grpc.aio's, untyped
        identify: Callable[[], Awaitable[Callee]],
        *,
        identified: Callable[[Callee], None] | None = None,
    ) -> None:
        self.peer = peer
        self._call = call
        self._identify = identify
        self._identified = identified
        self._callee: Callee | None = None
        self._naming = asyncio.Lock()
        self._ending = Ending(call)

    async def identify(self) -> Callee:
        """Wait until the callee has named itself."""
        async with self._naming:
            if self._callee is None:
                callee = await self._identify()
                if self._identified is not None:
                    self._identified(callee)
                self._callee = callee
            return self._callee

    async def read(self) -> bytes | None:
        """Return the next frame; None when the peer has ended the call with OK."""
        if self._callee is None:
            await self.identify()
        try:
            frame = await self._call.read()
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
            await self._call.write(frame)
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
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            await self._demand_ok()

    def cancel(self) -> None:
        """End the call at once; nothing to do when it has ended."""
        self._call.cancel()

    async def _demand_ok(self) -> None:
        code, details = await self._ending.status()
        if code is not grpc.StatusCode.OK:
            raise _failed(self.peer, code, details)


@dataclass(slots=True, eq=False)
class _Line:
    """A channel, and how many calls are on it."""

    channel: grpc.aio.Channel
    stamp: Stamp | None
    calls: int = 0
    retired: bool = False


class PeerConnector:
    """The caller of peers; one per node.

    ``tls``: the node's certificate and key, and in ``client_ca`` who signs those of peers; None
    calls in clear, which is refused beyond loopback unless ``insecure``. ``clocks``: those of peers
    are compared in it.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        tls: TlsFiles | None = None,
        *,
        insecure: bool = False,
        clocks: ClockComparison | None = None,
    ) -> None:
        self.identity = identity
        self._clocks = clocks or ClockComparison()
        self._metadata = own_metadata(identity)
        self._tls = tls
        self._insecure = insecure
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
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.retired = True
            await line.channel.close(None)

    @asynccontextmanager
    async def call(
        self,
        peer: PeerAddress,
        method: str,
        identified: Callable[[Callee], None] | None = None,
        *,
        request: bytes | None = None,
        patience_s: float | None = PEER_ANSWER_TIMEOUT_S,
    ) -> AsyncIterator[PeerCall]:
        """Begin a call (see `store.sync.peers.Connector`); with one ``request``, if given.

        ``patience_s``: how long the callee may take to name itself.

        Raises:
            PeerCallError: this node may not call the peer.
        """
        line = await self._take(peer)
        channel: Any = line.channel
        metadata = (*self._metadata, (TIME, str(time.time_ns())))
        try:
            if request is None:
                call = channel.stream_stream(method)(metadata=metadata)
            else:
                call = channel.unary_stream(method)(request, metadata=metadata)
            identify = partial(self._identify, peer, call, patience_s)
            try:
                yield PeerCall(peer, call, identify, identified=identified)
            finally:
                call.cancel()
        except PeerCallError as error:
            if isinstance(error, _UnansweredError):
                self._retire(peer, line)
            raise
        finally:
            line.calls -= 1
            if line.retired and not line.calls:
                await line.channel.close(None)

    async def _identify(
        self,
        peer: PeerAddress,
        call: Any,  # noqa: ANN401 - grpc.aio's, untyped
        patience_s: float | None,
    ) -> Callee:
        """Identify the callee, and refuse one that this node must not call."""
        began_ns = time.monotonic_ns()
        callee = await _introduced(peer, call, patience_s)
        waited_ns = time.monotonic_ns() - began_ns
        own = self.identity
        if callee.node_id == own.node_id or callee.store_id == own.store_id:
            what = "this node itself" if callee.node_id == own.node_id else "a node of this store"
            raise PeerCallError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the peer at {peer} is {what}, which holds the same messages: remove it from "
                "--peer",
            )
        expected = peer.node_id or (peer.host if self._tls else callee.node_id)
        if callee.node_id != expected:
            raise PeerCallError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the node at {peer} is {callee.node_id} instead of {expected}: correct the address"
                " or the ID of --peer",
            )
        self._answered[peer] = callee.node_id
        self._clocks.note(callee.node_id, callee.time_ns, waited_ns // 2)
        return callee

    async def _take(self, peer: PeerAddress) -> _Line:
        """Return the channel of a peer, counted as used; a new one where the old cannot do."""
        try:
            stamp = None if self._tls is None else stamp_of(self._tls)
        except TlsError as error:
            raise PeerCallError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        line = self._lines.get(peer)
        down = line is not None and line.channel.get_state() in _DOWN
        if line is not None and (down or line.stamp != stamp):
            self._retire(peer, line)
            if not line.calls:
                await line.channel.close(None)
            line = self._lines.get(peer)
        if line is None:
            line = self._lines[peer] = _Line(self._open(peer), stamp)
        line.calls += 1
        return line

    def _retire(self, peer: PeerAddress, line: _Line) -> None:
        """Begin no further call on a channel; it is closed after the last one that is on it."""
        line.retired = True
        if self._lines.get(peer) is line:
            del self._lines[peer]

    def _open(self, peer: PeerAddress) -> grpc.aio.Channel:
        if self._closed:
            raise _shut()
        if self._tls is None:
            if not (self._insecure or is_loopback(peer.host)):
                raise PeerCallError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"the peer at {peer} is not called, since the messages would travel in clear: "
                    "give --tls-cert, --tls-key and --tls-ca, or allow it with --insecure peer",
                )
            return grpc.aio.insecure_channel(peer.target, options=list(_OPTIONS))
        try:
            found = check(self._tls)
        except TlsError as error:
            raise PeerCallError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        credentials = grpc.ssl_channel_credentials(found.authorities, found.key, found.chain)
        name = peer.node_id or peer.host
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", name)]
        return grpc.aio.secure_channel(peer.target, credentials, options=options)


async def _introduced(peer: PeerAddress, call: Any, patience_s: float | None) -> Callee:  # noqa: ANN401
    """Wait for the metadata that name the callee: the initial ones, or those of the end.

    Raises:
        PeerCallError: it does not name itself, or not in time; or the call has failed.
    """
    try:
        async with asyncio.timeout(patience_s):
            callee = _parse_callee(await call.initial_metadata())
    except TimeoutError:
        raise _UnansweredError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"the peer at {peer} did not answer within {patience_s:.0f} s: check that "
            "it runs and can be reached",
        ) from None
    except grpc.aio.AioRpcError as error:
        raise _failed(peer, error.code(), error.details()) from None
    if callee is None and await _ended_well(peer, call):
        # gRPC drops the initial metadata of a call whose end it learns of first.
        callee = _parse_callee(await call.trailing_metadata())
    if callee is None:
        raise PeerCallError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"what answers at {peer} does not say which node it is: name the peer listener of a "
            "store node",
        )
    return callee


async def _ended_well(peer: PeerAddress, call: Any) -> bool:  # noqa: ANN401
    """Return True if a call has ended well; raise the status of one that has not."""
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            code = await call.code()
    except TimeoutError:
        return False
    if code is not grpc.StatusCode.OK:
        raise _failed(peer, code, await call.details())
    return True


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


def _parse_callee(metadata: Any) -> Callee | None:  # noqa: ANN401 - grpc.aio's are untyped
    """Return the callee that metadata name, or None."""
    fields = {str(name): value for name, value in metadata or () if isinstance(value, str)}
    names = [fields.get(name, "") for name in (NODE_ID, STORE_ID, VERSION)]
    if not all(map(PEER_FIELD.fullmatch, names)):
        return None
    node_id, store_id, version = names
    return Callee(node_id, store_id, version, parse_time(fields.get(TIME)))


def _failed(peer: PeerAddress, code: grpc.StatusCode, details: str | None) -> PeerCallError:
    """Return the end of a call as the status of this node shows it."""
    text = shown((details or "").strip())
    if code is grpc.StatusCode.UNAVAILABLE and text.lower().startswith(_NOT_CONNECTED):
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
