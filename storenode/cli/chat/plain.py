"""The chat without a terminal: lines in, lines out, and remarks on standard error."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from storenode.cli.chat.limits import CATCH_UP_TIMEOUT_S, LEAVE_TIMEOUT_S
from storenode.cli.chat.transcript import Line, Transcript
from storenode.cli.client.output import Output, note
from storenode.cli.client.source import lines
from storenode.cli.client.text import safe
from storenode.cli.errors import FAILED, UNREACHABLE, CliError
from storenode.sds.aio.events import Connected, Disconnected
from storenode.sds.channel import ChannelFullError

if TYPE_CHECKING:
    from storenode.sds.aio.channel import Channel
    from storenode.sds.aio.events import ChannelEvent, Events

_STANDARD_INPUT = 0


class PlainChat:
    """Prints what comes as it comes; what belongs further up says so."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._transcript = Transcript()
        self._out = Output(as_json=False)

    async def run(self) -> None:
        """Say every line of the input; at its end, wait for what is on its way.

        Raises:
            CliError: what was said reached no node in time.
        """
        async with self._channel.events() as events:
            printer = asyncio.create_task(self._print(events))
            try:
                await self._catch_up()
                async for some in lines(_STANDARD_INPUT):
                    for line in some:
                        await self._say(line)
                await self._settle()
                events.close()
                await printer
            finally:
                printer.cancel()
                await asyncio.wait({printer})

    async def _catch_up(self) -> None:
        """What is said now answers what was said before, if that can be had."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                await self._channel.wait_for(lambda status: status.synced)

    async def _say(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            await self._channel.send(line)
        except (ChannelFullError, ValueError) as error:
            raise CliError(FAILED, f"A line was not sent: {safe(str(error))}.") from error

    async def _print(self, events: Events) -> None:
        held = await self._channel.log(1_000)
        # Some of it may have come while it was read: from where is said before it, and once.
        node = self._channel.status.node
        told = None if node is None else Connected(node)
        if told is not None:
            self._tell(told)
        for message in held:
            self._show(self._transcript.take(message))
        async for event in events:
            if event != told:
                self._tell(event)
            if isinstance(event, Connected | Disconnected):
                told = None

    def _tell(self, event: ChannelEvent) -> None:
        line = self._transcript.take(event)
        if line is not None and not line.remark:
            later = getattr(event, "entries_after", 0)
            self._show(line, f" ({later:,} above)" if later else "")
        elif line is not None:
            note(line.text)

    def _show(self, line: Line | None, more: str = "") -> None:
        if line is not None:
            self._out.line(line.text + more)
            self._out.flush()

    async def _settle(self) -> None:
        """Have everything published and everything of others printed."""
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._channel.wait_for(
                    lambda status: status.synced and not status.unpublished
                )
        except TimeoutError:
            status = self._channel.status
            raise CliError(
                UNREACHABLE if status.node is None else FAILED,
                f"The chat ends as it is ({status}): {safe(status.trouble) or 'try again'}",
            ) from None
        # What is saved by now was handed out.
        await self._channel.log(1)
