"""The wrapper around every call: who calls, may it, how it ends.

In this order: metadata, identity and right, quota, readiness, the request, the handler; then the
status, one log line for a failure, and the metrics. Handlers deal in bytes and raise; they never
see a status code that they did not choose.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

import grpc

from store.domain.access import Client, Denied
from store.observe.logging import get_logger, request_context
from store.rpc.context import RpcContext
from store.rpc.failure import RpcFailure, malformed, translate
from store.rpc.identity import (
    AUTHORIZATION,
    NODE_ID,
    REQUEST_ID,
    RETRY_AFTER_MS,
    CallMetadata,
    identify_peer,
    is_believed_peer,
    not_a_peer,
    own_metadata,
    peer_answer,
    read_metadata,
)
from store.rpc.limits import MAX_SERIES
from store.rpc.receiving import NoRequest
from store.serving import call as serving
from store.serving.failure import exceeded
from store.serving.methods.reads import LargeReads
from store.serving.methods.table import Method
from store.serving.remote import Remote, remote
from storenode.connection.errors import RETRY_PUSHBACK

ListenerKind = Literal["client", "peer", "admin"]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

UnaryHandler = Callable[["Call", bytes], Awaitable[bytes]]
StreamHandler = Callable[["Call", bytes], AsyncGenerator[bytes, None]]
BidiHandler = Callable[["Call", Context], Awaitable[None]]

_T = TypeVar("_T")
_NS_PER_S: Final = 1e9
_COUNTED_FROM_0: Final = ("OK", "UNAVAILABLE", "INTERNAL")


@dataclass(slots=True)
class Call(serving.Call):
    """One call over gRPC."""

    node: RpcContext
    method: Method
    metadata: CallMetadata
    is_peer: bool

    async def next_request(self, context: Context) -> bytes | None:
        """Read the next request of a stream, without charging it; None after the last.

        Raises:
            RpcFailure: it gave way to others before it had come in full.
        """
        return await self.node.unfinished.next(context, self.client.name)

    async def request(self, context: Context) -> bytes:
        """Read and charge the one request of the call.

        Raises:
            CallFailure: it is too large, or too much was sent lately.
            RpcFailure: it has not come in time.
        """
        node = self.node
        receiving = node.open_receiving if self.method.right is None else node.receiving
        connection = self.outlet.connection
        async with node.unfinished.awaiting(connection, self.client.name):
            request = await receiving.request(context)
        node.unfinished.read(connection, len(request))
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


def _end_with(context: Context, failure: RpcFailure, call_id: str) -> None:
    """Set the status that the call ends with when its handler returns.

    To abort would raise an error that is part of a reference cycle: requests of 16 MiB would pile
    up until the garbage collector finds them.
    """
    context.set_code(failure.code)
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
        self._begin_counting(method)
        room = self._room_for(method)

        async def serve(_requests: object, context: Context) -> bytes:
            request: bytes | None = None
            reading = False

            async def answer(call: Call) -> bytes:
                nonlocal request, reading
                call.check_ready()
                reading = True
                request = await call.request(context)
                with room(len(request)):
                    response = await handle(call, request)
                await call.outlet.answered(len(response), refusable=method.timed)
                return response

            async def refused(failure: RpcFailure) -> bytes:
                assert refuse is not None
                is_busy = failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
                if request is not None:
                    return refuse(request, failure.sentence, busy=is_busy)
                if reading:
                    # It has not come in full, and gRPC lets nobody ask for it a second time.
                    raise failure
                receiving = self._node.receiving
                late = await receiving.request(context, wait=False)
                return refuse(late, failure.sentence, busy=is_busy)

            response = await self._serve(
                method, context, answer, None if refuse is None else refused
            )
            return b"" if response is None else response

        return grpc.stream_unary_rpc_method_handler(serve)

    def stream(self, method: Method, handle: StreamHandler) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A method that answers one request by a stream; each page waits for the reader."""
        self._begin_counting(method)
        room = self._room_for(method)

        async def serve(_requests: object, context: Context) -> None:
            async def answer(call: Call) -> None:
                call.check_ready()
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

            await self._serve(method, context, answer)

        return grpc.stream_stream_rpc_method_handler(serve)

    def bidi(self, method: Method, handle: BidiHandler) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A method that reads and writes as it likes."""
        self._begin_counting(method)

        async def serve(_requests: object, context: Context) -> None:
            async def answer(call: Call) -> None:
                call.check_ready()
                await handle(call, context)

            await self._serve(method, context, answer)

        return grpc.stream_stream_rpc_method_handler(serve)

    def _room_for(self, method: Method) -> Callable[[int], AbstractContextManager[object]]:
        return self._large_reads.room if method.timed else nullcontext

    async def _serve(
        self,
        method: Method,
        context: Context,
        answer: Callable[[Call], Awaitable[_T]],
        refuse: Callable[[RpcFailure], Awaitable[_T]] | None = None,
    ) -> _T | None:
        node, began_ns = self._node, self._node.monotonic_ns()
        metadata, call, code = read_metadata(context), None, "OK"
        request_context(request_id=metadata.request_id)
        try:
            call = await self._open(method, context, metadata)
            if node.tracing is not None and method.traced:
                with node.tracing.serving(self._service, method.name, metadata.trace):
                    return await answer(call)
            if not method.endless:
                return await answer(call)
            with node.drain.endless():
                return await answer(call)
        except (asyncio.CancelledError, CallerGone):
            code = "CANCELLED"
            raise asyncio.CancelledError from None
        except NoRequest as none:
            code = none.code.name
            _end_with(context, none, metadata.request_id)
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
            failure, foreseen = translate(error, metadata.request_id)
            if refuse is not None and failure.retry:
                with suppress(RpcFailure):
                    return await refuse(failure)
            code = failure.code.name
            self._report(method, call, failure, None if foreseen else error)
            _end_with(context, failure, metadata.request_id)
            del failure  # its traceback has this frame: each would keep the other, and the request
            return None
        finally:
            if call is not None:
                call.account.end(method.kind)
                if call.is_peer:
                    node.callers[metadata.told[NODE_ID]] = node.now_ns() / _NS_PER_S
            self._measure(method, code, began_ns)

    async def _open(self, method: Method, context: Context, metadata: CallMetadata) -> Call:
        node = self._node
        access = node.access()
        client, is_peer = self._identify(method, context, metadata)
        if is_peer:
            assert node.peers is not None
            node.callers[metadata.told[NODE_ID]] = node.now_ns() / _NS_PER_S
            own = peer_answer(metadata.told, node.peers, self._own_metadata)
            await context.send_initial_metadata(own)
            # Once more: a caller may learn of the end of a call without responses first.
            context.set_trailing_metadata(own)
        now_ns = node.monotonic_ns()
        account = node.quota.account(client.name, client.limits, now_ns, named=client.named)
        limit = account.begin(method.kind, now_ns)
        if limit is not None:
            raise exceeded(limit)
        outlet = node.unsent.open(client.name, context.peer())
        context.add_done_callback(lambda _: outlet.close())  # type: ignore[arg-type]
        identify = partial(self._client, method, metadata.told, remote(context.peer()))
        if is_peer or method.right is None:
            identify = partial(_unchanged, client)
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

    def _identify(
        self, method: Method, context: Context, metadata: CallMetadata
    ) -> tuple[Client, bool]:
        origin = remote(context.peer())
        if method.right is None:
            return Client(origin.name, frozenset()), False
        if metadata.repeated:
            raise malformed(f"the metadata `{metadata.repeated}` is given twice: send it once")
        node, told, rules = self._node, metadata.told, self._node.peers
        if rules is not None and (
            self._listener == "peer" or (method.peers and is_believed_peer(told, rules, origin))
        ):
            return identify_peer(told, context, rules, node.peer_limits, method.name), True
        if method.peers_only:
            raise not_a_peer(told, rules)
        return self._client(method, told, origin), False

    def _client(self, method: Method, told: Mapping[str, str], origin: Remote) -> Client:
        """Who has the token of a call.

        Raises:
            RpcFailure: nobody, or it lacks the right.
        """
        assert method.right is not None
        open_admin = self._node.open_admin and self._listener == "admin"
        found = self._node.access().authorize(
            told.get(AUTHORIZATION), method.right, origin.name, open_admin=open_admin
        )
        if isinstance(found, Denied):
            raise RpcFailure(grpc.StatusCode[found.denial], found.sentence)
        return found

    def _report(
        self, method: Method, call: Call | None, failure: RpcFailure, error: Exception | None
    ) -> None:
        fields = {
            "method": method.name,
            "client": None if call is None else call.client.name,
            "code": failure.code.name,
            "reason": failure.sentence,
        }
        if error is None:
            self._log.warning("call_failed", **fields)
        else:
            self._log.error("call_crashed", exc_info=error, **fields)

    def _begin_counting(self, method: Method) -> None:
        """Show counts that alerts go by at 0: of one that begins with 1 no growth is known."""
        for code in _COUNTED_FROM_0:
            self._node.metrics.calls.labels(method.name, code)

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
