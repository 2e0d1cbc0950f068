"""The metrics listener: `/metrics`, `/healthz`, `/readyz` and the status page, over plain HTTP/1.1.

It has a thread and an event loop of its own, so that probes are answered while the node's loop is
busy. Probes read values that the node has set; metrics and the page are rendered in the node's
loop. A node whose loop has not run for `READY_SILENCE_S` after a probe is not ready, and after
`LIVE_SILENCE_S` it is not alive.

One request per connection. Callers cannot hold the node up, nor keep probes out:

- connections whose request is not complete are bounded in number and time; where one more comes,
  the one that waits longest is closed, and a probe sends its request at once;
- requests for metrics and for the page under way are bounded in number, each for itself;
- everything else is answered at once.

Pages are for browsers, and are served by the names alone that `is_served` allows: a web page can
have its own name lead to any address once it is loaded (DNS rebinding), so that the header ``Host``
alone distinguishes them. Metrics and probes are for programs, which call a node by any name: they
are served by any name, but not to a browser. A browser always sends ``Accept-Language``, which no
web page can leave out, and a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from ipaddress import ip_address
from threading import Thread
from typing import Final, NamedTuple

from store.observe.metrics import CONTENT_TYPE

MAX_UNFINISHED_REQUESTS: Final = 128
"""Connections of the metrics listener whose request is not complete; where one more comes, the
oldest of them is closed."""

MAX_HTTP_HEAD_BYTES: Final = 8 * 1024
"""The request line and the headers of one request."""

HTTP_HEAD_TIMEOUT_S: Final = 3.0
"""The time that a request may take to arrive, from the connection on."""

HTTP_TIMEOUT_S: Final = 10.0
"""The time that a request may take, from the connection to the end of the response."""

READY_SILENCE_S: Final = 10.0
LIVE_SILENCE_S: Final = 60.0
"""The time without a turn of the event loop after a probe until the node is not ready and, later,
not alive."""

MAX_STATUS_REQUESTS: Final = 24
"""Requests about the status page under way; further ones are answered 503."""

MAX_METRICS_REQUESTS: Final = 8
"""Requests for metrics under way; further ones are answered 503."""

METRICS_PATH: Final = "/metrics"
STATUS_PATH: Final = "/status"
STATUS_DATA_PATH: Final = "/status.json"

_TEXT = "text/plain; charset=utf-8"
_TYPES: Final = {
    METRICS_PATH: CONTENT_TYPE,
    STATUS_PATH: _TEXT,
    STATUS_DATA_PATH: "application/json",
}
_FILES: Final = {
    STATUS_PATH: ("status.html", "text/html; charset=utf-8"),
    "/status.css": ("status.css", "text/css; charset=utf-8"),
    "/status.js": ("status.js", "text/javascript; charset=utf-8"),
    "/status.svg": ("status.svg", "image/svg+xml"),
}
_FOR_PROGRAMS = (METRICS_PATH, "/healthz", "/readyz")
_END_OF_HEAD = b"\r\n\r\n"

_Render = Callable[[], Coroutine[None, None, bytes]]


class _Answer(NamedTuple):
    """A response; `body` is left out for HEAD."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    headers: Sequence[tuple[str, str]] = ()


_TOO_MANY = _Answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    b"Too many such requests are under way: ask again in a few seconds.\n",
    headers=(("Retry-After", "3"),),
)
_TOO_LARGE = _Answer(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"A request has at most {MAX_HTTP_HEAD_BYTES} bytes.\n".encode(),
)
_NO_REQUEST = _Answer(HTTPStatus.BAD_REQUEST, b"This is no HTTP/1.1 request.\n")
_NOT_ALLOWED = _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"Use GET or HEAD.\n")
_NOT_FOUND = _Answer(HTTPStatus.NOT_FOUND, b"Here are /status, /metrics, /healthz and /readyz.\n")
_TO_STATUS = _Answer(HTTPStatus.FOUND, b"", headers=(("Location", STATUS_PATH),))


