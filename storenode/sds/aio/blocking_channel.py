"""A channel for programs without an event loop: the same calls, each of which blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from storenode.connection.event_loop import call_on_loop, iterate_blocking, like, run_blocking
from storenode.sds.aio.channel import AsyncChannel, Place
from storenode.sds.aio.events import ChannelEvent
from storenode.sds.aio.join_options import JoinOptions
from storenode.sds.aio.status import Status
from storenode.sds.config import DEFAULT_CHANNEL_ID, ChannelConfig

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _blocking(
    call: Callable[Concatenate[AsyncChannel, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Channel, _P], _T]:
    @like(call)
    def blocking(channel: Channel, /, *given: _P.args, **options: _P.kwargs) -> _T:
        return run_blocking(call, channel._asynchronous, *given, **options)

    return blocking


def _on_loop(
    call: Callable[Concatenate[AsyncChannel, _P], _T],
) -> Callable[Concatenate[Channel, _P], _T]:
    @like(call)
    def blocking(channel: Channel, /, *given: _P.args, **options: _P.kwargs) -> _T:
        return call_on_loop(call, channel._asynchronous, *given, **options)

    return blocking


def _iterating(
    call: Callable[Concatenate[AsyncChannel, _P], AsyncGenerator[_T, None]],
) -> Callable[Concatenate[Channel, _P], Iterator[_T]]:
    @like(call)
    def blocking(channel: Channel, /, *given: _P.args, **options: _P.kwargs) -> Iterator[_T]:
        items = call(channel._asynchronous, *given, **options)
        return iterate_blocking(items, items.aclose)

    return blocking


class Channel:
    """A participant of a channel whose calls block; made by `join`, used from any thread.

    Its calls are those of `AsyncChannel`, with the same names and arguments; what that one
    iterates over asynchronously is a common iterator here.

    Examples:
        ```python
        with Channel.join("127.0.0.1:7420", "kitchen", "alice", state="alice.db") as channel:
            channel.send(b"hello")
            for message in channel.messages():
                print(message.sender_id, message.content)
        ```
    """

    def __init__(self, channel: AsyncChannel) -> None:
        self._asynchronous = channel

    @classmethod
    @contextmanager
    def join(
        cls,
        places: Place | Sequence[Place],
        channel_id: str = DEFAULT_CHANNEL_ID,
        sender_id: str = "",
        **options: Unpack[JoinOptions],
    ) -> Iterator[Self]:
        """Take part in a channel for the length of a ``with`` block; see `AsyncChannel.join`."""
        joining, stack = (
            AsyncChannel.join(places, channel_id, sender_id, **options),
            AsyncExitStack(),
        )
        try:
            # An interruption that comes when it has joined must not leave it joined.
            yield cls(run_blocking(stack.enter_async_context, joining))
        finally:
            run_blocking(stack.aclose)

    @property
    def status(self) -> Status:
        """The status of the participant now."""
        return self._asynchronous.status

    @property
    def config(self) -> ChannelConfig:
        """The configuration: channel, sender and options."""
        return self._asynchronous.config

    @property
    def calls(self) -> Counter[str]:
        """The calls to nodes since the channel was joined, by kind."""
        return self._asynchronous.calls

    def events(self) -> Iterator[ChannelEvent]:
        """Return an iterator over everything that happens from now on; read it, or drop it."""
        events = call_on_loop(self._asynchronous.events)

        async def close() -> None:
            events.close()

        return iterate_blocking(events, close)

    def __iter__(self) -> Iterator[ChannelEvent]:
        return self.events()

    send = _blocking(AsyncChannel.send)
    send_all = _blocking(AsyncChannel.send_all)
    send_ephemeral = _blocking(AsyncChannel.send_ephemeral)
    wait_for = _blocking(AsyncChannel.wait_for)
    log = _blocking(AsyncChannel.log)
    at = _blocking(AsyncChannel.at)
    in_step = _blocking(AsyncChannel.in_step)
    nodes_by_completeness = _blocking(AsyncChannel.nodes_by_completeness)
    messages = _iterating(AsyncChannel.messages)
    changes = _iterating(AsyncChannel.changes)
    missing = _on_loop(AsyncChannel.missing)
    lacking = _on_loop(AsyncChannel.lacking)
    unacknowledged = _on_loop(AsyncChannel.unacknowledged)
    unpublished = _on_loop(AsyncChannel.unpublished)
