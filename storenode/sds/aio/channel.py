"""A channel for an application with an event loop, and channels that share connections."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import cycle
from types import NoneType
from typing import Final, Self, Unpack

from storenode.common.errors import ArgumentError
from storenode.connection.arguments import check_bytes, check_kind
from storenode.message.text import printable
from storenode.sds.aio.events import Events
from storenode.sds.aio.join_options import Joining, JoinOptions
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.state import StateThread
from storenode.sds.aio.status import Status
from storenode.sds.aio.transport import Transport
from storenode.sds.config import DEFAULT_CHANNEL_ID, ChannelConfig
from storenode.sds.events import ChannelEvent, Counts, Message, MissingMessage, Withdrawn
from storenode.sds.limits import (
    DEFAULT_OPEN_STATES,
    MAX_CLOCK,
    MAX_LEAVING_AT_ONCE,
    MAX_LOG_PAGE,
    MAX_THREADS,
    MAX_TRANSPORTS,
    WARN_AFTER_S,
)
from storenode.sds.log import Key

Place = str | Transport
"""HOST:PORT of a store node, or a transport."""

_BEGINNING: Key = (0, "")
_PAGE: Final = 64
"""Messages that are read of the whole log at once: each may have 150 KiB."""
_log = logging.getLogger("storenode")


class AsyncChannel:
    """A participant of a channel; made by `join`, and used only in the event loop of that call.

    Examples:
        ```python
        async with AsyncChannel.join("127.0.0.1:7420", "room", "alice", state="alice.db") as room:
            await room.send(b"hello")
            async for message in room.messages():
                print(message.sender_id, message.content)
        ```
    """

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._loop = asyncio.get_running_loop()

    @staticmethod
    @asynccontextmanager
    async def join(
        places: Place | Sequence[Place],
        channel_id: str = DEFAULT_CHANNEL_ID,
        sender_id: str = "",
        **options: Unpack[JoinOptions],
    ) -> AsyncIterator[AsyncChannel]:
        """Take part in a channel for the length of an ``async with`` block.

        - ``places``: store nodes, best first; the next one is used when one goes away. A
          `StoreNode` has a token and TLS.
        - ``channel_id``: a group without channels leaves it out.
        - ``sender_id``: must be given, and is unique in the channel.
        - ``options``: topics, state, configuration, encryption and others: `JoinOptions`.

        It returns at once, connected or not: `status` says how it is. Leaving waits up to 10
        seconds for what is not published yet.

        Raises:
            ArgumentError: an ID, an option or the configuration is none that can be used.
            ClientOptionError: an address, a token or the TLS options cannot be used.
            StateError: the state cannot be used: in use, of another version, or damaged.
        """
        async with Channels.open(places) as channels:
            yield await channels.join(channel_id, sender_id, **options)

    @property
    def status(self) -> Status:
        """The status of the participant now."""
        return self._participant.status

    @property
    def config(self) -> ChannelConfig:
        """The configuration: channel, sender and options."""
        return self._participant.core.config

    @property
    def counts(self) -> Counts:
        """The counts of what happened since the participant was first made, for metrics."""
        return self._participant.core.counts

    @property
    def calls(self) -> Counter[str]:
        """The calls to nodes since the channel was joined, by kind."""
        return self._participant.calls

    def missing(self) -> tuple[MissingMessage, ...]:
        """Return what is missing now, longest first."""
        return self._participant.core.missing()

    def lacking(self) -> dict[str, int]:
        """Return whose filters lack messages of this log, and how many, up to 64 of each."""
        return self._participant.core.gaps.behind()

    async def wait_for(
        self, condition: Callable[[Status], bool], timeout_s: float | None = None
    ) -> Status:
        """Wait until the status meets a condition, and return it.

        The log says why when it takes more than 5 seconds.

        Raises:
            TimeoutError: it did not within the time.
            NodeError: a node refuses for good: a wrong token, right, port or certificate.
            StateTakenError: another process took the state; the channel has ended.
        """
        self._check_loop()
        if not callable(condition):
            raise ArgumentError(f"condition is {condition!r}: give a function of the status.")
        warning = self._loop.call_later(WARN_AFTER_S, self._warn)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self.status):
                    self._participant.check()
                    await self._participant.hub.changed()
        finally:
            warning.cancel()
        return self.status

    def _warn(self) -> None:
        reason = self.status.trouble or "no node has answered yet"
        name, status = printable(self.config.channel_id), self.status
        _log.warning("channel %s still waits (%s): %s", name, status, printable(reason))

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise ArgumentError(
                "The channel belongs to the event loop that joined it: use it there, or a Channel."
            )

    async def send(self, content: bytes, message_id: str | None = None) -> str:
        """Send content and return the message's ID, when it is saved.

        From then on it is sure to be published, now or after a restart with the same state.

        Raises:
            ValueError: the content is empty or too large, or the ID is unfit or was used before.
            ChannelFullError: too many own messages are unacknowledged.
            StateTakenError: another process took the state.
        """
        self._check_loop()
        check_bytes("content", content, ".encode()")
        sent = self._participant.send(content, message_id)
        await self._participant.saver.saved()
        return sent

    async def send_all(self, contents: Sequence[bytes]) -> list[str]:
        """Send contents in this order; after a crash all of them were sent, or none.

        Raises as `send`, before any is sent; but those before one that is too large are sent.
        """
        self._check_loop()
        participant = self._participant
        check_kind("contents", contents, Sequence, "a list of bytes")
        if not all(contents):
            raise ArgumentError("a message needs content: an empty one would be a sync message")
        for content in contents:
            check_bytes("content", content, ".encode()")
        participant.core.check_room(len(contents))
        # Nothing else happens between them: one transaction has all.
        sent = [participant.send(content, None) for content in contents]
        await participant.saver.saved()
        return sent

    def unacknowledged(self) -> frozenset[str]:
        """Return the participant's own messages that are resent until they are acknowledged."""
        return frozenset(self._participant.core.outgoing.by_id)

    def unpublished(self) -> frozenset[str]:
        """Return the participant's own messages that no node stores yet."""
        return frozenset(self._participant.ledger.outbox)

    async def send_ephemeral(self, content: bytes) -> None:
        """Send content to those who are connected now, without storing or resending it.

        Raises:
            ValueError: the content is empty or too large.
            ClientClosedError: the channel was left.
        """
        self._check_loop()
        check_bytes("content", content, ".encode()")
        self._participant.send_ephemeral(content)

    def events(self) -> Events[ChannelEvent]:
        """Return a reader of everything that happens from now on.

        A reader that does not read holds the channel up after 10,000 events, or 64 MiB of them.
        """
        return Events(self._participant.hub, self._participant.ledger.commits)

    def __aiter__(self) -> AsyncIterator[ChannelEvent]:
        return self.events()

    async def messages(self, *, backlog: int | None = None) -> AsyncGenerator[Message, None]:
        """Yield the log in order, then each message as it is delivered, without gap.

        ``backlog``: begin with that many of the log's last messages (1,000 at most), None with all.
        A message whose ``entries_after`` is not 0 belongs further up. An ID comes twice only if
        the first was forged: see `changes`.
        """
        async with aclosing(self.changes(backlog=backlog)) as changes:
            async for change in changes:
                if isinstance(change, Message):
                    yield change

    async def changes(
        self, *, backlog: int | None = None
    ) -> AsyncGenerator[Message | Withdrawn, None]:
        """Yield as `messages` does, and which messages leave the log because they were forged.

        What is withdrawn may not have been shown.
        """
        check_kind("backlog", backlog, (int, NoneType), "a number, or None for the whole log")
        async with self.events() as events:
            commit = self._participant.ledger.commits
            await self._participant.saver.saved()
            if backlog is None:
                after = _BEGINNING
                while page := await self._page(commit, _PAGE, after=after):
                    for message in page:
                        yield message
                    after = page[-1].key
            elif backlog > 0:
                for message in await self._page(commit, min(backlog, MAX_LOG_PAGE)):
                    yield message
            async for event in events:
                if isinstance(event, Message | Withdrawn):
                    yield event

    async def log(
        self,
        limit: int = 100,
        *,
        before: Key | None = None,
        until: Events[ChannelEvent] | None = None,
    ) -> list[Message]:
        """Return the last messages of the log in order, 1,000 at most; or those before a place.

        The place of a message is its ``key``. With ``until``, those that came before what these
        events tell.
        """
        self._check_loop()
        check_kind("limit", limit, int, "a number of messages")
        if limit < 0:
            raise ArgumentError(f"limit={limit}: ask for no or more messages.")
        if before is not None:
            _check_key(before)
        await self._participant.saver.saved()
        commit = self._participant.ledger.commits if until is None else until.after_commit
        return await self._page(commit, min(limit, MAX_LOG_PAGE), before=before)

    async def at(self, key: Key) -> Message | None:
        """Return the message at a place of the log; None if it is no longer held."""
        _check_key(key)
        lamport, message_id = key
        found = await self.log(1, before=(lamport, message_id + "\0"))
        return found[0] if found and found[0].key == key else None

    async def _page(
        self, commit: int, limit: int, *, after: Key | None = None, before: Key | None = None
    ) -> list[Message]:
        saver = self._participant.saver
        rows = await saver.in_thread(
            saver.state.page, limit, after=after, before=before, committed=commit
        )
        messages: list[Message] = []
        for row in rows:
            messages.append(self._participant.message_of(row))
            if len(messages) % _PAGE == 0:
                await asyncio.sleep(0)  # verifying signatures takes long
        return messages


