"""Requests over raw sockets: what can be read in two ways, or costs far more than its bytes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from store.http.call import MAX_PARAMETERS, HttpExchange, as_http
from store.http.listener import (
    BUFFER_BYTES,
    LEAST_CHUNK_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADER_FIELDS,
    MAX_SMALL_CHUNKS,
    HttpListener,
    bind,
)
from store.observe.metrics import Metrics
from store.serving.addresses import ListenerAddress
from store.serving.failure import CallError
from store.serving.tls import TlsFiles
from tests.support.credentials import Pki, check_renewal
from tests.support.polling import until

GET: Final = b"GET / HTTP/1.1\r\nhost: a\r\n"
POST: Final = b"POST / HTTP/1.1\r\nhost: a\r\n"
CHUNKED: Final = POST + b"transfer-encoding: chunked\r\n\r\n"
NEXT: Final = GET + b"connection: close\r\n\r\n"
"""A request hidden behind another, which some servers would take for a part of its body."""

REFUSED_HEADERS: Final = {
    "content-length and transfer-encoding": b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
    "transfer-encoding and content-length": b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
    "two lengths": b"content-length: 0\r\ncontent-length: 0\r\n",
    "two different lengths": b"content-length: 0\r\ncontent-length: 5\r\n",
    "a list of lengths": b"content-length: 0, 0\r\n",
    "a length with a plus": b"content-length: +0\r\n",
    "a length with a minus": b"content-length: -0\r\n",
    "a length in hexadecimal": b"content-length: 0x0\r\n",
    "a length with an underscore": b"content-length: 1_0\r\n",
    "a length of nothing": b"content-length: \r\n",
    "a length of more than 64 bits": b"content-length: 99999999999999999999\r\n",
    "a space before the colon": b"content-length : 0\r\n",
    "a folded line": b"x: y\r\n z\r\n",
    "a folded line with a tab": b"x: y\r\n\tz\r\n",
    "a line that ends with LF": b"x: y\n",
    "a line that ends with CR": b"x: y\rz: a\r\n",
    "a NUL": b"x: \0\r\n",
    "a name with a byte beyond ASCII": b"x\xff: y\r\n",
    "no name": b": y\r\n",
    "no colon": b"content-length\r\n",
    "two hosts": b"host: b\r\n",
    "a coding of two": b"transfer-encoding: gzip, chunked\r\n",
    "a coding twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "an unknown coding": b"transfer-encoding: xchunked\r\n",
    "a coding that is not the last": b"transfer-encoding: chunked, identity\r\n",
    "a coding behind a control character": b"transfer-encoding: \x0bchunked\r\n",
}
REFUSED: Final = {
    "lines that end with LF": b"GET / HTTP/1.1\nhost: a\n\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a first line that is folded": b"GET / HTTP/1.1\r\n host: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nhost: a\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.0 in chunks": CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
    "a target of another host": b"GET http://b/ HTTP/1.1\r\nhost: a\r\n\r\n",
    "no target": b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
    "CONNECT": b"CONNECT b:1 HTTP/1.1\r\nhost: a\r\n\r\n",
    "a chunk with a plus": CHUNKED + b"+0\r\n\r\n",
    "a chunk with a minus": CHUNKED + b"-0\r\n\r\n",
    "a chunk with 0x": CHUNKED + b"0x0\r\n\r\n",
    "a chunk with a space": CHUNKED + b"0 \r\n\r\n",
    "a chunk that ends with LF": CHUNKED + b"1\nx\n0\n\n",
    "a chunk that is longer than it says": CHUNKED + b"1\r\nxy\r\n0\r\n\r\n",
    "a chunk of more than 64 bits": CHUNKED + b"fffffffffffffffff\r\n",
    "a chunk extension that ends with LF": CHUNKED + b"0;a\n\r\n",
    "a length in a trailer": CHUNKED + b"0\r\ncontent-length: 5\r\n\r\n",
}
SERVED: Final = {
    "a request": GET + b"\r\n",
    "a body": POST + b"content-length: 2\r\n\r\nhi",
    "chunks": CHUNKED + b"1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
    "a chunk extension": CHUNKED + b"2;a=b\r\nhi\r\n0\r\n\r\n",
    "a trailer": CHUNKED + b"2\r\nhi\r\n0\r\nauthorization: Bearer x\r\n\r\n",
    "an address as target": b"GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n",
}

LARGE: Final = bytes(16 * 1024 * 1024)
WHERE: Final = ListenerAddress("--http-listen", "127.0.0.1", 0)


@dataclass
class Server:
    """A listener whose application answers with the body of the request and its headers."""

    address: tuple[str, int] = ("", 0)
    answered: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, never to ``/late``, to ``/early`` at once, to ``/parts`` without a length."""
        exchange = HttpExchange(scope, receive, send)
        try:
            if scope["path"] == "/late":
                self.begun.set()
                await asyncio.Event().wait()
            body = b""
            has_more = scope["path"] != "/early"
            while has_more:
                event = await receive()
                body += event["body"]
                has_more = event["more_body"]
            assert "authorization" not in exchange.headers
            len(exchange.parameters)
            if scope["path"] == "/parts":
                parts = (exchange.send(part, b"text/plain") for part in (LARGE, b"two"))
                await asyncio.gather(*parts)  # as a page of events, and a heartbeat meanwhile
                await exchange.finish()
            else:
                await exchange.respond(body, b"text/plain")
            self.answered += 1
        except CallError as failure:
            await exchange.respond(failure.sentence.encode(), status=as_http(failure).status)
        except asyncio.CancelledError:
            self.gone.set()

    async def ask(self, sent: bytes) -> bytes:
        """Send some bytes, and return all that comes until the connection ends."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(sent)
            return await reader.read()
        finally:
            writer.close()


@pytest.fixture
async def server() -> Server:
    """Return an application, which a listener serves."""
    return Server()


@pytest.fixture(autouse=True)
async def listener(server: Server) -> AsyncIterator[HttpListener]:
    """Start a server on a free port."""
    listener = bind(WHERE, server, None, 100, Metrics("test"))
    host, _, port = listener.address.rpartition(":")
    server.address = host, int(port)
    await listener.start()
    yield listener
    await listener.stop(0)


async def test_what_can_be_read_in_two_ways_ends_the_connection(server: Server) -> None:
    heads = {name: POST + each + b"\r\n0\r\n\r\n" for name, each in REFUSED_HEADERS.items()}
    for name, sent in {**heads, **REFUSED}.items():
        answer = await server.ask(sent + NEXT)
        assert answer.startswith(b"HTTP/1.1 400 "), name
        assert answer.count(b"HTTP/1.1 ") == 1, name
    assert server.answered == 0


async def test_a_sound_request_is_answered_and_so_is_the_next(server: Server) -> None:
    for name, sent in SERVED.items():
        answer = await server.ask(sent + NEXT)
        assert answer.count(b"HTTP/1.1 200 ") == 2, name
        assert (b"\r\n\r\nhi" in answer) == sent.startswith(b"POST"), name


async def test_callers_of_http_1_0_are_sent_no_chunks(server: Server) -> None:
    old = b"HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n"
    head, _, body = (await server.ask(b"GET /parts " + old)).partition(b"\r\n\r\n")
    assert body == LARGE + b"two"
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    head, _, body = (await server.ask(b"POST / " + old)).partition(b"\r\n\r\n")
    assert (b"content-length: 0" in head, body) == (True, b"")


LIMITS: Final = {
    "headers": (GET + b"x: y\r\n" * MAX_HEADER_FIELDS + b"\r\n", b"431"),
    "trailers": (CHUNKED + b"0\r\n" + b"x: y\r\n" * MAX_HEADER_FIELDS, b"431"),
    "a header": (GET + b"x: " + b"y" * MAX_HEAD_BYTES, b"431"),
    "a target": (b"GET /" + b"y" * MAX_HEAD_BYTES, b"431"),
    "a chunk extension": (CHUNKED + b"1;" + b"y" * MAX_HEAD_BYTES, b"431"),
    "lines before a request": (b"\r\n" * MAX_HEAD_BYTES, b"431"),
    "chunks of one byte": (CHUNKED + b"1\r\nx\r\n" * (MAX_SMALL_CHUNKS + 2), b"400"),
    "parameters": (b"GET /?" + b"a&" * MAX_PARAMETERS + NEXT[5:], b"400"),
}


async def test_what_costs_more_than_its_bytes_is_refused(server: Server) -> None:
    for name, (sent, status) in LIMITS.items():
        answer = await server.ask(sent)
        assert answer.startswith(b"HTTP/1.1 %b " % status), name
    assert server.answered == 0


async def test_a_large_body_may_come_in_many_chunks(server: Server) -> None:
    chunk = b"%x\r\n%b\r\n" % (LEAST_CHUNK_BYTES, b"x" * LEAST_CHUNK_BYTES)
    head = CHUNKED.removesuffix(b"\r\n") + b"connection: close\r\n\r\n"
    answer = await server.ask(
        head + chunk * 1_000 + b"1\r\nx\r\n" * MAX_SMALL_CHUNKS + b"0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_an_answer_before_the_body_reaches_the_caller_and_ends_the_connection(
    server: Server,
) -> None:
    head = b"POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 10000000\r\n\r\n"
    answer = await server.ask(head + b"x" * 9_000_000)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


async def test_the_request_before_one_that_is_refused_is_not_answered_by_its_error(
    server: Server,
) -> None:
    sent = b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n" + b"nonsense\r\n\r\n"
    assert await server.ask(sent) == b""


async def test_a_request_ends_with_its_connection_although_others_wait_behind_it(
    server: Server,
) -> None:
    _, writer = await asyncio.open_connection(*server.address)
    writer.write(b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n")
    writer.write(GET + b"\r\n")
    writer.transport.abort()
    await server.gone.wait()


async def test_an_answer_that_is_not_read_takes_two_buffers(
    server: Server, listener: HttpListener
) -> None:
    connections = cast("set[Any]", listener.state.connections)
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (POST, len(LARGE)))
    writer.write(LARGE)

    async def is_paused() -> bool:
        return any(each.flow.write_paused for each in connections)

    await until(is_paused)
    assert max(each.transport.get_write_buffer_size() for each in connections) <= 2 * BUFFER_BYTES
    assert (await reader.read()).endswith(LARGE)
    writer.close()


async def test_a_listener_that_stops_ends_its_connections(
    server: Server, listener: HttpListener
) -> None:
    idle, writer = await asyncio.open_connection(*server.address)
    writer.write(GET + b"\r\n")
    assert (await idle.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    late = asyncio.create_task(server.ask(b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n"))
    await server.begun.wait()
    await listener.stop(0)
    assert (await idle.read(), await late) == (b"", b"")
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await server.ask(NEXT)


async def test_a_listener_with_tls_demands_certificates_and_shows_renewed_ones(
    tmp_path: Path,
) -> None:
    pki = Pki(tmp_path)
    tls = TlsFiles(*pki.issue("127.0.0.1"), pki.ca)
    secured = bind(WHERE, Server(), tls, 100, Metrics("test"))
    await secured.start()
    trust = ssl.create_default_context(cafile=pki.ca)
    for scheme in ("http", "https"):
        async with httpx.AsyncClient(verify=trust) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"{scheme}://{secured.address}/")
    trust.load_cert_chain(*pki.issue("client.example", file="client"))
    async with httpx.AsyncClient(verify=trust) as client:
        assert (await client.get(f"https://{secured.address}/")).status_code == 200
    await asyncio.to_thread(
        check_renewal, secured.address, trust, lambda: pki.issue("127.0.0.1", "node-a.example")
    )
    await secured.stop(0)


async def test_a_request_to_change_the_protocol_is_answered_and_ends_the_connection(
    server: Server,
) -> None:
    answer = await server.ask(GET + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + NEXT)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
