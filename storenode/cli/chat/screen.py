"""The chat on a terminal: messages, names, a line with the state, and a field to write in."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

from prompt_toolkit.application import Application, get_app
from prompt_toolkit.data_structures import Point
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    ConditionalContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    UIContent,
    UIControl,
    VSplit,
    Window,
)

from storenode.cli.chat.commands import KEYS, Answer, Commands
from storenode.cli.chat.entry import completed, entry_of
from storenode.cli.chat.layout import DIM, colour_of, first_that_fits
from storenode.cli.chat.limits import (
    AWAY_S,
    MAX_ENTRY_ROWS,
    MAX_SHOWN_LINES,
    MIN_COLUMNS_WITH_NAMES,
    NAMES_COLUMNS,
    REFRESH_S,
)
from storenode.cli.chat.people import now_ms
from storenode.cli.chat.transcript import Kind, Line, Transcript
from storenode.cli.chat.view import View
from storenode.cli.chat.words import brief_state_of, reason_of, state_of
from storenode.cli.client.text import counted, safe
from storenode.sds.channel import ChannelFullError

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.formatted_text import StyleAndTextTuples

    from storenode.sds.aio.channel import Channel

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""What ends the chat as `/quit` does, so that the terminal is left as it was."""

_UNTIL_THEN: Final = "What you write is sent when a node is reached."


