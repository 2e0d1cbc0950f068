"""Calls over gRPC: identity by metadata, requests and responses, status, and handlers for gRPC.

Handlers deal in bytes and raise; they never see a status code that they did not choose.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import grpc

from reconcile.errors import MalformedPayloadError
from reconcile.errors import PayloadLimitError as ReconcileLimit
from store.domain.access import Principal
from store.domain.places import Caller
from store.domain.ports import PeerError
from store.domain.quota import MAX_STRANGERS, ClientLimits
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.streams import (
    DriverFailedError,
    NodeStoppingError,
    PeerStalledError,
    StreamSupersededError,
    TurnedAwayError,
)
from store.observe.clocks import parse_time
from store.observe.logging import get_logger
from store.rpc.identity import (
    AUTHORIZATION,
    NODE_ID,
    REQUEST_ID,
    RETRY_AFTER_MS,
    STORE_ID,
    TIME,
    WANTED,
    PeerRules,
    identify_peer,
    own_metadata,
    refuse_client,
)
from store.serving.call import REQUEST_IDS, Call, Method, request_id
from store.serving.context import NodeContext
from store.serving.failure import CODES, CallerGoneError, CallError, Code, malformed, translate
from store.sync.errors import Fault, SessionFaultError
from store.sync.schedule import NoPeersError, SyncRequestError
from storenode.common.bounded_dict import BoundedDict
from storenode.connection.errors import RETRY_PUSHBACK
from storenode.message.limits import NS_PER_S

if TYPE_CHECKING:
    from store.rpc.gossip import GossipTransport
    from store.sync.schedule import Synchronizer
    from store.sync.session.exchange import Exchange

_CODES: Final = {
    **CODES,
    MalformedPayloadError: (Code.INVALID_ARGUMENT, False),
    ReconcileLimit: (Code.RESOURCE_EXHAUSTED, False),
    TurnedAwayError: (Code.RESOURCE_EXHAUSTED, False),
    StreamSupersededError: (Code.ABORTED, False),
    DriverFailedError: (Code.INTERNAL, False),
    NodeStoppingError: (Code.UNAVAILABLE, False),
    PeerStalledError: (Code.DEADLINE_EXCEEDED, False),
    PeerError: (Code.UNAVAILABLE, False),
    SyncRequestError: (Code.INVALID_ARGUMENT, False),
    NoPeersError: (Code.FAILED_PRECONDITION, False),
}
_FAULTS: Final = {
    Fault.PROTOCOL: Code.INVALID_ARGUMENT,
    Fault.LIMIT: Code.RESOURCE_EXHAUSTED,
    Fault.SILENCE: Code.DEADLINE_EXCEEDED,
    Fault.SLOW: Code.DEADLINE_EXCEEDED,
    Fault.LOST: Code.UNAVAILABLE,
    Fault.CROWDED: Code.RESOURCE_EXHAUSTED,
    Fault.UNKNOWN: Code.FAILED_PRECONDITION,
    Fault.GAVE_WAY: Code.ABORTED,
    Fault.REFUSED: Code.UNAVAILABLE,
}

_RETRYABLE: Final = (Fault.CROWDED, Fault.GAVE_WAY)

_LOG = get_logger("store.rpc")

MAX_CALLERS: Final = 64
"""Peers of which it is remembered when they called: in clear text names are invented easily."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcContext(NodeContext):
    """The parts of a node that gRPC's handlers use.

    ``exchange``: the exchange with peers; None while the node starts.
    ``sessions``: what sessions that peers begin work on; None serves none.
    ``peers``: None when no peer may call on these listeners.
    ``gossip``: the live exchange; None while it is switched off.
    ``open_admin``: the admin listener is on loopback (then it needs no token file).
    ``callers``: when peers began or ended a call last, in Unix seconds, the oldest first.
    """

    exchange: Synchronizer | None = None
    sessions: Exchange | None = None
    gossip: tuple[GossipDriver, GossipTransport] | None = None
    peers: PeerRules | None = None
    open_admin: bool = False
    callers: dict[str, float] = field(default_factory=lambda: BoundedDict(MAX_CALLERS))


class NoRequestError(CallError):
    """The caller has hung up, or closed its side, before it sent a request."""

    def __init__(self) -> None:
        super().__init__(Code.INVALID_ARGUMENT, "the call ended before its request: send one")


ListenerKind = Literal["client", "peer", "admin"]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
BidiMethod = Callable[["RpcCall"], Awaitable[None]]

Refuse = Callable[[bytes, CallError], bytes]
"""Makes a response to a request that may be sent again later."""

