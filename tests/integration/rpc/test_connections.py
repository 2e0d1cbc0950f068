"""Connections that stall before a call, and one that the node closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from store.rpc import listeners
from store.rpc.listeners import bind
from store.serving.addresses import ListenerAddress
from store.serving.connections import hang_up
from store.serving.tls import TlsFiles
from tests.support.polling import PATIENCE_S, PAUSE_S
from tests.support.secured import Pki

CLIENT_HELLO = bytes.fromhex("16030102000100")
"""How a handshake of TLS begins."""

CONNECTIONS = 5
HOUR_MS = 3_600_000


async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte now and then until the node closes the connection."""
    ended = asyncio.ensure_future(reader.read())
    while not (await asyncio.wait({ended}, timeout=PAUSE_S))[0]:
        writer.write(b"\0")
    with suppress(ConnectionError):
        await ended


@asynccontextmanager
async def stalled(files: Path, connections: int) -> AsyncIterator[set[asyncio.Task[None]]]:
    """Open connections to a listener that is full with `CONNECTIONS`; yield a task for each end."""
    where = ListenerAddress("--listen", "127.0.0.1", 0)
    tls = TlsFiles(*Pki(files).issue("127.0.0.1"))
    listener = bind(where, [], tls, connections=CONNECTIONS)
    await listener.start()
    host, _, port = listener.address.rpartition(":")
    try:
        made = [await asyncio.open_connection(host, int(port)) for _ in range(connections)]
        for number, (_, writer) in enumerate(made):
            writer.write(CLIENT_HELLO[: number % 2 * len(CLIENT_HELLO)])
        ends = {asyncio.create_task(until_closed(*each)) for each in made}
        async with asyncio.timeout(PATIENCE_S):
            yield ends
        for _, writer in made:
            writer.close()
        await asyncio.gather(*ends)
    finally:
        await listener.stop(0)


async def test_stalled_handshakes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKE_TIMEOUT_MS", 500)
    async with stalled(tmp_path, CONNECTIONS) as ends:
        await asyncio.gather(*ends)


async def test_connections_that_are_too_many_are_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKE_TIMEOUT_MS", HOUR_MS)
    async with stalled(tmp_path, 2 * CONNECTIONS) as ends:
        left = set(ends)
        while len(left) > CONNECTIONS:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        assert len(left) == CONNECTIONS


OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_the_connection_that_is_named_is_closed(host: str) -> None:
    callers: list[str] = []
    ended = asyncio.Event()

    async def endless(_request: bytes, context: Any) -> None:  # noqa: ANN401 - of grpc.aio
        callers.append(context.peer())
        await context.write(b"begun")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(endless)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test", {"Endless": handler}),)
    )
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    async with (
        grpc.aio.insecure_channel(f"{host}:{port}", OWN_CONNECTION) as first,
        grpc.aio.insecure_channel(f"{host}:{port}", OWN_CONNECTION) as second,
    ):
        calls = []
        for channel in (first, second):
            calls.append(channel.unary_stream("/test/Endless", None, None)(b""))
            assert await calls[-1].read() == b"begun"
        assert hang_up([callers[0], "ipv4:127.0.0.1:1", "unix:"]) == 1
        assert await calls[0].code() is grpc.StatusCode.UNAVAILABLE
        await ended.wait()
        assert not calls[1].done()
        # Both ends are closed beside what tells of it.
        async with asyncio.timeout(PATIENCE_S):
            while hang_up([callers[0]]):  # noqa: ASYNC110 - tells nobody
                await asyncio.sleep(PAUSE_S)
    await server.stop(0)
