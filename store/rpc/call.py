"""The wrapper around every gRPC call: identity, admission, request, handler, status and metrics.

Handlers deal in bytes and raise; they never see a status code that they did not choose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, nullcontext, suppress
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeAlias, cast

import grpc

from reconcile.errors import MalformedPayloadError
from reconcile.errors import PayloadLimitError as ReconcileLimit
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
    WANTED,
    identify_peer,
    is_accepted_peer,
    own_metadata,
    refuse_client,
)
from store.rpc.request_memory import NoRequestError
from store.serving.call import (
    REQUEST_IDS,
    Call,
    Method,
    StreamMethod,
    UnaryMethod,
    is_request_id,
    open_call,
)
from store.serving.connections import Remote, remote
from store.serving.failure import CallerGoneError, CallError, Code, expected, malformed, unexpected
from store.serving.limits import COUNTED_REQUEST_BYTES
from store.sync.errors import (
    FrameTooLargeError,
    GaveWayError,
    PeerSilentError,
    ProtocolBrokenError,
    SessionUnknownError,
    TooManyCallsError,
    TransferFailedError,
)
from store.sync.transfer.report import TransferFault
from storenode.connection.errors import RETRY_PUSHBACK

_CODES: Final[tuple[tuple[type[Exception], Code], ...]] = (
    (MalformedPayloadError, Code.INVALID_ARGUMENT),
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
    TransferFault.PROTOCOL: Code.INVALID_ARGUMENT,
    TransferFault.LIMIT: Code.RESOURCE_EXHAUSTED,
    TransferFault.SILENCE: Code.DEADLINE_EXCEEDED,
    TransferFault.SLOW: Code.DEADLINE_EXCEEDED,
    TransferFault.LOST: Code.UNAVAILABLE,
}

RETRYABLE: Final = (TooManyCallsError, GaveWayError)


def translate(error: Exception, request_id: str) -> tuple[CallError, bool]:
    """Return the failure for any error, and True if the error was expected."""
    failure = expected(error)
    if failure is not None:
        return failure, True
    if isinstance(error, TransferFailedError):
        return CallError(_FAULTS[error.fault], str(error)), True
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CallError(code, str(error), retry=isinstance(error, RETRYABLE)), True
    return unexpected(request_id), False


ListenerKind = Literal["client", "peer", "admin"]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
BidiMethod = Callable[["RpcCall", Call], Awaitable[None]]

Refuse = Callable[[bytes, CallError], bytes]
"""Makes a response to a request that may be sent again later."""

_Answer = Callable[["RpcCall", Call], Awaitable[bytes | None]]
_Serve = Callable[[object, Context], Any]
Handler = tuple[str, "grpc.RpcMethodHandler[bytes, bytes]"]
"""The name of a method, and the handler that gRPC calls."""
_NS_PER_S: Final = 1e9
_NOTHING: Final = nullcontext()
_CACHED_HOSTS: Final = 512
_COUNTED_FROM_0: Final = ("OK", "UNAVAILABLE", "INTERNAL")


class RpcCall:
    """A call over gRPC and its metadata, before and after it is admitted.

    ``fields``: the metadata that identify the caller, by name; ``repeated`` is one that is given
    twice. ``request_id``: the caller's if it is fit for a log, else one of this node's.
    ``reading``: its one request is read, or was. ``received``: it has come, at ``received_ns`` of
    the monotonic clock.
    """

    def __init__(self, node: RpcContext, method: Method, context: Context) -> None:
        """Read the metadata of a call."""
        self.node, self.method, self.context = node, method, context
        self.fields: dict[str, str] = {}
        self.repeated = self.request_id = ""
        self.is_peer = self.reading = False
        self.admitted: Call | None = None
        self.received: bytes | None = None
        self.received_ns: int | None = None
        # A tuple of pairs, whatever the type stubs say.
        for name, value in cast("Iterable[tuple[str, str]]", context.invocation_metadata() or ()):
            if name in WANTED:
                if name in self.fields:
                    self.repeated = self.repeated or name
                else:
                    self.fields[name] = value
            elif name == REQUEST_ID and not self.request_id and is_request_id(value):
                self.request_id = str(value)
        if not self.request_id:
            self.request_id = next(REQUEST_IDS)

    async def next_request(self) -> bytes | None:
        """Read the next request of a stream, without charging it; return None after the last.

        Raises:
            CallError: it gave way to others before it had come in full.
        """
        assert self.admitted is not None
        return await self.node.incomplete.read(self.context, self.admitted.client.name)

    async def read_request(self, call: Call) -> bytes:
        """Read and charge the one request of the call.

        Raises:
            CallError: it is too large, or has not come in time.
            Exceeded: too much was sent lately.
        """
        node, self.reading = self.node, True
        slots = node.open_requests if self.method.right is None else node.requests
        request = await node.incomplete.read(self.context, call.client.name, slots)
        if request is None:
            raise NoRequestError
        self.received, self.received_ns = request, node.monotonic_ns()
        call.charge(len(request), counted=True)
        return request

    async def send(self, response: bytes | None) -> None:
        """Write one response, or the initial metadata; waits while the caller does not read.

        Raises:
            CallerGoneError: the caller has hung up.
        """
        try:
            if response is None:
                await self.context.send_initial_metadata(())
            else:
                await self.context.write(response)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise CallerGoneError from None

    def fail(self, failure: CallError) -> None:
        """Set the status that the call ends with when its handler returns.

        To abort would raise an error that is part of a reference cycle: requests of 16 MiB would
        pile up until the garbage collector finds them.
        """
        self.context.set_code(grpc.StatusCode[failure.code])
        self.context.set_details(failure.sentence)
        later = ((RETRY_PUSHBACK, RETRY_AFTER_MS),) if failure.retry else ()
        self.context.set_trailing_metadata(((REQUEST_ID, self.request_id), *later))

    async def refusable_request(self) -> bytes | None:
        """Return the request of a call that is refused, once; None where it has not come in full.

        Raises:
            CallError: there is no room for it.
        """
        if self.reading:
            return self.received
        owner = remote(self.context.peer()).name
        return await self.node.incomplete.read(self.context, owner, self.node.requests, wait=False)


class CallWrapper:
    """The wrapper of the handlers of one listener."""

    def __init__(self, listener: ListenerKind, node: RpcContext) -> None:
        self._listener = listener
        self._service = f"storenode.v1.{'Admin' if listener == 'admin' else 'Store'}"
        self._node = node
        self._own_metadata = own_metadata(node.identity)
        # Bound once: the lazy logger of a module costs more than the rest of this wrapper.
        self._log = get_logger("store.rpc").bind()

    def unary(self, method: Method, handle: UnaryMethod, refuse: Refuse | None = None) -> Handler:
        """Wrap a unary method; ``refuse`` makes a response of what may be retried later.

        To gRPC it is one that takes a stream: else the request would be read before its caller is
        identified.
        """

        async def answer(rpc: RpcCall, call: Call) -> bytes:
            request = await rpc.read_request(call)
            size = len(request)
            with call.reserve(size) if size > COUNTED_REQUEST_BYTES else _NOTHING:
                response = await handle(call, request)
            await call.sender.answered(len(response), refusable=method.timed)
            return response

        serve = self._wrap(method, answer, refuse)
        return method.name, grpc.stream_unary_rpc_method_handler(serve)

    def stream(self, method: Method, handle: StreamMethod) -> Handler:
        """Wrap a method that answers one request by a stream; each page waits for the reader."""

        async def answer(rpc: RpcCall, call: Call) -> None:
            request = await rpc.read_request(call)
            begun = rpc.is_peer
            with call.reserve(len(request)), call.sender.ending():
                async with aclosing(handle(call, request)) as pages:
                    async for page in pages:
                        async with call.sender.sending(len(page)):
                            call.check_rights()
                            if not begun:
                                # By itself: else gRPC fails where the first page is broken off.
                                await rpc.send(None)
                                begun = True
                            await rpc.send(page)
                        del page  # which would be held while the next one waits

        return self.bidi(method, answer)

    def bidi(self, method: Method, handle: BidiMethod) -> Handler:
        """Wrap a method that reads and writes as it likes."""
        return method.name, grpc.stream_stream_rpc_method_handler(self._wrap(method, handle))

    def _wrap(self, method: Method, answer: _Answer, refuse: Refuse | None = None) -> _Serve:
        """Return gRPC's handler; counts that alerts use begin at 0: of 1 no growth is known."""
        node, calls = self._node, self._node.metrics.calls.labels
        counts = {code: calls(method.name, code).inc for code in _COUNTED_FROM_0}
        timer = node.metrics.query_seconds.labels(method.name).observe if method.timed else None

        # No method and `partial`, which gRPC would take apart at every call.
        async def serve(_requests: object, context: Context) -> bytes | None:
            began_ns, code = node.monotonic_ns(), "OK"
            rpc = RpcCall(node, method, context)
            request_context(request_id=rpc.request_id)
            try:
                call = await self._admit(rpc)
                with node.drain.endless() if method.endless else _NOTHING:
                    call.check_ready()
                    return await answer(rpc, call)
            except (asyncio.CancelledError, CallerGoneError):
                code = "CANCELLED"
                raise asyncio.CancelledError from None
            except NoRequestError as error:
                code = error.code
                rpc.fail(error)
                return None
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
                failure, is_expected = translate(error, rpc.request_id)
                try:
                    if refuse is not None and failure.retry:
                        with suppress(CallError):
                            if (request := await rpc.refusable_request()) is not None:
                                return refuse(request, failure)
                    code = failure.code
                    self._report(rpc, failure, None if is_expected else error)
                    rpc.fail(failure)
                    return None
                finally:
                    # Its traceback has this frame: each would keep the other, and the request.
                    del failure
            finally:
                if rpc.admitted is not None:
                    # A caller may take its time to send a request.
                    began_ns = began_ns if rpc.received_ns is None else rpc.received_ns
                    rpc.admitted.account.end(method.kind)
                    if rpc.is_peer:
                        node.callers[rpc.fields[NODE_ID]] = node.now_ns() / _NS_PER_S
                seconds = (node.monotonic_ns() - began_ns) / _NS_PER_S
                count = counts.get(code) or counts.setdefault(code, calls(method.name, code).inc)
                count()
                if timer is not None:
                    timer(seconds)
                self._log.debug("call_ended", method=method.name, code=code, seconds=seconds)

        return serve

    async def _admit(self, rpc: RpcCall) -> Call:
        """Identify the caller, and admit the call by all quotas."""
        node, method, context = self._node, rpc.method, rpc.context
        rules, fields, connection = node.peers, rpc.fields, context.peer()
        access, origin = node.access(), remote(connection)
        if rules is not None and method.right is not None and not rpc.repeated:
            rpc.is_peer = self._listener == "peer" or (
                method.peers and is_accepted_peer(fields, rules, origin)
            )
        if rules is not None and rpc.is_peer:
            client = identify_peer(fields, context, rules, node.peer_limits)
            identify = None
            node.callers[fields[NODE_ID]] = node.now_ns() / _NS_PER_S
            node.clocks.note(fields[NODE_ID], parse_time(fields.get(TIME)))
            own = (*self._own_metadata, (TIME, str(node.now_ns())))
            await context.send_initial_metadata(own)
            # Once more: a caller may learn of the end of a call without responses first.
            context.set_trailing_metadata(own)
        else:
            # Without the call itself, which has its request: each would keep the other.
            identify = partial(self._identify, method, fields, rpc.repeated, origin)
            client = identify()
        call = rpc.admitted = open_call(node, method, client, connection, access, identify=identify)
        sender = call.sender
        context.add_done_callback(lambda _: sender.close())  # type: ignore[arg-type]
        return call

    def _identify(
        self, method: Method, fields: dict[str, str], repeated: str, origin: Remote
    ) -> Client:
        """Return the client that calls: the bearer of the token, where one is needed.

        Raises:
            Denied: the caller is not known, or lacks the right.
            CallError: only peers may call, or the metadata name the caller twice.
        """
        if method.right is None:
            return _open_client(origin.name)
        if repeated:
            raise malformed(f"the metadata `{repeated}` is given twice: send it once")
        if method.peers_only:
            raise refuse_client(fields, self._node.peers)
        open_admin = self._node.open_admin and self._listener == "admin"
        return self._node.access().authorize(
            fields.get(AUTHORIZATION), method.right, origin.name, open_admin=open_admin
        )

    def _report(self, rpc: RpcCall, failure: CallError, error: Exception | None) -> None:
        fields = {
            "method": rpc.method.name,
            "client": None if rpc.admitted is None else rpc.admitted.client.name,
            "code": failure.code.value,
            "reason": failure.sentence,
        }
        if error is None:
            self._log.warning("call_failed", **fields)
        else:
            self._log.error("call_crashed", exc_info=error, **fields)


@lru_cache(maxsize=_CACHED_HOSTS)
def _open_client(host: str) -> Client:
    return Client(host, frozenset())