class Channels:
    """Channels that share connections, threads and files; made by `open`, used in its event loop.

    Examples:
        ```python
        async with Channels.open("127.0.0.1:7420") as channels:
            kitchen = await channels.join("kitchen", "alice", state="kitchen.db")
            garden = await channels.join("garden", "alice", state="garden.db")
            await kitchen.send(b"the kettle is on")
            print(len(channels), await garden.log())
        ```
    """

    def __init__(self, transports: Sequence[Transport], threads: Sequence[StateThread]) -> None:
        self._transports = transports
        self._threads = cycle(threads)
        self._joined: dict[AsyncChannel, None] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls, places: Place | Sequence[Place], *, open_states: int = DEFAULT_OPEN_STATES
    ) -> AsyncIterator[Self]:
        """Open channels for the length of an ``async with`` block, which leaves all of them.

        - ``places``: as in `AsyncChannel.join`.
        - ``open_states``: state files that are open at the same time, each with two descriptors. A
          file is locked while it is open only: a process that opens it meanwhile takes the state,
          and here the channel ends with `StateTakenError` before it sends anything.

        Raises:
            ValueError: an address or a number is none that can be used.
        """
        check_kind("open_states", open_states, int, "a number of files")
        if open_states < 1:
            raise ArgumentError("at least one state must be open at a time")
        count = min(MAX_THREADS, open_states)
        threads = [StateThread(open_states // count) for _ in range(count)]
        channels = cls(_transports(places), threads)
        try:
            yield channels
        finally:
            try:
                await channels._leave_all()
            finally:
                for thread in threads:
                    thread.executor.shutdown(wait=False)

    def __len__(self) -> int:
        """Count the channels."""
        return len(self._joined)

    def __iter__(self) -> Iterator[AsyncChannel]:
        """Iterate over the channels in the order of joining."""
        return iter(tuple(self._joined))

    async def join(
        self,
        channel_id: str = DEFAULT_CHANNEL_ID,
        sender_id: str = "",
        **options: Unpack[JoinOptions],
    ) -> AsyncChannel:
        """Take part in a channel until it is left; arguments and errors as `AsyncChannel.join`."""
        joining = Joining.of(channel_id, sender_id, options)
        thread = next(self._threads)
        if not joining.state.in_memory:
            joining.state.thread = thread
        joined = await Participant.join(joining, thread.executor, self._transports)
        channel = AsyncChannel(joined)
        self._joined[channel] = None
        return channel

    async def leave(self, channel: AsyncChannel) -> None:
        """Leave a channel, waiting up to 10 seconds for what is not published yet.

        Raises:
            KeyError: it is none of these, or was left before.
        """
        del self._joined[channel]
        await channel._participant.leave()

    async def _leave_all(self) -> None:
        """Leave all channels, also where one of them fails, and at once if it is cancelled."""
        places = asyncio.Semaphore(MAX_LEAVING_AT_ONCE)

        async def leave(channel: AsyncChannel) -> None:
            async with places:
                await self.leave(channel)

        channels = list(self)
        leaving = [asyncio.create_task(leave(channel)) for channel in channels]
        if not leaving:
            return
        try:
            await asyncio.wait(leaving)
        except asyncio.CancelledError:
            for channel in channels:
                channel._participant.hurry()
            await asyncio.wait(leaving)
            raise
        for task in leaving:
            task.result()


def _check_key(key: object) -> None:
    match key:
        case (int() as lamport, str()) if 0 <= lamport <= MAX_CLOCK:
            return
    raise ArgumentError(f"{key!r} is no place in the log: give the key of a message.")


def _transports(places: Place | Sequence[Place]) -> list[Transport]:
    given = [places] if isinstance(places, str) or not isinstance(places, Sequence) else places
    if not 0 < len(given) <= MAX_TRANSPORTS:
        raise ArgumentError(f"{len(given)} nodes are named: give 1 to {MAX_TRANSPORTS}.")
    for each in given:
        if not (isinstance(each, str) or hasattr(each, "open")):
            raise ArgumentError(f"{each!r} is no node: give HOST:PORT, or a StoreNode.")
    return [StoreNode(each) if isinstance(each, str) else each for each in given]


Channel = AsyncChannel
"""The same class, under the name that it has among the other asynchronous ones."""
