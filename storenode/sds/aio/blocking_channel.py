"""A channel for programs without an event loop: the same calls, each of which blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Self, Unpack

from storenode.connection.event_loop import (
    blocking,
    call_on_loop,
    close_blocking,
    iterate_blocking,
    iterating,
    on_loop,
    run_blocking,
)
from storenode.sds.aio.channel import AsyncChannel, Place
from storenode.sds.aio.join_options import JoinOptions
from storenode.sds.aio.status import Status
from storenode.sds.config import DEFAULT_CHANNEL_ID, ChannelConfig
from storenode.sds.events import ChannelEvent, Counts


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
        joining = AsyncChannel.join(places, channel_id, sender_id, **options)
        stack = AsyncExitStack()
        try:
            # An interruption that comes when it has joined must not leave it joined.
            yield cls(run_blocking(stack.enter_async_context, joining))
        finally:
            close_blocking(stack.aclose)

    @property
    def status(self) -> Status:
        """The status of the participant now."""
        return call_on_loop(lambda: self._asynchronous.status)

    @property
    def config(self) -> ChannelConfig:
        """The configuration: channel, sender and options."""
        return self._asynchronous.config

    @property
    def counts(self) -> Counts:
        """The counts of what happened since the participant was first made, for metrics."""
        return self._asynchronous.counts

    @property
    def calls(self) -> Counter[str]:
        """The calls to nodes since the channel was joined, by kind."""
        return call_on_loop(lambda: self._asynchronous.calls)

    def events(self) -> Iterator[ChannelEvent]:
        """Return an iterator over everything that happens from now on; read it, or drop it."""
        events = call_on_loop(self._asynchronous.events)
        return iterate_blocking(events, events.__aexit__)

    def __iter__(self) -> Iterator[ChannelEvent]:
        return self.events()

    send = blocking(AsyncChannel.send)
    send_all = blocking(AsyncChannel.send_all)
    send_ephemeral = blocking(AsyncChannel.send_ephemeral)
    wait_for = blocking(AsyncChannel.wait_for)
    log = blocking(AsyncChannel.log)
    at = blocking(AsyncChannel.at)
    messages = iterating(AsyncChannel.messages)
    changes = iterating(AsyncChannel.changes)
    missing = on_loop(AsyncChannel.missing, tuple)
    lacking = on_loop(AsyncChannel.lacking, dict)
    unacknowledged = on_loop(AsyncChannel.unacknowledged, frozenset)
    unpublished = on_loop(AsyncChannel.unpublished, frozenset)