_Stream = Callable[["RpcCall", bytes], AsyncGenerator[bytes, None]]
Handler = tuple[str, "grpc.RpcMethodHandler[bytes, bytes]"]
"""The name of a method, and the handler that gRPC calls."""
_GONE: Final = "the peer is gone"
_COUNTED_FROM_0: Final = ("OK", "UNAVAILABLE", "INTERNAL")


_PROBE_LIMITS: Final = ClientLimits(concurrent_calls=1_024, concurrent_streams=1_024)
"""Calls of a host without a right, of which each takes some 25 KB, or 50 KB for reflection."""


@lru_cache(MAX_STRANGERS)
def _stranger(name: str) -> Principal:
    """Return the caller of a method that needs no right."""
    return Principal(name, frozenset(), limits=_PROBE_LIMITS)


class RpcCall(Call):
    """A call over gRPC; that of a peer is a `store.sync.peers.FrameStream`.

    ``fields``: the metadata that identify the caller, by name.
    """

    node: RpcContext

    def __init__(self, served: ServedMethod, context: Context) -> None:
        """Read the metadata of a call."""
        node, method, listener = served.node, served.method, served.listener
        super().__init__(node, method, context.peer(), context.add_done_callback)
        self.context = context
        self._served = served
        self.fields: dict[str, str] = {}
        given = self._repeated = ""
        self._is_reading = self._has_begun = False
        self._received: bytes | None = None
        # A tuple of pairs, whatever the type stubs say.
        for name, value in cast("Iterable[tuple[str, str]]", context.invocation_metadata() or ()):
            if name in WANTED:
                if name in self.fields:
                    self._repeated = self._repeated or name
                else:
                    self.fields[name] = value
            elif name == REQUEST_ID:
                given = given or value
        self.request_id = request_id(given) if given else next(REQUEST_IDS)
        self._open_admin = node.open_admin and listener == "admin"
        rules, is_named = node.peers, NODE_ID in self.fields and AUTHORIZATION not in self.fields
        self.is_peer = (
            rules is not None
            and method.right is not None
            and not self._repeated
            and (
                listener == "peer"
                or (method.peers and is_named and rules.accept_in_clear(self.remote))
            )
        )

    def identify(self) -> Principal:
        """Return the client that calls: a peer, or the bearer of the token, where one is needed."""
        method, node = self.method, self.node
        if method.right is None:
            return _stranger(self.remote.name)
        if self.is_peer and node.peers is not None:
            return identify_peer(self.fields, self.context, node.peers)
        if self._repeated:
            raise malformed(f"the metadata `{self._repeated}` is given twice: send it once")
        if method.peers_only:
            raise refuse_client(self.fields, node.peers)
        token = self.fields.get(AUTHORIZATION)
        return node.access().authorize(
            token, method.right, self.remote.name, open_admin=self._open_admin
        )

    async def begin_peer(self) -> Caller:
        """Send the metadata that name this node to a peer, and return that."""
        fields, rules = self.fields, self.node.peers
        self.note_peer()
        self.node.clocks.note(fields[NODE_ID], parse_time(fields.get(TIME)))
        own = (*own_metadata(self.node.identity), (TIME, str(self.node.now_ns())))
        await self.context.send_initial_metadata(own)
        # Once more: a caller may learn of the end of a call without responses first.
        self.context.set_trailing_metadata(own)
        self._has_begun = True
        trusted = rules is not None and rules.trusted
        return Caller(fields[NODE_ID], fields[STORE_ID], self.remote.name, trusted)

    def note_peer(self) -> None:
        """Note that a peer begins or ends a call."""
        self.node.callers[self.fields[NODE_ID]] = self.node.now_ns() / NS_PER_S

    async def next_request(self, *, is_first: bool = False) -> bytes | None:
        """Read the next request of a stream, without charging it; return None after the last.

        Raises:
            CallError: it gave way to others before it had come in full, or the first one is late.
        """
        self._is_reading = True
        request: object = await self.node.arrivals.receive(
            lambda _: self.context.read(),
            (self._served.port, self.connection),
            self.client.name if self.is_admitted else self.remote.name,
            is_first=is_first,
            is_stranger=self.method.right is None,
            is_peer=self.is_peer,
        )
        return request if isinstance(request, bytes) else None

    async def read_request(self) -> bytes:
        """Read the one request of the call; return nothing where the method reads them itself.

        Raises:
            CallError: it has not come in time.
        """
        if self._served.reads_itself:
            return b""
        if self.is_peer:
            await self.begin_peer()
        self._received = await self.next_request(is_first=True)
        if self._received is None:
            raise NoRequestError
        return self._received

    def translate(self, error: Exception) -> tuple[CallError, bool]:
        """Return the failure for any error; the fault of a session with a peer has a code."""
        if isinstance(error, SessionFaultError):
            is_retryable = error.fault in _RETRYABLE
            return CallError(_FAULTS[error.fault], str(error), retry=is_retryable), True
        return translate(error, self.request_id, _CODES)

    async def refuse(self, failure: CallError, crash: Exception | None) -> tuple[str, bytes | None]:
        """Make a response of what may be retried later, or set the status.

        To abort would raise an error that is part of a reference cycle: requests of 16 MiB would
        pile up until the garbage collector finds them.
        """
        refuse = self._served.refuse
        if refuse is not None and failure.retry:
            with suppress(CallError):
                if not self._is_reading:
                    self._received = await self.next_request(is_first=True)
                if self._received is not None:
                    return self.ok, refuse(self._received, failure)
        if not isinstance(failure, NoRequestError):
            self.report(_LOG, failure, crash, method=self.method.name, code=str(failure.code))
        self.context.set_code(grpc.StatusCode[failure.code])
        self.context.set_details(failure.sentence)
        later = ((RETRY_PUSHBACK, RETRY_AFTER_MS),) if failure.retry else ()
        self.context.set_trailing_metadata(((REQUEST_ID, self.request_id), *later))
        return failure.code, None

    def count(self, code: str, seconds: float) -> None:
        """Count the end of the call."""
        if self.is_peer and self.is_admitted:
            self.note_peer()
        name, served = self.method.name, self._served
        count = served.counts.get(code)
        if count is None:
            count = self.node.metrics.calls.labels(name, code).inc
        count()
        if self.method.timed:
            served.observe(seconds)
        if _LOG.is_debugging:
            _LOG.debug("call_ended", method=name, code=code, seconds=seconds)

    async def send(self, response: bytes) -> None:
        """Write one response; waits while the caller does not read.

        Raises:
            CallerGoneError: the caller has hung up.
        """
        try:
            if not self._has_begun:
                # By itself: else gRPC fails where the first response is broken off.
                self._has_begun = True
                await self.context.send_initial_metadata(())
            await self.context.write(response)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise CallerGoneError from None

    async def read(self) -> bytes | None:
        """Return the caller's next frame; None when it has half-closed."""
        try:
            is_first = not (self._is_reading or self.method.endless)
            return await self.next_request(is_first=is_first)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise PeerError(_GONE) from None
        except CallError as gave_way:
            raise PeerError(gave_way.sentence) from None

    async def write(self, frame: bytes) -> None:
        """Send a frame to the caller."""
        try:
            await self.send(frame)
        except CallerGoneError:
            raise PeerError(_GONE) from None

    async def half_close(self) -> None:
        """Leave the end to the status of the call, since this side is the callee."""


