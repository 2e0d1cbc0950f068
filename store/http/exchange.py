"""One request and its response, as ASGI has them.

A chunk that is sent has left this process, but for what fits into the transport's buffer, when
`Exchange.send` returns: uvicorn waits for the buffer before the next event, so an empty one follows
each chunk. A caller that takes nothing for `SEND_TIMEOUT_S` is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from store.http.bodies import Bodies
from store.http.connections import Connections
from store.http.limits import SEND_TIMEOUT_S
from store.serving.failure import over_limit
from store.serving.remote import connection_name

JSON: Final = b"application/json"
_NO_STORE: Final = (b"cache-control", b"no-store")
_NO_SNIFF: Final = (b"x-content-type-options", b"nosniff")


class CallerGone(Exception):
    """The caller hung up, or takes nothing of its answer."""


class Exchange:
    """A request that is being answered."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, connections: Connections
    ) -> None:
        self.method: str = scope["method"]
        self.headers = Headers(scope=scope)
        self.query = QueryParams(scope["query_string"])
        self.client: tuple[str, int] = tuple(scope["client"])
        self.connection = connection_name(*self.client)
        self.request_id = ""
        self.started = False
        self._receive = receive
        self._send = send
        self._connections = connections
        self._complete = False
        self._gone = False

    async def body(self, bodies: Bodies, largest_bytes: int) -> bytes:
        """Read the body.

        Raises:
            CallFailure: it is too large, or has not come in time.
            CallerGone: it has not come in full.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > largest_bytes:
            raise _too_large(int(declared), largest_bytes)
        parts: list[bytes] = []
        async with bodies.coming() as coming:
            while True:
                event = await self._receive()
                if event["type"] == "http.disconnect":
                    raise CallerGone
                part = event.get("body", b"")
                coming.add(len(part))
                if coming.size_bytes > largest_bytes:
                    raise _too_large(coming.size_bytes, largest_bytes)
                parts.append(part)
                if not event.get("more_body", False):
                    return b"".join(parts)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Around the answering of a request that has come in full: ends when the caller hangs up.

        Raises:
            CallerGone: it did.
        """
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(self._watch(task))
        try:
            yield
        except asyncio.CancelledError:
            if self._gone and task.uncancel() == 0:
                raise CallerGone from None
            raise
        finally:
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[object]) -> None:
        while not self._complete:
            event = await self._receive()
            if event["type"] == "http.disconnect" and not self._complete:
                self._gone = True
                task.cancel()
                return

    async def start(
        self, status: int, content_type: bytes, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Send the status and the headers."""
        self.started = True
        given = [
            (b"content-type", content_type),
            _NO_STORE,
            _NO_SNIFF,
            (b"x-request-id", self.request_id.encode()),
            *(headers or ()),
        ]
        await self._event({"type": "http.response.start", "status": status, "headers": given})

    async def send(self, chunk: bytes) -> None:
        """Send a part of the body, and wait until it has left.

        Raises:
            CallerGone: it does not.
        """
        await self._event({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._event({"type": "http.response.body", "body": b"", "more_body": True})

    async def finish(self) -> None:
        """End the body."""
        self._complete = True
        await self._event({"type": "http.response.body", "body": b"", "more_body": False})

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
        self._connections.abort(self.client)

    async def _event(self, event: dict[str, object]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._send(event)
                return
        raise CallerGone


def _too_large(size_bytes: int, largest_bytes: int) -> Exception:
    return over_limit(f"the request has {size_bytes:,} bytes: at most {largest_bytes:,}")
