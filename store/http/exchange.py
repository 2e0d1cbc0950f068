"""One request and its response, as ASGI has them.

A chunk that is sent has left this process, but for `BUFFER_BYTES` of the transport, when
`Exchange.send` returns: uvicorn waits for the buffer before the next event, so an empty one follows
a chunk that is larger. A caller that takes nothing for `SEND_TIMEOUT_S` is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from store.http.bodies import Bodies
from store.http.failure import bad_request
from store.http.limits import BUFFER_BYTES, HEARTBEAT_S, MAX_PARAMETERS, SEND_TIMEOUT_S
from store.serving.failure import over_limit
from store.serving.remote import connection_name

if TYPE_CHECKING:
    from store.http.connections import BoundedProtocol

JSON: Final = b"application/json"
_NO_STORE: Final = (b"cache-control", b"no-store")
_NO_SNIFF: Final = (b"x-content-type-options", b"nosniff")


class CallerGoneError(Exception):
    """The caller hung up, or takes nothing of its answer."""


class Exchange:
    """A request that is being answered."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers = Headers(scope=scope)
        self.caller = connection_name(*scope["client"])
        self.request_id = ""
        self.started = False
        self._receive = receive
        self._send = send
        self._connection: BoundedProtocol = scope["state"]["connection"]
        self.complete = False

    @property
    def content_type(self) -> str:
        """The type of the body, in lower case and without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @cached_property
    def parameters(self) -> Mapping[str, list[str]]:
        """The parameters of the URL, by name.

        Raises:
            HttpError: there are too many.
        """
        try:
            text = self.scope["query_string"].decode("latin-1")
            return parse_qs(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError:
            raise bad_request(
                f"the URL has more than {MAX_PARAMETERS} parameters: send longer lists in a body"
            ) from None

    async def body(self, bodies: Bodies, largest_bytes: int) -> bytes:
        """Read the body.

        Raises:
            CallFailure: it is too large, or has not come in time.
            CallerGoneError: it has not come in full.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > largest_bytes:
            raise _too_large(int(declared), largest_bytes)
        body = bytearray()
        async with bodies.coming() as coming:
            while True:
                event = await self._receive()
                if event["type"] == "http.disconnect":
                    raise CallerGoneError
                part = event.get("body", b"")
                coming.add(len(part))
                if coming.size_bytes > largest_bytes:
                    raise _too_large(coming.size_bytes, largest_bytes)
                body += part
                if not event.get("more_body", False):
                    return bytes(body)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Answer a request that has come in full, until the caller hangs up.

        Raises:
            CallerGoneError: it did.
        """
        task, is_gone = asyncio.current_task(), False
        assert task is not None

        def leave() -> None:
            nonlocal is_gone
            if not self.complete:
                is_gone = True
                task.cancel()

        if self._connection.is_gone:
            raise CallerGoneError
        self._connection.on_gone = leave
        try:
            yield
        except asyncio.CancelledError:
            if is_gone and task.uncancel() == 0:
                raise CallerGoneError from None
            raise
        finally:
            self._connection.on_gone = None

    @asynccontextmanager
    async def kept_alive(self, beat: bytes) -> AsyncIterator[None]:
        """Send ``beat`` every `HEARTBEAT_S` beside an answer that may be silent."""
        task = asyncio.create_task(self._beat(beat))
        try:
            yield
        finally:
            task.cancel()

    async def _beat(self, beat: bytes) -> None:
        with suppress(CallerGoneError):
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                if self.started:
                    await self.send(beat)
        self.abort()

    async def start(
        self, status: int, content_type: bytes, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Send the status and the headers."""
        given = [(b"content-type", content_type), *(headers or ())]
        await self.pass_on({"type": "http.response.start", "status": status, "headers": given})

    async def pass_on(self, event: Message) -> None:
        """Send an event of an answer that another application makes.

        Raises:
            CallerGoneError: the caller does not take it.
        """
        if event["type"] == "http.response.start":
            self.started = True
            own = [_NO_STORE, _NO_SNIFF, (b"x-request-id", self.request_id.encode())]
            is_receiving = self._connection.is_receiving
            if is_receiving:
                own.append((b"connection", b"close"))
            await self._events({**event, "headers": [*event["headers"], *own]})
            if is_receiving:
                self._connection.linger_at_end()
            return
        if event["body"]:
            await self.send(event["body"])
        if not event.get("more_body", False):
            await self.finish()

    async def send(self, chunk: bytes) -> None:
        """Send a part of the body, and wait until it has left.

        Raises:
            CallerGoneError: it does not.
        """
        events = [chunk, b""] if len(chunk) > BUFFER_BYTES else [chunk]
        await self._events(
            *({"type": "http.response.body", "body": each, "more_body": True} for each in events)
        )

    async def finish(self) -> None:
        """End the body."""
        self.complete = True
        await self._events({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond(
        self,
        body: bytes,
        content_type: bytes = JSON,
        *,
        status: int = 200,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Send a whole response; JSON ends a line, for those who look at it in a terminal."""
        if content_type == JSON:
            body += b"\n"
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, content_type, [length, *(headers or ())])
        await self.send(body)
        await self.finish()

    def abort(self) -> None:
        """Close the connection, so that the caller sees that the answer is not complete."""
        self._connection.abort()

    async def _events(self, *events: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                for event in events:
                    await self._send(event)
        except TimeoutError:
            raise CallerGoneError from None


def _too_large(size_bytes: int, largest_bytes: int) -> Exception:
    return over_limit(f"the request has {size_bytes:,} bytes: at most {largest_bytes:,}")
