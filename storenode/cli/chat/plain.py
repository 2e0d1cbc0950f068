"""The chat without a terminal: lines in, lines out, and remarks on standard error."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from storenode.cli.chat.commands import CommandAnswer, Commands
from storenode.cli.chat.limits import (
    CATCH_UP_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    LEAVE_TIMEOUT_S,
    MAX_SHOWN_LINES,
)
from storenode.cli.chat.transcript import Line, LineKind, Transcript
from storenode.cli.chat.words import now_ms
from storenode.cli.client.output import Output
from storenode.cli.client.source import lines
from storenode.cli.client.text import counted, note, safe
from storenode.cli.errors import FAILED, UNREACHABLE, CliError
from storenode.sds.aio.events import Message
from storenode.sds.channel import ChannelFullError

if TYPE_CHECKING:
    from storenode.sds.aio.channel import Channel
    from storenode.sds.aio.events import ChannelEvent, Events
    from storenode.sds.aio.status import Status

_STANDARD_INPUT = 0


class PlainChat:
    """Prints what comes as it comes; what belongs further up says so.

    ``keeps``: the channel has a state, from which the next run goes on.
    """

    def __init__(self, channel: Channel, name: str, *, keeps: bool) -> None:
        self._channel = channel
        self._keeps = keeps
        self._transcript = Transcript(name, now_ms())
        self._commands = Commands(channel, self._transcript)
        self._out = Output()

    async def run(self) -> None:
        """Send every line of the input; at its end, wait until all is published.

        Raises:
            CliError: a line reached no node in time.
        """
        async with self._channel.events() as events:
            printer = asyncio.create_task(self._print(events))
            try:
                await self._connect()
                await self._catch_up()
                self._show(self._transcript.caught_up())
                await self._say_all()
                await self._settle()
                events.close()
                await printer
            finally:
                printer.cancel()
                await asyncio.wait({printer})

    async def _connect(self) -> None:
        """Wait a little for a node; print at once why none is reachable.

        Raises:
            CliError: none is, and lines would be lost.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                status = await self._channel.wait_for(
                    lambda status: status.node is not None or bool(status.trouble)
                )
                if status.node is None:
                    note(f"{safe(status.trouble)} Trying for {CONNECT_TIMEOUT_S:.0f} s.")
                    await self._channel.wait_for(lambda status: status.node is not None)
        except TimeoutError:
            if not self._keeps:
                raise _offline("Nothing was sent", self._channel.status) from None

    async def _catch_up(self) -> None:
        """Wait a little for the history, so that the next lines name it as their cause."""
        if self._channel.status.node is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_TIMEOUT_S):
                await self._channel.wait_for(lambda status: status.synced)

    async def _say_all(self) -> None:
        """Send the lines of a pipe as they are; at a terminal, run those that are commands."""
        interactive = sys.stdin.isatty()
        async for some in lines(_STANDARD_INPUT):
            for line in some:
                said = self._command(line) if interactive else line
                if said is None:
                    return
                await self._say(said)

    def _command(self, line: bytes) -> bytes | None:
        """Return what a line sends, empty for a command; None when the user leaves."""
        said = self._commands.said(line.decode("utf-8", "surrogateescape"))
        if not isinstance(said, CommandAnswer):
            return said.encode("utf-8", "surrogateescape")
        for row in said.rows:
            note(row)
        return None if said.leave else b""

    async def _say(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            await self._channel.send(line)
        except (ChannelFullError, ValueError) as error:
            raise CliError(FAILED, f"A line was not sent: {safe(str(error))}.") from error

    async def _print(self, events: Events[ChannelEvent]) -> None:
        for message in await self._channel.log(MAX_SHOWN_LINES):
            self._show(self._transcript.stored(message))
        async for event in events:
            self._show_event(event)

    def _show_event(self, event: ChannelEvent) -> None:
        later = event.entries_after if isinstance(event, Message) else 0
        more = f" ({later:,} above)" if later else ""
        self._show(self._transcript.take(event, live=self._channel.status.live), more)

    def _show(self, said: list[Line], more: str = "") -> None:
        for line in said:
            *rows, last = line.plain()
            if line.kind is LineKind.MESSAGE:
                for row in (*rows, last + more):
                    self._out.shown(row)
                self._out.flush()
            else:
                for row in (*rows, last):
                    note(row)

    async def _settle(self) -> None:
        """Wait until everything is published, and everything of others is printed."""
        if self._channel.status.node is None and self._keeps:
            raise not_sent(self._channel.status, keeps=True)
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._channel.wait_for(
                    lambda status: status.synced and not status.unpublished
                )
        except TimeoutError:
            status = self._channel.status
            if status.node is None:
                raise not_sent(status, keeps=self._keeps) from None
            raise CliError(
                FAILED, f"The chat ends as it is ({status}): {safe(status.trouble) or 'try again'}"
            ) from None
        # What is saved by now was handed out.
        await self._channel.log(1)


def not_sent(status: Status, *, keeps: bool) -> CliError:
    """Return the error of a chat that ends with lines that no node stores."""
    lines_left = counted(status.unpublished, "line")
    if keeps:
        return _offline(f"{lines_left} kept in the state, to be sent by the next run", status)
    return _offline(f"{lines_left} not sent", status)


def _offline(said: str, status: Status) -> CliError:
    trouble = safe(status.trouble) or "No node has answered."
    return CliError(UNREACHABLE, f"{said}: {trouble}")
