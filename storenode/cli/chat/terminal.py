"""The chat on a terminal: lines, and below them the state of the channel and a prompt."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from prompt_toolkit import PromptSession, print_formatted_text
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from wcwidth import wcswidth

from storenode.cli.chat.commands import KEYS, CommandAnswer, Commands
from storenode.cli.chat.limits import AWAY_S, MAX_MARKED_LINES, MAX_QUOTED_CHARS, REFRESH_S
from storenode.cli.chat.plain import PlainChat
from storenode.cli.chat.transcript import Line, LineKind, Mark
from storenode.cli.chat.words import clock_of, state_of
from storenode.cli.client.text import safe
from storenode.sds.channel import ChannelFullError

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from storenode.sds.aio.channel import Channel

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the chat as `/quit` does, so that the terminal is left as it was."""

_DIM: Final = "fg:ansibrightblack"
_COLOURS: Final = (
    *("ansicyan", "ansigreen", "ansiyellow", "ansimagenta", "ansiblue", "ansibrightcyan"),
    *("ansibrightgreen", "ansibrightyellow", "ansibrightmagenta", "ansibrightblue"),
)
_STYLES: Final = {LineKind.MESSAGE: "", LineKind.REMARK: _DIM, LineKind.WARNING: "fg:ansired bold"}
_MARK_STYLES: Final = {Mark.FAILED: "fg:ansired bold", Mark.ACKNOWLEDGED: "fg:ansigreen"}
_INDENT: Final = len("10:31 ✓ ")


