"""The metrics listener: `/metrics`, `/healthz`, `/readyz` and the status page, over plain HTTP/1.1.

One request per connection. Whoever can reach the port cannot hold the node up, nor keep probes out,
which have places of their own:

- connections whose request is not complete are bounded in number and time; where one more comes,
  the one that waits longest makes room, and a probe sends its request at once;
- requests for metrics and for the page are bounded in number, each for itself;
- what else there is costs nothing, and is always answered.

Pages are for browsers, and so for the names alone that `store.observe.hosts` tells. Metrics and
probes are for programs, which call by whatever name they find a node: these may be asked for by any
name, but by a browser. It always sends ``Accept-Language``, which no web page can leave out, and a
name: a request without one is no browser's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from store.observe import page
from store.observe.hosts import is_served, name_of
from store.observe.limits import (
    HTTP_HEAD_TIMEOUT_S,
    HTTP_TIMEOUT_S,
    MAX_HTTP_HEAD_BYTES,
    MAX_METRICS_REQUESTS,
    MAX_STATUS_REQUESTS,
    MAX_UNFINISHED_REQUESTS,
)
from store.observe.metrics import CONTENT_TYPE

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_FOR_PROGRAMS = ("/metrics", "/healthz", "/readyz")
_END_OF_HEAD = b"\r\n\r\n"
_TOO_LARGE = f"A request has at most {MAX_HTTP_HEAD_BYTES} bytes.\n".encode()
_NO_PAGE = b"Here are /metrics, /healthz and /readyz.\n"
_NOT_HERE = b"Here are /status, /status.json, /metrics, /healthz and /readyz.\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; `body` is left out for HEAD."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    headers: Sequence[tuple[str, str]] = ()


class MetricsListener:
    """Serves until `close`; without `render_status` there is no status page.

    ``hosts``: names by which a browser may call, besides addresses and ``localhost``.
    """

    def __init__(
        self,
        render_metrics: Callable[[], Awaitable[bytes]],
        render_status: Callable[[], Awaitable[bytes]] | None,
        why_not_ready: Callable[[], str | None],
        hosts: Collection[str],
    ) -> None:
        self._render_metrics = render_metrics
        self._render_status = render_status
        self._why_not_ready = why_not_ready
        self._hosts = hosts
        self._server: asyncio.Server | None = None
        self._unfinished: dict[asyncio.StreamWriter, None] = {}
        self._metrics_requests = _Places("requests for metrics", MAX_METRICS_REQUESTS)
        self._status_requests = _Places("requests about the status page", MAX_STATUS_REQUESTS)

    async def open(self, host: str, port: int) -> int:
        """Bind and serve; returns the port.

        Raises:
            OSError: The address cannot be bound.
        """
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=MAX_HTTP_HEAD_BYTES
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening; requests under way may end by themselves within their time."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def answer(self, method: str, path: str) -> Answer:
        """The response to one request."""
        if method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"Use GET or HEAD.\n")
        path = path.partition("?")[0]
        match path:
            case "/metrics":
                return Answer(HTTPStatus.OK, await self._render_metrics(), CONTENT_TYPE)
            case "/healthz":
                return Answer(HTTPStatus.OK, b"alive\n")
            case "/readyz":
                return self._readiness()
        return await self._answer_browser(path)

    def _readiness(self) -> Answer:
        reason = self._why_not_ready()
        if reason is None:
            return Answer(HTTPStatus.OK, b"ready\n")
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}\n".encode())

    async def _answer_browser(self, path: str) -> Answer:
        if self._render_status is None:
            return Answer(HTTPStatus.NOT_FOUND, _NO_PAGE)
        if path == "/":
            return Answer(HTTPStatus.FOUND, b"", headers=(("Location", page.PATH),))
        if path == page.DATA_PATH:
            return Answer(HTTPStatus.OK, await self._render_status(), _JSON, page.HEADERS)
        found = page.asset(path)
        if found is None:
            return Answer(HTTPStatus.NOT_FOUND, _NOT_HERE)
        return Answer(HTTPStatus.OK, *found, page.HEADERS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HTTP_TIMEOUT_S):
                head = await self._head(reader, writer)
                if head is not None:
                    await self._exchange(head, writer)
        except asyncio.LimitOverrunError:
            await _refuse(writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_LARGE)
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            writer.close()

    async def _head(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """The request line and the headers; None where the connection ended before."""
        if len(self._unfinished) >= MAX_UNFINISHED_REQUESTS:
            oldest = next(iter(self._unfinished))
            del self._unfinished[oldest]
            oldest.transport.abort()
        self._unfinished[writer] = None
        try:
            async with asyncio.timeout(HTTP_HEAD_TIMEOUT_S):
                return await reader.readuntil(_END_OF_HEAD)
        except asyncio.IncompleteReadError:
            return None
        finally:
            self._unfinished.pop(writer, None)

    async def _exchange(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        line, *lines = head.decode("latin-1").split("\r\n")
        parts = line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            await _refuse(writer, HTTPStatus.BAD_REQUEST, b"This is no HTTP/1.1 request.\n")
            return
        method, path, _ = parts
        with_body = method != "HEAD"
        misdirected = self._misdirected(path, _headers(lines))
        if misdirected is not None:
            await _send(writer, misdirected, with_body=with_body)
            return
        places = self._places(path)
        if places is None:
            await _send(writer, await self.answer(method, path), with_body=with_body)
        elif places.free == 0:
            await _send(writer, _too_many(places.what), with_body=with_body)
        else:
            with places:
                await _send(writer, await self.answer(method, path), with_body=with_body)

    def _misdirected(self, path: str, headers: Mapping[str, str]) -> Answer | None:
        """The answer to a page that may have been led here by its own name."""
        if path.partition("?")[0] in _FOR_PROGRAMS and "accept-language" not in headers:
            return None
        host = headers.get("host")
        if host is None or is_served(host, self._hosts):
            return None
        sentence = (
            f"This node is not called {name_of(host)[:100]!r}: call it by its address, or start it"
            " with --metrics-allow-host and this name.\n"
        )
        return Answer(HTTPStatus.MISDIRECTED_REQUEST, sentence.encode())

    def _places(self, path: str) -> _Places | None:
        """The places that a request needs one of."""
        if path.startswith(page.PATH):
            return self._status_requests
        return self._metrics_requests if path.startswith("/metrics") else None


class _Places:
    """How many requests of one kind are under way at most."""

    def __init__(self, what: str, most: int) -> None:
        self.what = what
        self.free = most

    def __enter__(self) -> None:
        self.free -= 1

    def __exit__(self, *_: object) -> None:
        self.free += 1


def _headers(lines: Sequence[str]) -> dict[str, str]:
    """Headers by their names in small letters; of one that comes again the last."""
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _too_many(what: str) -> Answer:
    sentence = f"Too many {what}: ask again in a few seconds.\n"
    return Answer(
        HTTPStatus.SERVICE_UNAVAILABLE, sentence.encode(), headers=(("Retry-After", "3"),)
    )


async def _refuse(writer: asyncio.StreamWriter, status: HTTPStatus, sentence: bytes) -> None:
    with contextlib.suppress(OSError):
        await _send(writer, Answer(status, sentence))


async def _send(writer: asyncio.StreamWriter, answer: Answer, *, with_body: bool = True) -> None:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        + "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        + f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    writer.write(head.encode("latin-1") + (answer.body if with_body else b""))
    await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
