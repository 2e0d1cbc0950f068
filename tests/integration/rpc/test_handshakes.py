"""Connections that stall before a call, to a listener with TLS."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from store.rpc import listeners
from store.rpc.listeners import bind
from store.serving.addresses import ListenAddress
from store.serving.tls import TlsFiles
from tests.support.secured import Pki

CLIENT_HELLO = bytes.fromhex("16030102000100")
"""How a handshake of TLS begins."""

CONNECTIONS = 5


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Read until the node closes the connection."""
    with suppress(ConnectionError):
        while await reader.read(1_024):
            pass


async def test_a_stalled_handshake_ends_and_too_many_are_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKE_TIMEOUT_MS", 2_000)
    where = ListenAddress("--listen", "127.0.0.1", 0)
    tls = TlsFiles(*Pki(tmp_path).issue("127.0.0.1"))
    listener = bind(where, [], tls, connections=CONNECTIONS)
    await listener.start()
    host, _, port = listener.address.rpartition(":")
    try:
        made = [await asyncio.open_connection(host, int(port)) for _ in range(2 * CONNECTIONS)]
        for number, (_, writer) in enumerate(made):
            writer.write(CLIENT_HELLO[: number % 2 * len(CLIENT_HELLO)])
        ends = [asyncio.create_task(until_closed(reader)) for reader, _ in made]
        done, _ = await asyncio.wait(ends, timeout=1.0)
        assert len(done) == CONNECTIONS
        async with asyncio.timeout(30):
            await asyncio.gather(*ends)
        for _, writer in made:
            writer.close()
    finally:
        await listener.stop(0)