class TerminalChat(PlainChat):
    """A chat by prompt and lines that runs until the user leaves."""

    def __init__(self, channel: Channel, name: str, channel_id: str, *, keeps: bool) -> None:
        super().__init__(channel, name, keeps=keeps)
        self._title = f"{safe(name)} in {safe(channel_id)}"
        self._people = self._transcript.people
        self._commands = Commands(channel, self._transcript, KEYS)
        self._pressed_s = time.monotonic()
        self._unread_s = -inf
        self._refused = ""
        self._session: PromptSession[str] = PromptSession(
            self._message,
            completer=_Names(self._words),
            complete_while_typing=False,
            refresh_interval=REFRESH_S,
            key_bindings=_keys(),
            prompt_continuation="  ",
            erase_when_done=True,
        )
        self._session.app.key_processor.before_key_press += self._key_pressed

    async def run(self) -> None:
        """Print what comes and send what is written, until the user leaves."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._leave)
        with patch_stdout():
            async with self._channel.events() as events:
                tasks = [
                    asyncio.create_task(self._print(events)),
                    asyncio.create_task(self._introduce()),
                ]
                for task in tasks:
                    task.add_done_callback(self._leave)
                try:
                    await self._prompt()
                    for task in tasks:
                        if task.done():
                            await task
                finally:
                    for number in _ENDING:
                        loop.remove_signal_handler(number)
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)

    async def _introduce(self) -> None:
        """Show why no node is reachable, and warn of foreign lines once the history is read."""
        status = await self._channel.wait_for(
            lambda status: status.node is not None or bool(status.trouble)
        )
        if status.node is None:
            reason = safe(status.trouble).removesuffix(".")
            said = f"{reason}. What you write is sent when a node is reached."
            self._show([self._transcript.remark(said, warning=True)])
        await self._channel.wait_for(lambda status: status.synced)
        while True:
            # What was said before may still be on its way to the printer.
            self._show(self._transcript.caught_up())
            await asyncio.sleep(REFRESH_S)

    async def _prompt(self) -> None:
        while True:
            try:
                text = await self._session.prompt_async(default=self._refused)
            except KeyboardInterrupt:
                if self._session.default_buffer.text:
                    continue
                return
            except EOFError:
                return
            self._refused = ""
            said = self._commands.said(text.rstrip())
            if not isinstance(said, CommandAnswer):
                await self._send(said)
            elif said.leave:
                return
            else:
                self._show([self._transcript.remark(*said.rows)])

    async def _send(self, text: str) -> None:
        if not text.strip():
            return
        try:
            await self._channel.send(text.encode("utf-8", "replace"))
        except (ChannelFullError, ValueError) as error:
            said = self._transcript.remark(f"not sent: {safe(str(error))}", warning=True)
            self._show([said])
            self._refused = text

    def _leave(self, _: object = None) -> None:
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(exception=EOFError)

    def _key_pressed(self, _: object) -> None:
        self._pressed_s = time.monotonic()

    def _show(self, said: list[Line], more: str = "") -> None:
        for line in said:
            is_away = time.monotonic() - self._pressed_s > AWAY_S
            if line.kind is LineKind.MESSAGE and not line.own and self._channel.status.live:
                if is_away and self._unread_s < self._pressed_s:
                    self._unread_s = time.monotonic()
                    columns = self._session.output.get_size().columns
                    row = " unread ".center(columns - 1, "─")
                    print_formatted_text(FormattedText([("fg:ansired", row)]))
                if line.mention:
                    self._session.output.bell()
            print_formatted_text(FormattedText(formatted(line, more)))

    def _words(self, first: bool) -> list[str]:
        """Return what Tab may complete: names, and commands at the beginning of a line."""
        names = [safe(name) for name, _ in self._people.by_name()]
        return [*self._commands.names, *(f"{name}: " for name in names)] if first else names

    def _message(self) -> StyleAndTextTuples:
        """Return the state of the channel, the marks of own lines, and the prompt below them.

        They are part of the prompt, since not every terminal has a toolbar below it.
        """
        columns = self._session.output.get_size().columns - 1
        marks = " ".join(self._marks())[:columns]
        shown: StyleAndTextTuples = [(_DIM, f"{marks}\n")] if marks else []
        return [*shown, ("reverse", f"{self._bar(columns):<{columns}}"), ("", "\n> ")]

    def _bar(self, columns: int) -> str:
        """Return the state, who has or lacks something, and the channel, as far as they fit."""
        said = ["NAME USED TWICE"] if self._people.namesakes else []
        said.append(state_of(self._channel.status))
        lacking = self._channel.lacking()
        for name, person in self._people.by_name():
            more = f" +{person.ahead}" if person.ahead else ""
            less = f" -{lacking[name]}" if name in lacking else ""
            said += [f"{safe(name)}{more}{less}"] if more or less else []
        return fitting(" " + " | ".join([*said, self._title]), columns)

    def _marks(self) -> list[str]:
        """Return the last own lines with their marks, the newest first."""
        own = (line for line in reversed(self._transcript.lines) if line.own)
        return [
            f"{line.mark.value} {line.rows[0][:MAX_QUOTED_CHARS]}"
            for line in islice(own, MAX_MARKED_LINES)
        ]


class _Names(Completer):
    """A completer of names and commands."""

    def __init__(self, words: Callable[[bool], list[str]]) -> None:
        self._words = words

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002
    ) -> Iterable[Completion]:
        """Yield the words that begin as the last one before the cursor does."""
        before = document.text_before_cursor
        word = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
        for each in self._words(before == word):
            if word and each.casefold().startswith(word.casefold()):
                yield Completion(each, -len(word))


def formatted(line: Line, more: str = "") -> StyleAndTextTuples:
    """Return a line of the transcript with its time, mark and colours; ``more`` ends it."""
    style = "bold" if line.mention else _STYLES[line.kind]
    first, *rest = line.rows
    shown: StyleAndTextTuples = [(_DIM, f"{clock_of(line.when_ms)} ")]
    if line.kind is LineKind.MESSAGE:
        shown.append((_MARK_STYLES.get(line.mark, _DIM), f"{line.mark.value} "))
        shown.append((f"{colour_of(line.sender)} bold", line.sender))
        shown.append((style, f": {first}"))
    else:
        shown.append((style, f"* {first}"))
    shown += [(style, f"\n{' ' * _INDENT}{row}") for row in rest]
    return [*shown, (_DIM, more)]


def colour_of(name: str) -> str:
    """Return the style of a name: the same one everywhere and always."""
    digest = blake2b(name.encode(), digest_size=1).digest()
    return f"fg:{_COLOURS[digest[0] % len(_COLOURS)]}"


def fitting(text: str, columns: int) -> str:
    """Return a text, or as much of it as a row has room for."""
    if wcswidth(text) <= columns:
        return text
    while wcswidth(text) >= max(columns, 2):
        text = text[:-1]
    return text + "…"


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _new_row(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
