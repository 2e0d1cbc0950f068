"""The client for programs without an event loop: the same calls, each of which blocks.

The calls run on one event loop in a background thread, which all clients of a process share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar

from storenode.client.asynchronous import DEFAULT_RETRY, DEFAULT_TIMEOUT_S, AsyncAdmin, AsyncClient
from storenode.client.message import Message, Page, Published
from storenode.client.publisher import AsyncPublisher
from storenode.client.retry import Retry
from storenode.client.streams import AsyncMessageStream
from storenode.connection.channel import TlsIdentity
from storenode.connection.event_loop import blocking, call_on_loop, iterating, on_loop, run_blocking
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage


class MessageStream(Iterator[Message]):
    """Messages of a scan or a follower, one by one, or in pages by `pages`.

    An iterator and context manager; leaving the block ends the call.
    """

    def __init__(self, stream: AsyncMessageStream) -> None:
        self._asynchronous = stream

    @property
    def cursor(self) -> bytes:
        """The cursor after all messages whose processing is over."""
        return self._asynchronous.cursor

    @property
    def live(self) -> bool:
        """True if a follower has caught up with what the node holds."""
        return self._asynchronous.live

    @property
    def coverage(self) -> AnswerCoverage | None:
        """The completeness of a scan that asked for it, when it has ended."""
        return self._asynchronous.coverage

    def __next__(self) -> Message:
        waiting = self._asynchronous.waiting
        message = waiting.popleft() if waiting else run_blocking(anext, self._asynchronous, None)
        if message is None:
            raise StopIteration
        return message

    def pages(self) -> Iterator[Page]:
        """Yield pages; `cursor` stands after a page when the next one is asked for."""
        while (page := run_blocking(self._asynchronous.next_page)) is not None:
            yield page

    ack = blocking(AsyncMessageStream.ack)
    close = blocking(AsyncMessageStream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:  # noqa: ANN401 - what the stream takes
        run_blocking(self._asynchronous.__aexit__, *raised)


class Publisher:
    """Publishes messages in batches; made by `Client.publisher`, used as a context manager."""

    def __init__(self, publisher: AsyncPublisher) -> None:
        self._asynchronous = publisher

    @property
    def acknowledged(self) -> int:
        """Messages that the node has answered for, rejected ones included."""
        return self._asynchronous.acknowledged

    def send(self, message: Message) -> Future[Published]:
        """Queue a message; blocks while too many are unacknowledged.

        The future need not be waited for. Raises as `AsyncPublisher.send` does.
        """
        return run_blocking(self._send, message)

    flush = blocking(AsyncPublisher.flush)

    def __enter__(self) -> Self:
        run_blocking(self._asynchronous.__aenter__)
        return self

    def __exit__(self, *raised: Any) -> None:  # noqa: ANN401 - what the publisher takes
        run_blocking(self._asynchronous.__aexit__, *raised)

    async def _send(self, message: Message) -> Future[Published]:
        answer = await self._asynchronous.send(message)
        result: Future[Published] = Future()
        # As `asyncio.run_coroutine_threadsafe`: the program may have cancelled its future.
        asyncio.futures._chain_future(answer, result)  # type: ignore[attr-defined]
        return result


_A = TypeVar("_A", AsyncClient, AsyncAdmin)


class _Blocking(Generic[_A]):
    """A client whose calls an asynchronous one makes; leaving the block closes it."""

    _asynchronous: _A

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = blocking(AsyncClient.aclose)

    def __repr__(self) -> str:
        return repr(self._asynchronous).removeprefix("Async")


class Client(_Blocking[AsyncClient]):
    """A blocking client of one store node, or of several that hold the same messages.

    Its calls are those of `AsyncClient`, with the same names and arguments; each blocks until its
    result is there, and what that one iterates over asynchronously is a common iterator here.
    Clients may be used from any thread.

    Examples:
        ```python
        with Client("127.0.0.1:7420") as client:
            client.publish(Message(b"hello", "/my-app/1/chat/proto"))
            for message in client.scan("/my-app/1/chat/proto"):
                print(message.time, message.payload)
        ```
    """

    def __init__(
        self,
        nodes: str | Sequence[str],
        *,
        token: str | None = None,
        tls: TlsIdentity | None = None,
        retry: Retry = DEFAULT_RETRY,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._asynchronous = call_on_loop(
            AsyncClient, nodes, token=token, tls=tls, retry=retry, timeout_s=timeout_s
        )

    publish = blocking(AsyncClient.publish)
    publish_many = blocking(AsyncClient.publish_many)
    publisher = on_loop(AsyncClient.publisher, Publisher)
    get = blocking(AsyncClient.get)
    query = blocking(AsyncClient.query)
    scan = on_loop(AsyncClient.scan, MessageStream)
    scan_hashes = iterating(AsyncClient.scan_hashes)
    coverage = iterating(AsyncClient.coverage)
    follow = on_loop(AsyncClient.follow, MessageStream)
    get_sds = blocking(AsyncClient.get_sds)
    causal_history = blocking(AsyncClient.causal_history)


class Admin(_Blocking[AsyncAdmin]):
    """A blocking client of a node's admin listener; its calls are those of `AsyncAdmin`.

    Examples:
        ```python
        with Admin("127.0.0.1:7421") as admin:
            print(admin.status().messages)
        ```
    """

    def __init__(
        self,
        node: str,
        *,
        token: str | None = None,
        tls: TlsIdentity | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._asynchronous = call_on_loop(
            AsyncAdmin, node, token=token, tls=tls, timeout_s=timeout_s
        )

    status = blocking(AsyncAdmin.status)
    synchronize = blocking(AsyncAdmin.synchronize)
    fetch_messages = blocking(AsyncAdmin.fetch_messages)
