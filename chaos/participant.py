"""An SDS participant of a run: its channel, its recording links, and its log."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from chaos.checker.logs import Entry, Log
from chaos.link import LinkState, RecordingTransport, Traffic
from chaos.tasks import Tasks
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Events
from storenode.sds.aio.status import Status
from storenode.sds.aio.transport import Transport
from storenode.sds.config import ChannelConfig
from storenode.sds.events import ChannelEvent, Lost, Message, Missing

_LOG_PAGE: Final = 1_000


class Participant:
    """A participant, which may leave and join again on the same state.

    Attributes:
        link: the losses and the record of its links.
        status: its status when `look` was called last.
        length: messages that it received or sent since it joined, those of its log included.
        sent: digests of the contents that it sent, by message ID.
        missed: IDs that it found missing so far.
        lost: IDs that it reported as lost.
        on_event: called with each event of its channel.
    """

    def __init__(
        self, config: ChannelConfig, nodes: Sequence[Transport], state: Path, traffic: Traffic
    ) -> None:
        self.name = config.sender_id
        self.channel_id = config.channel_id
        self.link = LinkState(self.name)
        self.status = Status()
        self.length = 0
        self.sent: dict[str, str] = {}
        self.missed: set[str] = set()
        self.lost: set[str] = set()
        self.on_event: Callable[[ChannelEvent], None] | None = None
        self._config = config
        self._nodes = [RecordingTransport(node, self.link, traffic) for node in nodes]
        self._state = state
        self._stack: AsyncExitStack | None = None
        self._channel: Channel | None = None
        # A send that has begun ends before the channel is left.
        self._turn = asyncio.Lock()

    @property
    def has_joined(self) -> bool:
        """Return True while it is in its channel."""
        return self._channel is not None

    async def join(self, tasks: Tasks) -> None:
        """Join the channel, with the state of the last time if there is one."""
        stack = AsyncExitStack()
        channel = await stack.enter_async_context(
            Channel.join(
                self._nodes, self.channel_id, self.name, state=self._state, config=self._config
            )
        )
        self._stack, self._channel = stack, channel
        tasks.start(self._count(channel))
        tasks.start(self._watch(channel.events()))

    async def leave(self) -> None:
        """Leave the channel; pending messages are published first, if a node can be reached."""
        async with self._turn:
            stack, self._stack, self._channel = self._stack, None, None
            if stack is not None:
                await stack.aclose()

    async def send(self, content: bytes) -> str:
        """Send a message and return its ID; nothing happens, and the ID is empty, while away.

        Raises:
            ChannelFullError: Too many messages are unacknowledged.
        """
        async with self._turn:
            if self._channel is None:
                return ""
            sent_id = await self._channel.send(content)
            self.sent[sent_id] = digest_of(content)
            return sent_id

    def look(self) -> Status:
        """Return the status now; an empty one while away."""
        self.status = self._channel.status if self._channel else Status()
        return self.status

    def count_awaited(self, message_ids: Collection[str]) -> int:
        """Return how many messages of others have not arrived."""
        return len(set(message_ids) - self.link.arrivals.keys())

    async def read_log(self) -> Log:
        """Read the whole log."""
        entries = [
            Entry(each.lamport, each.message_id, each.sender_id, digest_of(each.content))
            async for each in self._messages()
        ]
        return Log(self.name, self.channel_id, dict(self.sent), entries[::-1], frozenset(self.lost))

    async def _messages(self) -> AsyncIterator[Message]:
        """Yield the log, the newest message first; nothing while away."""
        page = await self._channel.log(_LOG_PAGE) if self._channel else []
        while page and self._channel:
            for message in reversed(page):
                yield message
            page = await self._channel.log(_LOG_PAGE, before=page[0].key)

    async def _count(self, channel: Channel) -> None:
        self.length = 0
        async for _ in channel.messages():
            self.length += 1

    async def _watch(self, events: Events[ChannelEvent]) -> None:
        async for event in events:
            if self.on_event is not None:
                self.on_event(event)
            if isinstance(event, Missing):
                self.missed.update(each.message_id for each in event.messages)
            elif isinstance(event, Lost):
                self.lost.update(event.message_ids)


def digest_of(content: bytes) -> str:
    """Return the digest by which the contents of logs are compared."""
    return hashlib.sha256(content).hexdigest()
