"""A relay between a node and its server, so that the way between them can break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from chaos.ports import ReservedPort

_CHUNK_BYTES = 65_536


class Proxy:
    """Relays TCP connections to a port of 127.0.0.1."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answer_to_swallow: bytes | None = None
        self._port = ReservedPort()
        self.port = self._port.number
        self.swallowed = asyncio.Event()

    async def open(self) -> None:
        """Accept connections, always on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Break every connection and accept no more."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection on the node's side; the server is not reported."""
        for client in list(self._clients):
            client.transport.abort()

    def swallow_answer_to(self, request: bytes) -> None:
        """Let the next request that contains these bytes through, but cut instead of its answer."""
        self._answer_to_swallow = request
        self.swallowed.clear()

    async def close(self) -> None:
        """Break everything."""
        self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(client)
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._target_port)
            with contextlib.closing(server):
                await self._relay(reader, client, answers, server)
        finally:
            client.close()
            self._clients.discard(client)
            self._tasks.discard(task)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        marked = asyncio.Event()

        async def there() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(_CHUNK_BYTES):
                    if self._answer_to_swallow is not None and self._answer_to_swallow in data:
                        self._answer_to_swallow = None
                        marked.set()
                    server.write(data)
                    await server.drain()
                if not client.transport.is_closing():
                    server.close()

        request = asyncio.create_task(there())
        try:
            # Continues when the client is cut: the server then finishes what it was asked.
            while data := await answers.read(_CHUNK_BYTES):
                if marked.is_set():
                    client.transport.abort()
                    self.swallowed.set()
                elif not client.transport.is_closing():
                    client.write(data)
                    with contextlib.suppress(OSError):
                        await client.drain()
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """Open a proxy; yield it, and the URL of the same database through it."""
    parts = urlsplit(url)
    assert parts.port is not None
    proxy = Proxy(parts.port)
    await proxy.open()
    try:
        yield proxy, url.replace(f":{parts.port}/", f":{proxy.port}/")
    finally:
        await proxy.close()
