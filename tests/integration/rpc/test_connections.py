"""Connections that stall before a call, and one that the node closes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from store.rpc import listeners
from store.rpc.listeners import bind
from store.serving.addresses import ListenerAddress
from store.serving.sockets import hang_up
from store.serving.tls import TlsFiles
from tests.support.credentials import Pki
from tests.support.polling import PATIENCE_S, PAUSE_S

CLIENT_HELLO = bytes.fromhex("16030102000100")
"""How a handshake of TLS begins."""


async def test_stalled_handshakes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKE_TIMEOUT_MS", 500)
    tls = TlsFiles(*Pki(tmp_path).issue("127.0.0.1"))
    listener = bind(ListenerAddress("--listen", "127.0.0.1", 0), {}, tls, connections=9)
    await listener.start()
    host, _, port = listener.address.rpartition(":")
    async with asyncio.timeout(PATIENCE_S):
        for sent in (b"", CLIENT_HELLO):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
    await listener.stop(0)


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
