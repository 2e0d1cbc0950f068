"""The wrapper around every call: who calls, may it, how it ends.

In this order: metadata, identity and right, quota, readiness, the request, the handler; then the
status, one log line for a failure, and the metrics. Handlers deal in bytes and raise; they never
see a status code that they did not choose.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, Literal, Protocol, TypeAlias

import grpc

from reconcile.errors import LimitExceeded as ReconcileLimit
from reconcile.errors import MalformedPayload
from store.domain.access import Client
from store.domain.ports import EmptyWindow, NoPeers, PeerFailed, UnknownPeer
from store.observe.clocks import parse_time
from store.observe.logging import get_logger, request_context
from store.rpc.context import RpcContext
from store.rpc.identity import (
    AUTHORIZATION,
    NODE_ID,
    REQUEST_ID,
    RETRY_AFTER_MS,
    TIME,
    CallMetadata,
    identify_peer,
    is_believed_peer,
    not_a_peer,
    own_metadata,
    read_metadata,
)
from store.rpc.limits import MAX_SERIES
from store.rpc.receiving import NoRequest
from store.serving import call as serving
from store.serving.failure import CallFailure, Code, foreseen, malformed, unforeseen
from store.serving.methods.reads import LargeReads
from store.serving.methods.table import Method
from store.serving.remote import Remote, remote
from store.serving.unsent import Outlet
from store.sync.errors import (
    FrameTooLargeError,
    GaveWayError,
    PeerSilentError,
    ProtocolBrokenError,
    SessionUnknownError,
    TooManyCallsError,
    TransferFailedError,
)
from store.sync.transfer.events import Fault
from storenode.connection.errors import RETRY_PUSHBACK

_CODES: Final[tuple[tuple[type[Exception], Code], ...]] = (
    (MalformedPayload, Code.INVALID_ARGUMENT),
    (ReconcileLimit, Code.RESOURCE_EXHAUSTED),
    (ProtocolBrokenError, Code.INVALID_ARGUMENT),
    (PeerSilentError, Code.DEADLINE_EXCEEDED),
    (FrameTooLargeError, Code.RESOURCE_EXHAUSTED),
    (TooManyCallsError, Code.RESOURCE_EXHAUSTED),
    (SessionUnknownError, Code.FAILED_PRECONDITION),
    (GaveWayError, Code.ABORTED),
    (PeerFailed, Code.UNAVAILABLE),
    (EmptyWindow, Code.INVALID_ARGUMENT),
    (UnknownPeer, Code.INVALID_ARGUMENT),
    (NoPeers, Code.FAILED_PRECONDITION),
)
_FAULTS: Final = {
    Fault.PROTOCOL: Code.INVALID_ARGUMENT,
    Fault.LIMIT: Code.RESOURCE_EXHAUSTED,
    Fault.SILENCE: Code.DEADLINE_EXCEEDED,
    Fault.SLOW: Code.DEADLINE_EXCEEDED,
    Fault.LOST: Code.UNAVAILABLE,
}

RETRYABLE: Final = (TooManyCallsError, GaveWayError)


def translate(error: Exception, request_id: str) -> tuple[CallFailure, bool]:
    """Return the failure for any error, and whether it was expected.

    An error that nobody foresaw tells the caller the request ID only, by which the operator finds
    it in the log.
    """
    known = foreseen(error)
    if known is not None:
        return known, True
    if isinstance(error, TransferFailedError):
        return CallFailure(_FAULTS[error.fault], str(error)), True
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CallFailure(code, str(error), retry=isinstance(error, RETRYABLE)), True
    return unforeseen(request_id), False


ListenerKind = Literal["client", "peer", "admin"]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

UnaryHandler = Callable[["Call", bytes], Awaitable[bytes]]
StreamHandler = Callable[["Call", bytes], AsyncGenerator[bytes, None]]
BidiHandler = Callable[["Call", Context], Awaitable[None]]

_Answer = Callable[["Call", Context], Awaitable[bytes | None]]
_Handler = Callable[[object, Context], Any]
_NS_PER_S: Final = 1e9
_COUNTED_FROM_0: Final = ("OK", "UNAVAILABLE", "INTERNAL")


@dataclass(slots=True)
class Call(serving.Call):
    """One call over gRPC.

    ``reading``: its one request is read, or was. ``received``: it has come, at ``received_ns`` of
    the monotonic clock.
    """

    node: RpcContext
    method: Method
    metadata: CallMetadata
    is_peer: bool
    reading: bool = False
    received: bytes | None = None
    received_ns: int | None = None

    async def next_request(self, context: Context) -> bytes | None:
        """Read the next request of a stream, without charging it; None after the last.

        Raises:
            CallFailure: it gave way to others before it had come in full.
        """
        return await self.node.unfinished.next(context, self.client.name)

    async def request(self, context: Context) -> bytes:
        """Read and charge the one request of the call.

        Raises:
            CallFailure: it is too large, or has not come in time.
            Exceeded: too much was sent lately.
        """
        node = self.node
        receiving = node.open_receiving if self.method.right is None else node.receiving
        waiting = node.unfinished.awaiting(self.outlet.connection, self.client.name)
        async with waiting as connection:
            request = await receiving.request(context)
            connection.read_bytes += len(request)
        self.received_ns = node.monotonic_ns()
        self.charge(len(request), counted=True)
        return request


class Refusal(Protocol):
    """Makes a response to a request that may be sent again later."""

    def __call__(self, request: bytes, sentence: str, *, busy: bool) -> bytes:
        """``busy``: a rate or budget is used up; else the node is not ready."""


class CallerGone(Exception):
    """The caller hung up while it was being answered."""


async def begin(context: Context) -> None:
    """Send the initial metadata of an answer in pages.

    By themselves, since gRPC sends them twice, and fails, where the first page is broken off.

    Raises:
        CallerGone: nobody is there to read it.
    """
    try:
        await context.send_initial_metadata(())
    except (grpc.aio.BaseError, asyncio.InvalidStateError):
        raise CallerGone from None


async def send(context: Context, response: bytes) -> None:
    """Write one response; waits while the caller does not read.

    Raises:
        CallerGone: nobody is there to read it.
    """
    try:
        await context.write(response)
    except (grpc.aio.BaseError, asyncio.InvalidStateError):
        raise CallerGone from None


def _unchanged(client: Client) -> Client:
    return client


def _end_with(context: Context, failure: CallFailure, call_id: str) -> None:
    """Set the status that the call ends with when its handler returns.

    To abort would raise an error that is part of a reference cycle: requests of 16 MiB would pile
    up until the garbage collector finds them.
    """
    context.set_code(grpc.StatusCode[failure.code])
    context.set_details(failure.sentence)
    later = ((RETRY_PUSHBACK, RETRY_AFTER_MS),) if failure.retry else ()
    context.set_trailing_metadata(((REQUEST_ID, call_id), *later))


class Wrapper:
    """Wraps the handlers of one listener."""

    def __init__(self, listener: ListenerKind, node: RpcContext) -> None:
        self._listener = listener
        self._service = f"storenode.v1.{'Admin' if listener == 'admin' else 'Store'}"
        self._node = node
        self._own_metadata = own_metadata(node.identity)
        self._large_reads = LargeReads()
        # Bound once: the lazy logger of a module costs more than the rest of this wrapper.
        self._log = get_logger("store.rpc").bind()

    def unary(
        self, method: Method, handle: UnaryHandler, refuse: Refusal | None = None
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A unary method; ``refuse`` makes a response of what may be retried later.

        To gRPC it is one that takes a stream: else the request would be read before it is known
        who sends it.
        """
        room = self._room_for(method)

        async def answer(call: Call, context: Context) -> bytes:
            call.reading = True
            request = call.received = await call.request(context)
            with room(len(request)):
                response = await handle(call, request)
            await call.outlet.answered(len(response), refusable=method.timed)
            return response

        return grpc.stream_unary_rpc_method_handler(self._serving(method, answer, refuse))

    def stream(self, method: Method, handle: StreamHandler) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A method that answers one request by a stream; each page waits for the reader."""
        room = self._room_for(method)

        async def answer(call: Call, context: Context) -> None:
            request = await call.request(context)
            begun = call.is_peer
            with room(len(request)), call.outlet.ending():
                async with aclosing(handle(call, request)) as pages:
                    async for page in pages:
                        async with call.outlet.sending(len(page)):
                            call.check_rights()
                            if not begun:
                                await begin(context)
                                begun = True
                            await send(context, page)
                        del page  # which would be held while the next one waits

        return grpc.stream_stream_rpc_method_handler(self._serving(method, answer))

    def bidi(self, method: Method, handle: BidiHandler) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A method that reads and writes as it likes."""
        return grpc.stream_stream_rpc_method_handler(self._serving(method, handle))

    def _room_for(self, method: Method) -> Callable[[int], AbstractContextManager[object]]:
        return self._large_reads.room if method.timed else nullcontext

    def _serving(self, method: Method, answer: _Answer, refuse: Refusal | None = None) -> _Handler:
        """The handler of gRPC; counts that alerts go by begin at 0: of 1 no growth is known."""
        for code in _COUNTED_FROM_0:
            self._node.metrics.calls.labels(method.name, code)
        return partial(self._serve, method, answer, refuse)

    async def _serve(
        self,
        method: Method,
        answer: _Answer,
        refuse: Refusal | None,
        _requests: object,
        context: Context,
    ) -> bytes | None:
        node, began_ns = self._node, self._node.monotonic_ns()
        metadata, call, code = read_metadata(context), None, "OK"
        request_context(request_id=metadata.request_id)
        try:
            call = await self._open(method, context, metadata)
            with ExitStack() as around:
                if node.tracing is not None and method.traced:
                    span = node.tracing.serving(self._service, method.name, metadata.trace)
                    around.enter_context(span)
                elif method.endless:
                    around.enter_context(node.drain.endless())
                call.check_ready()
                return await answer(call, context)
        except (asyncio.CancelledError, CallerGone):
            code = "CANCELLED"
            raise asyncio.CancelledError from None
        except NoRequest as none:
            code = none.code
            _end_with(context, none, metadata.request_id)
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
            failure, foreseen = translate(error, metadata.request_id)
            try:
                if refuse is not None and failure.retry:
                    busy = failure.code is Code.RESOURCE_EXHAUSTED
                    with suppress(CallFailure):
                        if (request := await self._again(call, context)) is not None:
                            return refuse(request, failure.sentence, busy=busy)
                code = failure.code
                self._report(method, call, failure, None if foreseen else error)
                _end_with(context, failure, metadata.request_id)
                return None
            finally:
                # Its traceback has this frame: each would keep the other, and the request.
                del failure
        finally:
            if call is not None:
                # A caller may take its time to send a request.
                began_ns = began_ns if call.received_ns is None else call.received_ns
                call.account.end(method.kind)
                if call.is_peer:
                    node.callers[metadata.told[NODE_ID]] = node.now_ns() / _NS_PER_S
            self._measure(method, code, began_ns)

    async def _again(self, call: Call | None, context: Context) -> bytes | None:
        """The request of a call that is refused; None where it has not come in full.

        GRPC hands it out once only.

        Raises:
            CallFailure: there is no room for it.
        """
        if call is not None and call.reading:
            return call.received
        return await self._node.receiving.request(context, wait=False)

    async def _open(self, method: Method, context: Context, metadata: CallMetadata) -> Call:
        node, rules, told = self._node, self._node.peers, metadata.told
        access, origin = node.tokens.access, remote(context.peer())
        identify: Callable[[], Client] = partial(self._client, method, metadata, origin)
        is_peer = False
        if rules is not None and method.right is not None and not metadata.repeated:
            is_peer = self._listener == "peer" or (
                method.peers and is_believed_peer(told, rules, origin)
            )
        if rules is not None and is_peer:
            client = identify_peer(told, context, rules, node.peer_limits)
            identify = partial(_unchanged, client)
            node.callers[told[NODE_ID]] = node.now_ns() / _NS_PER_S
            node.clocks.note(told[NODE_ID], parse_time(told.get(TIME)))
            own = (*self._own_metadata, (TIME, str(node.now_ns())))
            await context.send_initial_metadata(own)
            # Once more: a caller may learn of the end of a call without responses first.
            context.set_trailing_metadata(own)
        else:
            client = identify()
        now_ns = node.monotonic_ns()
        account = node.quota.account(client.name, client.limits, now_ns, named=client.named)
        account.begin(method.kind, now_ns)
        outlet = Outlet(node.unsent, client.name, context.peer())
        context.add_done_callback(lambda _: outlet.close())  # type: ignore[arg-type]
        return Call(
            client=client,
            account=account,
            outlet=outlet,
            access=access,
            identify=identify,
            largest_bytes=method.max_request_bytes,
            always=method.always,
            node=node,
            method=method,
            metadata=metadata,
            is_peer=is_peer,
        )

    def _client(self, method: Method, metadata: CallMetadata, origin: Remote) -> Client:
        """Who calls, of those who are no peers: who has the token, where one is needed.

        Raises:
            Denied: the caller is not known, or lacks the right.
            CallFailure: only peers may call, or the metadata name the caller twice.
        """
        if method.right is None:
            return Client(origin.name, frozenset())
        if metadata.repeated:
            raise malformed(f"the metadata `{metadata.repeated}` is given twice: send it once")
        told = metadata.told
        if method.peers_only:
            raise not_a_peer(told, self._node.peers)
        open_admin = self._node.open_admin and self._listener == "admin"
        return self._node.tokens.access.authorize(
            told.get(AUTHORIZATION), method.right, origin.name, open_admin=open_admin
        )

    def _report(
        self, method: Method, call: Call | None, failure: CallFailure, error: Exception | None
    ) -> None:
        fields = {
            "method": method.name,
            "client": None if call is None else call.client.name,
            "code": failure.code.value,
            "reason": failure.sentence,
        }
        if error is None:
            self._log.warning("call_failed", **fields)
        else:
            self._log.error("call_crashed", exc_info=error, **fields)

    @lru_cache(maxsize=MAX_SERIES)  # noqa: B019 - a wrapper lives as long as its node
    def _series(
        self, method: Method, code: str
    ) -> tuple[Callable[[], None], Callable[[float], None] | None]:
        metrics = self._node.metrics
        timer = metrics.query_seconds.labels(method.name).observe if method.timed else None
        return metrics.calls.labels(method.name, code).inc, timer

    def _measure(self, method: Method, code: str, began_ns: int) -> None:
        seconds = (self._node.monotonic_ns() - began_ns) / _NS_PER_S
        count, timer = self._series(method, code)
        count()
        if timer is not None:
            timer(seconds)
        self._log.debug("call_ended", method=method.name, code=code, seconds=seconds)