class ScreenChat:
    """Runs until the user leaves."""

    def __init__(self, channel: Channel, name: str, channel_id: str) -> None:
        self._channel = channel
        self._title = f"{safe(name)} in {safe(channel_id)}"
        self._transcript = Transcript(name, now_ms())
        self._people = self._transcript.people
        self._commands = Commands(channel, self._transcript, KEYS)
        self._log = _LogControl(self._transcript)
        self._pressed_s = time.monotonic()
        self._marked_s = -inf
        self._took_s = 0.0
        self._mentions = 0
        self._offline_told = False
        self._sending: set[asyncio.Task[None]] = set()
        self._entry = entry_of(self._entered)
        self._application: Application[None] = Application(
            Layout(self._windows(), focused_element=self._entry),
            key_bindings=self._keys(),
            full_screen=True,
            refresh_interval=REFRESH_S,
        )
        self._application.key_processor.before_key_press += self._key_pressed
        self._application.before_render += self._look

    async def run(self) -> None:
        """Show the chat until the user leaves, and wait for what is being sent."""
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(self._leave)
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._leave)
        try:
            await self._application.run_async()
            if self._sending:
                await asyncio.wait(self._sending)
        finally:
            for number in _ENDING:
                loop.remove_signal_handler(number)
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    def _windows(self) -> HSplit:
        wide = Condition(lambda: get_app().output.get_size().columns >= MIN_COLUMNS_WITH_NAMES)
        names = VSplit(
            [
                Window(width=1, char="│", style=DIM),
                Window(FormattedTextControl(self._names), width=NAMES_COLUMNS),
            ]
        )
        bar = Window(FormattedTextControl(self._bar), height=1, style="reverse")
        log = VSplit([Window(self._log), ConditionalContainer(names, wide)])
        return HSplit([log, bar, self._entry])

    def _leave(self, _: object = None) -> None:
        if self._application.is_running and not self._application.is_done:
            self._application.exit()

    async def _read(self) -> None:
        async with self._channel.events() as events:
            for message in await self._channel.log(MAX_SHOWN_LINES):
                self._transcript.held(message)
            if self._transcript.lines:
                # What was there has been seen the last time; what comes now was not.
                self._pressed_s = -inf
            self._application.invalidate()
            async for event in events:
                for line in self._transcript.take(event, live=self._channel.status.live):
                    self._came(line)
                self._took_s = time.monotonic()
                self._application.invalidate()

    def _look(self, _: object) -> None:
        status = self._channel.status
        if status.live and time.monotonic() - self._took_s > REFRESH_S:
            self._transcript.caught_up()
        if status.node is None and status.trouble and not self._offline_told:
            self._transcript.remark(f"{reason_of(status)}. {_UNTIL_THEN}", warning=True)
        # Later the events say when a node goes away.
        self._offline_told |= status.node is not None or bool(status.trouble)

    def _came(self, line: Line) -> None:
        if line.kind is not Kind.MESSAGE or line.own:
            return
        away = self._log.view.scrolled or time.monotonic() - self._pressed_s > AWAY_S
        if away and (self._transcript.unread is None or self._pressed_s > self._marked_s):
            self._transcript.mark_unread(line)
            self._marked_s = time.monotonic()
        if line.mention and self._channel.status.live:
            self._mentions += away
            self._application.output.bell()

    def _key_pressed(self, _: object) -> None:
        self._pressed_s = time.monotonic()
        if not self._log.view.scrolled:
            self._mentions = 0

    def _entered(self, buffer: Buffer) -> bool:
        text = buffer.text.rstrip()
        self._log.view.end()
        self._transcript.mark_read()
        self._mentions = 0
        if text.strip():
            said = self._commands.said(text)
            if isinstance(said, Answer):
                self._answer(said)
            else:
                self._send(said)
        return False

    def _answer(self, answer: Answer) -> None:
        if answer.leave:
            self._leave()
        else:
            self._transcript.remark(*answer.rows)

    def _send(self, text: str) -> None:
        task = asyncio.create_task(self._say(text))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _say(self, text: str) -> None:
        try:
            await self._channel.send(text.encode("utf-8", "replace"))
        except (ChannelFullError, ValueError) as error:
            self._transcript.remark(f"not sent: {safe(str(error))}", warning=True)
            if not self._entry.text:
                self._entry.text = text

    def _names(self) -> StyleAndTextTuples:
        own = self._people.own
        shown: StyleAndTextTuples = [(f"{colour_of(own)} bold", f"{safe(own)}\n")]
        lacking = self._channel.lacking()
        for name, person in self._people.by_name():
            more = f" +{person.ahead}" if person.ahead else ""
            less = f" -{lacking[name]}" if name in lacking else ""
            shown += [(colour_of(name), safe(name)), (DIM, f"{more}{less}\n")]
        return shown

    def _bar(self) -> StyleAndTextTuples:
        said = []
        if self._people.namesakes:
            said.append("NAME USED TWICE")
        if self._log.view.scrolled:
            said.append(f"{self._log.view.below:,} further down: Ctrl-End")
        if self._mentions:
            said.append(counted(self._mentions, "mention"))
        rows = self._entry.document.line_count
        if rows > MAX_ENTRY_ROWS:
            said.append(f"{rows:,} rows: Enter sends, Ctrl-C discards")
        status = self._channel.status
        brief = [*said, brief_state_of(status)]
        tried = ([self._title, *said, state_of(status)], [self._title, *brief], brief)
        columns = get_app().output.get_size().columns
        return [("", first_that_fits([" " + " | ".join(each) for each in tried], columns))]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        view = self._log.view

        @keys.add("enter")
        def _enter(_event: KeyPressEvent) -> None:
            self._entry.buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _new_row(_event: KeyPressEvent) -> None:
            self._entry.buffer.insert_text("\n")

        @keys.add("tab")
        def _complete(_event: KeyPressEvent) -> None:
            before = self._entry.document.text_before_cursor
            names = [safe(name) for name, _ in self._people.by_name()]
            whole = completed(before, names, self._commands.names)
            self._entry.buffer.delete_before_cursor(len(before))
            self._entry.buffer.insert_text(whole)

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _discard(_event: KeyPressEvent) -> None:
            if self._entry.text:
                self._entry.buffer.reset(append_to_history=True)
            else:
                self._leave()

        @keys.add("c-d", filter=Condition(lambda: not self._entry.text))
        def _end_of_input(_event: KeyPressEvent) -> None:
            self._leave()

        @keys.add("pageup")
        def _up(_event: KeyPressEvent) -> None:
            view.up(max(self._log.height - 1, 1))

        @keys.add("pagedown")
        def _down(_event: KeyPressEvent) -> None:
            view.down(max(self._log.height - 1, 1))

        @keys.add("c-end")
        def _end(_event: KeyPressEvent) -> None:
            view.end()
            self._mentions = 0

        return keys


class _LogControl(UIControl):
    """The rows of a transcript that fit."""

    def __init__(self, transcript: Transcript) -> None:
        self.view = View(transcript)
        self.height = 1

    def create_content(self, width: int, height: int) -> UIContent:
        """What is shown; the last column stays free, for a blank after an emoji."""
        self.height = height
        rows = self.view.rows(width - 1, height)
        return UIContent(
            get_line=rows.__getitem__,
            line_count=len(rows),
            cursor_position=Point(0, max(len(rows) - 1, 0)),
            show_cursor=False,
        )