class ServedMethod:
    """A method on one listener: what gRPC calls, and the counts of its calls.

    ``reads_itself``: it reads its requests as it likes. ``refuse`` makes a response of what may be
    retried later.
    """

    def __init__(self, listener: ListenerKind, node: RpcContext, port: int, method: Method) -> None:
        self.listener = listener
        self.node = node
        self.port = port
        self.method = method
        self.reads_itself = False
        self.refuse: Refuse | None = None
        # Counts that alerts use begin at 0: of 1 no growth is known.
        calls = node.metrics.calls.labels
        self.counts = {code: calls(method.name, code).inc for code in _COUNTED_FROM_0}
        self.observe = node.metrics.query_seconds.labels(method.name).observe

    def unary(
        self, handle: Callable[[RpcCall, bytes], Awaitable[bytes]], refuse: Refuse | None = None
    ) -> Handler:
        """Return the handler of a unary method.

        To gRPC it is one that takes a stream: else the request would be read before its caller is
        identified.
        """
        self.refuse = refuse
        return self._handler(grpc.stream_unary_rpc_method_handler, handle)

    def stream(self, handle: _Stream) -> Handler:
        """Return the handler of a method that answers one request by a stream."""
        return self._handler(
            grpc.stream_stream_rpc_method_handler,
            lambda call, request: call.send_pages(handle, request, call.send),
        )

    def bidi(self, handle: BidiMethod) -> Handler:
        """Return the handler of a method that reads and writes as it likes."""
        self.reads_itself = True
        return self._handler(grpc.stream_stream_rpc_method_handler, lambda call, _: handle(call))

    def _handler(
        self, kind: Callable[..., Any], handle: Callable[[RpcCall, bytes], Awaitable[bytes | None]]
    ) -> Handler:
        # No method and `partial`, which gRPC would take apart at every call.
        async def serve(_requests: object, context: Context) -> bytes | None:
            return await RpcCall(self, context).run(handle)

        return self.method.name, kind(serve)
