"""The chat on a terminal: lines, and below them the state of the channel and a prompt."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from prompt_toolkit import PromptSession, print_formatted_text
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.patch_stdout import patch_stdout
from wcwidth import wcswidth

from storenode.cli.chat.transcript import (
    ChatMember,
    Line,
    LineKind,
    Mark,
    Transcript,
    clock_of,
    now_ms,
    remark,
)
from storenode.cli.client.text import counted, safe
from storenode.sds.channel import ChannelFullError

if TYPE_CHECKING:
    from storenode.sds.aio.channel import Channel
    from storenode.sds.aio.status import Status

AWAY_S: Final = 60.0
"""The time without a key press after which the user is assumed not to read what arrives."""

_REFRESH_S: Final = 0.5
"""The longest time between two drawings of the line of the status."""

_MAX_LISTED: Final = 20
"""The names or messages that one command lists; it says how many more there are."""

_MAX_MARKED: Final = 3
"""The own lines whose marks are above the prompt."""

_SHORT_ID_CHARS: Final = 16
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
_QUIT: Final = "/quit"
_COMMANDS: Final = {
    "/help": "this list",
    "/names": "who takes part, who has what is not here, and who lacks what is",
    "/missing": "what is missing, and what is done about it",
    _QUIT: "leave",
    "//…": "say a line that begins with a slash",
}
_KEYS: Final = (
    (
        "Keys: Enter sends, Alt-Enter begins a new row, Tab completes names and commands, Up and"
        " Down recall what was written, Ctrl-C discards what is being written, or leaves."
    ),
    (
        "Marks of your own lines: … not sent yet, · stored by a node, ? probably received, ✓"
        " received by somebody, ✗ refused or given up."
    ),
)


class TerminalChat:
    """A chat by prompt and lines that runs until the user leaves."""

    def __init__(self, channel: Channel, name: str, channel_id: str) -> None:
        self._channel = channel
        self._transcript = Transcript(name, now_ms())
        self._title = f"{safe(name)} in {safe(channel_id)}"
        self._pressed_s = time.monotonic()
        self._unread_s = -inf
        self._refused = ""
        keys = KeyBindings()
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        self._session: PromptSession[str] = PromptSession(
            self._message,
            completer=WordCompleter(self._words, ignore_case=True, WORD=True),
            complete_while_typing=False,
            refresh_interval=_REFRESH_S,
            key_bindings=keys,
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
                printer = asyncio.create_task(
                    self._transcript.follow(self._channel, events, self._show)
                )
                warner = asyncio.create_task(self._warn_without_node())
                printer.add_done_callback(self._leave)
                try:
                    await self._prompt()
                    if printer.done():
                        await printer
                finally:
                    for number in _ENDING:
                        loop.remove_signal_handler(number)
                    printer.cancel()
                    warner.cancel()
                    await asyncio.wait({printer, warner})

    async def _warn_without_node(self) -> None:
        status = await self._channel.wait_for(lambda status: bool(status.node or status.trouble))
        if status.node is None:
            reason = safe(status.trouble).removesuffix(".")
            text = f"{reason}. Lines are sent when a node is reached."
            self._show([remark(text, warning=True)])

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
            text = text.rstrip()
            name = text.partition(" ")[0].lower()
            if name == _QUIT:
                return
            if name.startswith("/") and not name.startswith("//"):
                rows = answer_command(name, self._channel, self._transcript)
                self._show([remark(*rows)])
            elif text:
                await self._send(text.removeprefix("/"))

    async def _send(self, text: str) -> None:
        try:
            await self._channel.send(text.encode("utf-8", "replace"))
        except (ChannelFullError, ValueError) as error:
            self._show([remark(f"not sent: {safe(str(error))}", warning=True)])
            self._refused = text

    def _leave(self, _: object = None) -> None:
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(exception=EOFError)

    def _key_pressed(self, _: object) -> None:
        self._pressed_s = time.monotonic()

    def _show(self, lines: list[Line]) -> None:
        for line in lines:
            is_news = line.kind is LineKind.MESSAGE and not line.own and self._channel.status.live
            is_away = time.monotonic() - self._pressed_s > AWAY_S
            if is_news and is_away and self._unread_s < self._pressed_s:
                self._unread_s = time.monotonic()
                row = " unread ".center(self._columns(), "─")
                print_formatted_text(FormattedText([("fg:ansired", row)]))
            print_formatted_text(FormattedText(formatted(line)))

    def _columns(self) -> int:
        return self._session.output.get_size().columns - 1

    def _words(self) -> list[str]:
        """Return what Tab completes: commands and names."""
        return [*_COMMANDS, *(safe(name) for name, _ in self._transcript.members_by_name())]

    def _message(self) -> StyleAndTextTuples:
        """Return the state of the channel, the marks of own lines, and the prompt below them.

        They are part of the prompt, since not every terminal has a toolbar below it.
        """
        columns = self._columns()
        own = (line for line in reversed(self._transcript.messages.values()) if line.own)
        marks = " ".join(f"{each.mark.value} {each.rows[0]}" for each in islice(own, _MAX_MARKED))
        shown: StyleAndTextTuples = [(_DIM, f"{marks[:columns]}\n")] if marks else []
        return [*shown, ("reverse", f"{self._bar(columns):<{columns}}"), ("", "\n> ")]

    def _bar(self, columns: int) -> str:
        """Return the state, who has or lacks something, and the channel, as far as they fit."""
        parts = ["NAME USED TWICE"] if self._transcript.has_namesake else []
        parts.append(state_of(self._channel.status))
        lacking = self._channel.lacking()
        for name, member in self._transcript.members_by_name():
            more = f" +{member.ahead}" if member.ahead else ""
            less = f" -{lacking[name]}" if name in lacking else ""
            parts += [f"{safe(name)}{more}{less}"] if more or less else []
        return fitting(" " + " | ".join([*parts, self._title]), columns)


def answer_command(name: str, channel: Channel, transcript: Transcript) -> Iterator[str]:
    """Yield the rows that a command prints."""
    match name:
        case "/help":
            yield from (f"{known:<9} {what}" for known, what in _COMMANDS.items())
            yield from _KEYS
        case "/names":
            members, lacking = transcript.members_by_name(), channel.lacking()
            yield f"{counted(len(members) + 1, 'participant')} heard so far:"
            other = ", and somebody else who writes under the same name"
            yield f"{safe(transcript.own)}: you{other if transcript.has_namesake else ''}"
            yield from _listed([standing(*each, lacking.get(each[0], 0)) for each in members])
        case "/missing":
            yield from _missing(channel, transcript)
        case _:
            hint = f"To say a line that begins with a slash, write /{safe(name)}."
            yield f"There is no command {safe(name)}: /help lists them. {hint}"


def _missing(channel: Channel, transcript: Transcript) -> Iterator[str]:
    status, missing = channel.status, channel.missing()
    lacks = _lacks_of(status)
    more = "" if status.live else "; the history is still being read"
    yield f"{'; '.join(lacks) or f'Nothing is missing as far as is known here{more}'}."
    yield from _listed(
        [
            f"  {safe(each.message_id)[:_SHORT_ID_CHARS]}"
            f"{f' of {safe(each.sender_id)}' if each.sender_id else ''}"
            f"{'' if each.hints else ', known by its ID alone'}"
            for each in missing
        ]
    )
    if status.waiting:
        yield f"Not shown until then: {counted(status.waiting, 'message')} in answer to it."
    if missing:
        yield "The node is asked for them, and participants that have them send them again."
    ahead = [each for each in transcript.members_by_name() if each[1].ahead]
    yield from _listed([standing(*each) for each in ahead])
    if status.incomparable:
        peers = counted(status.incomparable, "participant")
        yield f"{peers} send nothing by which it shows whether something is missing here."


def _listed(rows: list[str]) -> Iterator[str]:
    yield from rows[:_MAX_LISTED]
    if len(rows) > _MAX_LISTED:
        yield f"  and {len(rows) - _MAX_LISTED:,} more"


def standing(name: str, member: ChatMember, lacks: int = 0) -> str:
    """Describe a participant; ``lacks`` counts messages of this one that it has not received."""
    seen = (
        f"last heard at {clock_of(member.last_seen_ms)}" if member.last_seen_ms else "not heard yet"
    )
    parts = [f"{safe(name)}: {seen}"]
    if member.ahead:
        parts.append(f"has {counted(member.ahead, 'message')} or more that are not here: searching")
    if lacks:
        here = "is" if lacks == 1 else "are"
        parts.append(f"lacks {counted(lacks, 'message')} that {here} here")
    return ", ".join(parts)


def state_of(status: Status) -> str:
    """Describe the state of a participant, the most important first."""
    if status.node is None:
        parts = ["offline" if status.trouble else "connecting"]
    elif not status.live:
        parts = ["catching up"]
    else:
        lacks = status.missing or status.waiting or status.behind
        parts = ["incomplete" if lacks else "up to date"]
    parts += _lacks_of(status)
    if status.unpublished:
        parts.append(f"{status.unpublished:,} not sent yet")
    if (unconfirmed := status.unacknowledged - status.unpublished) > 0:
        parts.append(f"{unconfirmed:,} not confirmed by anybody yet")
    if reason := safe(status.trouble).removesuffix("."):
        parts.append(reason)
    elif status.node is not None:
        parts.append(f"connected to {safe(status.node)}")
    return ", ".join(parts)


def _lacks_of(status: Status) -> list[str]:
    """Describe the messages that are missing here."""
    parts = []
    if status.missing or status.waiting:
        fetching = "being fetched" if status.node else "fetched when a node is reachable"
        parts.append(f"{max(status.missing, 1):,} missing, {fetching}")
    if status.behind:
        parts.append(f"others have {status.behind:,} or more that are not here: searching")
    if status.lost:
        parts.append(f"{status.lost:,} lost for good")
    return parts


def formatted(line: Line) -> StyleAndTextTuples:
    """Return a line of the transcript with its time, mark and colours."""
    style = _STYLES[line.kind]
    first, *rest = line.rows
    shown: StyleAndTextTuples = [(_DIM, f"{clock_of(line.when_ms)} ")]
    if line.kind is LineKind.MESSAGE:
        shown.append((_MARK_STYLES.get(line.mark, _DIM), f"{line.mark.value} "))
        shown.append((f"{colour_of(line.sender)} bold", line.sender))
        shown.append((style, f": {first}"))
    else:
        shown.append((style, f"* {first}"))
    return [*shown, *((style, f"\n{' ' * _INDENT}{row}") for row in rest)]


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
