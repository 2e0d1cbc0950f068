"""Connections that stall before a call, to a listener with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from store.rpc import listeners
from store.rpc.listeners import bind
from store.serving.addresses import ListenerAddress
from store.serving.tls import TlsFiles
from tests.support.secured import Pki

CLIENT_HELLO = bytes.fromhex("16030102000100")
"""How a handshake of TLS begins."""

CONNECTIONS = 5
HOUR_MS = 3_600_000
PATIENCE_S = 90.0


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Read until the node closes the connection."""
    with suppress(ConnectionError):
        while await reader.read(1_024):
            pass


@asynccontextmanager
async def stalled(files: Path, connections: int) -> AsyncIterator[set[asyncio.Task[None]]]:
    """So many connections to a listener that is full with `CONNECTIONS`, and when each ends."""
    where = ListenerAddress("--listen", "127.0.0.1", 0)
    tls = TlsFiles(*Pki(files).issue("127.0.0.1"))
    listener = bind(where, [], tls, connections=CONNECTIONS)
    await listener.start()
    host, _, port = listener.address.rpartition(":")
    try:
        made = [await asyncio.open_connection(host, int(port)) for _ in range(connections)]
        for number, (_, writer) in enumerate(made):
            writer.write(CLIENT_HELLO[: number % 2 * len(CLIENT_HELLO)])
        ends = {asyncio.create_task(until_closed(reader)) for reader, _ in made}
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
