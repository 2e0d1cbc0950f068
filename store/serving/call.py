"""A call of a client under way, over any protocol.

`Call.run` is the way of every call: its caller is identified, and admitted by all quotas; its
request is read and charged; its method runs, and responds; an error is sent; the end is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from store.domain.access import Principal, Right
from store.domain.quota import Account, CallKind
from store.observe.logging import CURRENT_REQUEST, Logger
from store.serving.answers import AnswerSender
from store.serving.context import NodeContext
from store.serving.failure import CallerGoneError, CallError, Code, over_limit, translate, unready
from store.serving.methods.decode import COUNTED_REQUEST_BYTES
from store.serving.sockets import remote
from storenode.message.limits import NS_PER_S

MAX_REQUEST_ID_CHARS: Final = 64
"""``x-request-id`` of a caller; a longer one is replaced."""

MAX_SMALL_REQUEST_BYTES: Final = 1024 * 1024
"""A request of a call for which no legal one is half as large, since it has no list but topics."""

UNCOUNTED_ANSWER_BYTES: Final = 512
"""A unary answer that is not counted, since a call takes more."""

_SANE_REQUEST_ID: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_REQUEST_ID_CHARS}}}")
REQUEST_IDS: Final = map(f"{secrets.token_hex(6)}-{{:x}}".format, itertools.count(1))


def request_id(given: str) -> str:
    """Return a caller's ``x-request-id`` if it is fit for a log, else one of this node's."""
    return given if _SANE_REQUEST_ID.fullmatch(given) else next(REQUEST_IDS)


@dataclass(frozen=True, slots=True)
class Method:
    """The properties of a method that count before it is called.

    ``right``: what a caller needs; None admits every caller, without a look at tokens.
    ``peers``: peers may call it. ``peers_only``: clients may not. ``endless``: it continues until
    one side ends it. ``always``: it is served although the node is not ready. ``timed``: it is a
    read. A request above ``free_request_bytes`` takes of the memory for requests.
    """

    name: str
    right: Right | None
    kind: CallKind
    peers: bool = False
    peers_only: bool = False
    endless: bool = False
    always: bool = False
    timed: bool = False
    max_request_bytes: int = MAX_SMALL_REQUEST_BYTES
    free_request_bytes: int = COUNTED_REQUEST_BYTES


_NOTHING: Final = nullcontext()

UnaryMethod = Callable[["Call", bytes], Awaitable[bytes]]
StreamMethod = Callable[["Call", bytes], AsyncGenerator[bytes, None]]


class Call(ABC):
    """A call under way; ``access`` are the rules by which it was admitted last.

    ``connection`` has the form that gRPC gives names. ``client``, ``account`` and
    ``max_request_bytes`` are there once it is admitted. ``is_abandoned``: its caller has hung up
    while a batch waited for its commit. ``counted``: the count of the answer, if it has begun;
    ``when_done`` has it closed when the library of the edge has sent the answer. ``at_end``: what
    is to be called at the end, to give back what was taken. ``began_ns``: when it began, and then
    when its request had come, since callers may take their time; of the monotonic clock. ``ok``,
    ``gone``: the codes of a call that succeeds, or whose caller hangs up.
    """

    client: Principal
    account: Account
    max_request_bytes: int
    request_id: str
    ok: ClassVar = "OK"
    gone: ClassVar = "CANCELLED"
    log_events: ClassVar = ("call_failed", "call_crashed")

    def __init__(
        self,
        node: NodeContext,
        method: Method,
        connection: str,
        when_done: Callable[..., None] | None = None,
    ) -> None:
        self._when_done = when_done
        self.node = node
        self.began_ns = node.monotonic_ns()
        self.method = method
        self.connection = connection
        self.remote = remote(connection)
        self.access = node.access()
        self.is_admitted = self.is_abandoned = False
        self.counted: AnswerSender | None = None
        self.at_end: list[Callable[[], None]] = []

    @abstractmethod
    def identify(self) -> Principal:
        """Return the caller, by the rules in force.

        Raises:
            CallDeniedError: it is not known, or lacks the right.
            CallError: it does not say who it is as it should.
        """

    @abstractmethod
    async def read_request(self) -> bytes:
        """Read the request; return nothing where the method reads its requests itself."""

    def translate(self, error: Exception) -> tuple[CallError, bool]:
        """Return the failure for any error, and True if the error was expected."""
        return translate(error, self.request_id)

    @abstractmethod
    async def refuse(self, failure: CallError, crash: Exception | None) -> tuple[str, bytes | None]:
        """Send an error, and log it; return the code that is counted, and a response if it is one.

        ``crash``: the error is a fault of this node.
        """

    @abstractmethod
    def count(self, code: str, seconds: float) -> None:
        """Count the end of the call."""

    async def run(self, handle: Callable[[Self, bytes], Awaitable[bytes | None]]) -> bytes | None:
        """Serve the call by its method; return a response that the edge's library is to send.

        Raises:
            CancelledError: its caller has hung up.
        """
        code, method = self.ok, self.method
        CURRENT_REQUEST.set(self.request_id)
        try:
            client, now_ns = self.identify(), self.node.monotonic_ns()
            quota = self.node.quota if method.right is not None else self.node.probes
            account = quota.account(client.name, client.limits, now_ns, named=client.named)
            account.begin(method.kind, now_ns)
            self.client, self.account, self.is_admitted = client, account, True
            self.max_request_bytes = min(client.limits.request_bytes, method.max_request_bytes)
            if not method.always and (halted := self.node.health.halted) is not None:
                raise unready(halted)
            with self.node.drain.endless() if method.endless else _NOTHING:
                request = await self.read_request()
                self.charge(len(request))
                answer = await handle(self, request)
                if answer and (self.counted is not None or len(answer) > UNCOUNTED_ANSWER_BYTES):
                    self.sender.answered(len(answer), refusable=method.timed)
                return answer
        except (asyncio.CancelledError, CallerGoneError):
            code = self.gone
            raise asyncio.CancelledError from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
            failure, is_expected = self.translate(error)
            try:
                code, response = await self.refuse(failure, None if is_expected else error)
            except (asyncio.CancelledError, CallerGoneError):
                code = self.gone
                raise asyncio.CancelledError from None
            finally:
                # Its traceback has this frame: each would keep the other, and the request.
                del failure
            return response
        finally:
            for give_back in self.at_end:
                give_back()
            if self.is_admitted:
                self.account.end(method.kind)
            self.count(code, (self.node.monotonic_ns() - self.began_ns) / NS_PER_S)

    @property
    def sender(self) -> AnswerSender:
        """The count of the bytes of the answer, which begins with the first use."""
        if self.counted is None:
            sender = self.counted = AnswerSender(
                self.node.answers, self.client.name, self.connection
            )
            if self._when_done is not None:
                # Without the call itself, which has its request: each would keep the other.
                self._when_done(lambda _: sender.close())
        return self.counted

    def check_rights(self) -> None:
        """Identify the caller again, since the token file has changed.

        Raises:
            CallError: the topics of the caller are others now.
            Exception: as `identify` does, where the caller has no token any more.
        """
        access = self.node.access()
        if self.identify().topics != self.client.topics:
            raise CallError(
                Code.UNAVAILABLE,
                f"the topics of client {self.client.name} have changed: call again",
                retry=True,
            )
        self.access = access

    def too_large(self, size_bytes: int) -> CallError:
        """Return the error of a request of this size."""
        most = self.max_request_bytes
        return over_limit(f"the request has {size_bytes:,} bytes: at most {most:,}")

    def charge(self, size_bytes: int) -> None:
        """Charge a request that has come, and take its memory until the end of the call.

        Raises:
            CallError: it is too large, `check_rights` fails, or there is no memory.
            QuotaExceededError: too much was sent lately.
        """
        if self.access is not self.node.access():
            self.check_rights()
        if size_bytes > self.max_request_bytes:
            raise self.too_large(size_bytes)
        self.began_ns = self.node.monotonic_ns()
        self.account.received.take(size_bytes, self.began_ns)
        if size_bytes > self.method.free_request_bytes:
            self.at_end.append(self.node.requests.take(self.connection, size_bytes))

    def charge_next(self, size_bytes: int) -> None:
        """Charge a further request of a stream, without its memory.

        Raises:
            CallError, QuotaExceededError: as `charge` does, or the node serves no calls now.
        """
        self.account.requests.take(1, self.node.monotonic_ns())
        if not self.method.always and (halted := self.node.health.halted):
            raise unready(halted)
        self.charge(size_bytes)

    def report(
        self, log: Logger, failure: CallError, crash: Exception | None, **fields: object
    ) -> None:
        """Log a call that failed; a ``crash`` is a fault of this node."""
        fields |= {"client": self.client.name if self.is_admitted else None}
        failed, crashed = self.log_events
        if crash is None:
            log.warning(failed, **fields, reason=failure.sentence)
        else:
            log.error(crashed, exc_info=crash, **fields, reason=failure.sentence)

    async def send_pages(
        self,
        handle: Callable[[Self, bytes], AsyncGenerator[bytes, None]],
        request: bytes,
        send: Callable[[bytes], Awaitable[None]],
        encode: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Send the pages that answer a request, each as ``encode`` makes it, to a reader.

        One page is held: the next is read when the caller has taken the last.
        """

        async def send_checked(chunk: bytes) -> None:
            # It may have waited for room, and lost its rights meanwhile.
            if self.access is not self.node.access():
                self.check_rights()
            await send(chunk)

        with self.sender as sender:
            async with aclosing(handle(self, request)) as pages:
                async for page in pages:
                    if chunk := encode(page):
                        await sender.deliver(chunk, send_checked)
                    del page, chunk  # which would be held while the next one waits
