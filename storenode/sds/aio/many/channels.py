"""Many channels of one process: one connection to each node, few threads, few open files.

async with Channels.open("127.0.0.1:7420") as channels:
kitchen = await channels.join("kitchen", "alice", state="kitchen.db")
garden = await channels.join("garden", "alice", state="garden.db")
await kitchen.send(b"the kettle is on")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Self, Unpack

from storenode.sds.aio.channel import Channel, Place, transports_of
from storenode.sds.aio.join_options import Joining, JoinOptions
from storenode.sds.aio.many.files import StateFiles, StateThread
from storenode.sds.aio.many.limits import DEFAULT_OPEN_STATES, MAX_LEAVING_AT_ONCE
from storenode.sds.aio.many.shared_node import SharedNode
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.participant import Participant, participating
from storenode.sds.aio.transport import Transport
from storenode.sds.config import DEFAULT_CHANNEL_ID


class Channels:
    """Channels that share connections, threads and files; made by `open`, used in its event loop.

    Each is a `Channel` as any other.
    """

    def __init__(self, transports: Sequence[Transport], files: StateFiles) -> None:
        self._transports = transports
        self._files = files
        self._joined: dict[Channel, tuple[AbstractAsyncContextManager[Participant], StateThread]]
        self._joined = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls, places: Place | Sequence[Place], *, open_states: int = DEFAULT_OPEN_STATES
    ) -> AsyncIterator[Self]:
        """Have channels for the length of an ``async with`` block, which leaves all of them.

        - ``places``: as in `Channel.join`. Transports other than nodes are used as they are.
        - ``open_states``: state files that are open at one time, each with two descriptors. A
          file is locked while it is open only: a process that opens it meanwhile takes the state,
          and here the channel ends with `StateTaken` before it sends anything.

        Raises:
            ValueError: an address or a number is none that can be used.
        """
        given = transports_of(places)
        files = StateFiles(open_states)
        nodes: list[SharedNode] = []
        try:
            transports: list[Transport] = []
            for each in given:
                if isinstance(each, StoreNode):
                    nodes.append(SharedNode(each))
                    transports.append(nodes[-1])
                else:
                    transports.append(each)
            made = cls(transports, files)
            try:
                yield made
            finally:
                await made._leave_all()
        finally:
            for node in nodes:
                await node.close()
            files.close()

    def __len__(self) -> int:
        """Count the channels."""
        return len(self._joined)

    def __iter__(self) -> Iterator[Channel]:
        """Iterate over the channels in the order of joining."""
        return iter(tuple(self._joined))

    async def join(
        self,
        channel_id: str = DEFAULT_CHANNEL_ID,
        sender_id: str = "",
        **options: Unpack[JoinOptions],
    ) -> Channel:
        """Take part in a channel until it is left; arguments and errors as `Channel.join`."""
        joining = Joining.of(channel_id, sender_id, options)
        thread = self._files.thread(joining.state)
        taking_part = participating(joining, thread, self._transports)
        channel = Channel(await taking_part.__aenter__())
        self._joined[channel] = taking_part, thread
        return channel

    async def leave(self, channel: Channel) -> None:
        """Leave a channel, waiting up to 10 seconds for what is not published yet.

        Raises:
            KeyError: it is none of these, or was left before.
        """
        taking_part, thread = self._joined.pop(channel)
        try:
            await taking_part.__aexit__(None, None, None)
        finally:
            self._files.forget(thread)

    async def _leave_all(self) -> None:
        places = asyncio.Semaphore(MAX_LEAVING_AT_ONCE)

        async def leave(channel: Channel) -> None:
            async with places:
                await self.leave(channel)

        # All are left, also where one of them fails.
        ended = await asyncio.gather(*map(leave, self), return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
