"""The chat on a terminal: the log, a line with the status, and a line to write in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.widgets import TextArea

from storenode.cli.chat.limits import REFRESH_S
from storenode.cli.chat.transcript import Mark, Transcript
from storenode.cli.client.text import safe
from storenode.sds.channel import ChannelFullError

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer

    from storenode.sds.aio.channel import Channel

_PAGE_LINES = 10
_STYLES = {
    Mark.WAITING: "fg:ansibrightblack",
    Mark.STORED: "",
    Mark.POSSIBLY: "",
    Mark.ACKNOWLEDGED: "",
    Mark.FAILED: "fg:ansired",
    Mark.NONE: "",
}


class ScreenChat:
    """Runs until Ctrl-C or Ctrl-D."""

    def __init__(self, channel: Channel, title: str) -> None:
        self._channel = channel
        self._title = title
        self._transcript = Transcript()
        self._back = 0
        self._sending: set[asyncio.Task[None]] = set()
        entry = TextArea(
            height=1, prompt="> ", multiline=False, wrap_lines=False, accept_handler=self._entered
        )
        log = FormattedTextControl(self._log, get_cursor_position=self._cursor, show_cursor=False)
        bar = FormattedTextControl(self._bar)
        self._application: Application[None] = Application(
            Layout(
                HSplit(
                    [
                        Window(log, wrap_lines=True),
                        Window(bar, height=1, style="reverse"),
                        entry,
                    ]
                ),
                focused_element=entry,
            ),
            key_bindings=self._keys(),
            full_screen=True,
            refresh_interval=REFRESH_S,
        )

    async def run(self) -> None:
        """Show the chat until the user leaves, and wait for what is being sent."""
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(self._reader_ended)
        try:
            await self._application.run_async()
            if self._sending:
                await asyncio.wait(self._sending)
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and self._application.is_running:
            self._application.exit()

    async def _read(self) -> None:
        async with self._channel.events() as events:
            for message in await self._channel.log(1_000):
                self._transcript.take(message)
            self._application.invalidate()
            async for event in events:
                self._transcript.take(event)
                self._application.invalidate()

    def _entered(self, buffer: Buffer) -> bool:
        if buffer.text.strip():
            task = asyncio.create_task(self._say(buffer.text))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            self._back = 0
        return False

    async def _say(self, text: str) -> None:
        try:
            await self._channel.send(text.encode("utf-8", "replace"))
        except (ChannelFullError, ValueError) as error:
            self._transcript.remark(f"not sent: {safe(str(error))}")

    def _log(self) -> StyleAndTextTuples:
        shown: StyleAndTextTuples = []
        for line in self._transcript.lines:
            style = "fg:ansibrightblack italic" if line.remark else _STYLES[line.mark]
            shown.append((style, f"{line}\n"))
        return shown

    def _cursor(self) -> Point:
        return Point(0, max(len(self._transcript.lines) - 1 - self._back, 0))

    def _bar(self) -> str:
        status = self._channel.status
        node = f" at {safe(status.node)}" if status.node else ""
        waiting = status.unacknowledged
        owed = f", {waiting:,} not acknowledged" if waiting else ""
        trouble = f" - {safe(status.trouble)}" if status.trouble else ""
        return f" {self._title}: {status}{owed}{node}{trouble}"

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        @keys.add("c-d")
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit()

        @keys.add("pageup")
        def _up(_event: KeyPressEvent) -> None:
            last = max(len(self._transcript.lines) - 1, 0)
            self._back = min(self._back + _PAGE_LINES, last)

        @keys.add("pagedown")
        def _down(_event: KeyPressEvent) -> None:
            self._back = max(self._back - _PAGE_LINES, 0)

        return keys