class MetricsListener:
    """A server of its own thread, until `close`.

    ``rendered``: what the node's loop renders, by path: `METRICS_PATH`, and `STATUS_DATA_PATH` or a
    text at `STATUS_PATH`. The files of the status page are served where its data are.

    ``why_not_ready`` returns a value that was set, from any thread. ``hosts``: names by which a
    browser may call, besides addresses and ``localhost``.
    """

    def __init__(
        self,
        rendered: Mapping[str, _Render],
        why_not_ready: Callable[[], str | None],
        hosts: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rendered = rendered
        self._why_not_ready = why_not_ready
        self._hosts = hosts
        self._clock = clock
        self._asked_s: float | None = None
        self._unfinished: dict[asyncio.StreamWriter, None] = {}
        self._limits = {
            METRICS_PATH: asyncio.Semaphore(MAX_METRICS_REQUESTS),
            STATUS_PATH: asyncio.Semaphore(MAX_STATUS_REQUESTS),
        }

    async def open(self, host: str, port: int) -> int:
        """Bind an address, serve, and return the port.

        Raises:
            OSError: The address cannot be bound.
        """
        bound: Future[int] = Future()
        bound.set_running_or_notify_cancel()  # the thread sets it also where this is cancelled
        self._node = asyncio.get_running_loop()
        self._thread = Thread(
            target=lambda: asyncio.run(self._listen(host, port, bound)), name="probes", daemon=True
        )
        self._thread.start()
        return await asyncio.wrap_future(bound)

    async def close(self) -> None:
        """Stop serving, and end the thread."""
        self._loop.call_soon_threadsafe(self._ending.set)
        await asyncio.to_thread(self._thread.join)

    async def _listen(self, host: str, port: int, bound: Future[int]) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self.serve, host, port, limit=MAX_HTTP_HEAD_BYTES)
        except OSError as error:
            bound.set_exception(error)
            return
        bound.set_result(server.sockets[0].getsockname()[1])
        await self._ending.wait()
        server.close()

    async def _answer(self, path: str) -> _Answer:
        match path:
            case "/healthz":
                return _probed("alive", self._silence(LIVE_SILENCE_S))
            case "/readyz":
                return _probed("ready", self._silence(READY_SILENCE_S) or self._why_not_ready())
            case "/":
                return _TO_STATUS
        if (render := self._rendered.get(path)) is not None:
            rendering = asyncio.run_coroutine_threadsafe(render(), self._node)
            found = await asyncio.wrap_future(rendering), _TYPES[path]
        elif (file := asset(path)) is not None and STATUS_DATA_PATH in self._rendered:
            found = file
        else:
            return _NOT_FOUND
        return _Answer(HTTPStatus.OK, *found, STATUS_HEADERS)

    def _silence(self, longest_s: float) -> str | None:
        """Return a reason if the node's loop has not run since a probe before this time."""
        now_s, asked_s = self._clock(), self._asked_s
        if asked_s is None:
            self._asked_s = asked_s = now_s
            self._node.call_soon_threadsafe(setattr, self, "_asked_s", None)
        silent_s = now_s - asked_s
        return f"nothing has run for {silent_s:.0f} s" if silent_s > longest_s else None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the request of a connection, and end the connection."""
        try:
            async with asyncio.timeout(HTTP_TIMEOUT_S):
                if (head := await self._head(reader, writer)) is not None:
                    await self._exchange(head, writer)
                writer.close()
                await writer.wait_closed()  # a caller may leave the end of a response unread
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    async def _head(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """Return the request line and the headers; None where there are none to answer."""
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
        except asyncio.LimitOverrunError:
            await _send(writer, _TOO_LARGE)
            return None
        finally:
            self._unfinished.pop(writer, None)

    async def _exchange(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        line, *lines = head.decode("latin-1").split("\r\n")
        parts = line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            await _send(writer, _NO_REQUEST)
            return
        method, path = parts[0], parts[1].partition("?")[0]
        limit = next((each for start, each in self._limits.items() if path.startswith(start)), None)
        answer = self._misdirected(path, lines)
        if answer is None and method not in ("GET", "HEAD"):
            answer = _NOT_ALLOWED
        if answer is None and limit is not None and limit.locked():
            answer = _TOO_MANY
        async with limit if limit and not answer else contextlib.nullcontext():
            answer = answer or await self._answer(path)
            await _send(writer, answer, with_body=method != "HEAD")

    def _misdirected(self, path: str, lines: Sequence[str]) -> _Answer | None:
        """Return the answer to a page whose own name may have been made to lead here."""
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if path in _FOR_PROGRAMS and "accept-language" not in headers:
            return None
        host = headers.get("host")
        if host is None or is_served(host, self._hosts):
            return None
        sentence = (
            f"This node is not called {name_of(host)[:100]!r}: call it by its address, or start it"
            " with --metrics-allow-host and this name.\n"
        )
        return _Answer(HTTPStatus.MISDIRECTED_REQUEST, sentence.encode())


def _probed(state: str, reason: str | None) -> _Answer:
    if reason is None:
        return _Answer(HTTPStatus.OK, f"{state}\n".encode())
    return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"not {state}: {reason}\n".encode())


async def _send(writer: asyncio.StreamWriter, answer: _Answer, *, with_body: bool = True) -> None:
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


ANY: Final = "*"
_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:@\[\]]+))(?::[0-9]*)?")


def is_served(host: str, allowed: Collection[str]) -> bool:
    """Return True if a header ``Host`` is an address, ``localhost``, or a name that is allowed.

    `ANY` in ``allowed`` allows all.
    """
    name = name_of(host)
    if ANY in allowed or name in allowed or name == "localhost" or name.endswith(".localhost"):
        return True
    with contextlib.suppress(ValueError):
        ip_address(name)
        return True
    return False


def name_of(host: str) -> str:
    """Return the name or address of ``HOST`` or ``HOST:PORT``, as compared; else all of it."""
    found = _HOST.fullmatch(host)
    return host if found is None else (found[1] or found[2]).lower().removesuffix(".")


# Nothing but what this listener serves, no script or style inside the page, no frame around it.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STATUS_HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)


@cache
def asset(path: str) -> tuple[bytes, str] | None:
    """Return content and type of the file behind a path of the page; None: there is none."""
    if path not in _FILES:
        return None
    name, content_type = _FILES[path]
    return files("store.observe").joinpath("web", name).read_bytes(), content_type
