"""Lines of a chat: messages as they come, and remarks in between.

Nothing of a stranger's text moves the cursor, and emoji stay whole.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from storenode.cli.client.text import counted, format_time, safe
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import NS_PER_S
from storenode.sds.claims import Proof
from storenode.sds.events import (
    Acknowledged,
    Behind,
    CaughtUp,
    ChannelEvent,
    Connected,
    Disconnected,
    Forged,
    GaveUp,
    Lost,
    Message,
    NotStored,
    PossiblyAcknowledged,
    Received,
    Repaired,
    Sent,
    Withdrawn,
)

if TYPE_CHECKING:
    from storenode.sds.aio.channel import Channel
    from storenode.sds.aio.events import Events

MAX_SHOWN_LINES: Final = 500
"""Messages that are shown at the start, and whose marks are kept."""

MAX_MEMBERS: Final = 500
"""Participants that are remembered; the one that was silent longest makes room."""

MAX_TEXT_CHARS: Final = 64_000
MAX_TEXT_ROWS: Final = 1_000
"""The longest text of one message that is shown; the line says how much is left out."""

MAX_QUOTED_CHARS: Final = 200
"""The longest quote of another message."""

_MAX_TAG_CHARS: Final = 8
_MAX_TIME_MS: Final = 253_402_300_799_000
_NS_PER_MS: Final = NS_PER_S // 1_000
_TAB_COLUMNS: Final = 4
_ROW_ENDS: Final = re.compile(r"\r\n|\r|\n")
_FLAG: Final = f"\U0001f3f4[\U000e0020-\U000e007e]{{1,{_MAX_TAG_CHARS}}}\U000e007f"
_JOINED: Final = r"(?<=[^\x00-\x7f\s\u200c\u200d])[\u200c\u200d](?=[^\x00-\x7f\s\u200c\u200d])"
_INVISIBLE: Final = re.compile(f"({_FLAG}|{_JOINED})")
"""Invisible characters that belong to their neighbours: joiners between two characters of a script
or two emoji, and the letters of a region after a black flag."""

NOT_VERIFIED: Final = "(not verified)"
"""The remark below a message whose ID cannot be recomputed."""


class Mark(Enum):
    """The progress of an own message; the value is its sign."""

    WAITING = "…"
    STORED = "·"
    POSSIBLY = "?"
    FAILED = "✗"
    ACKNOWLEDGED = "✓"
    NONE = " "


_RANK: Final = list(Mark)
_MARKS: Final[dict[type, Mark]] = {
    Sent: Mark.STORED,
    PossiblyAcknowledged: Mark.POSSIBLY,
    Acknowledged: Mark.ACKNOWLEDGED,
    GaveUp: Mark.FAILED,
    NotStored: Mark.FAILED,
}


class LineKind(Enum):
    """The kind of a line."""

    MESSAGE = "message"
    REMARK = "remark"
    WARNING = "warning"


@dataclass(slots=True, eq=False)
class Line:
    """A message or remark, in rows of text that may be printed.

    ``when_ms`` is Unix time, of a message as its sender claims.
    """

    kind: LineKind
    when_ms: int
    rows: list[str]
    sender: str = ""
    mark: Mark = Mark.NONE
    own: bool = False

    def plain(self) -> list[str]:
        """Return the rows for a pipe; all but the first begin with blanks."""
        if self.kind is not LineKind.MESSAGE:
            return self.rows
        when = format_time(self.when_ms * _NS_PER_MS)[:19].replace("T", " ")
        head = f"{when}  {self.sender}: "
        return [head + self.rows[0], *(" " * len(head) + row for row in self.rows[1:])]


@dataclass(slots=True)
class ChatMember:
    """A participant: the time of its last message, and its messages that are missing here."""

    last_seen_ms: int = 0
    ahead: int = 0


class Transcript:
    """The lines and the other participants of a chat of ``own``, who joined at ``since_ms``."""

    def __init__(self, own: str, since_ms: int) -> None:
        self.own = own
        self.members = BoundedDict[str, ChatMember](MAX_MEMBERS)
        self.has_namesake = False
        """True if another participant writes under the own name."""
        self.messages = BoundedDict[str, Line](MAX_SHOWN_LINES)
        """The latest messages by ID, each with the beginning of its text alone."""
        self._since_ms = since_ms

    async def follow(
        self, channel: Channel, events: Events[ChannelEvent], show: Callable[[list[Line]], None]
    ) -> None:
        """Show the latest messages of a channel, then each event as it comes."""
        for message in await channel.log(MAX_SHOWN_LINES):
            show(self.stored(message))
        async for event in events:
            show(self.take(event, live=channel.status.live))

    def stored(self, message: Message) -> list[Line]:
        """Take a message of the log, and return the lines that are new."""
        return self._message(message, message.own)

    def take(self, event: ChannelEvent, *, live: bool = False) -> list[Line]:
        """Take an event, and return the lines that are new; ``live`` after the history was read."""
        match event:
            case Message():
                return self._received(event, live=live)
            case Received():
                self._see(event.sender_id, now_ms())
            case Behind():
                self._member(event.sender_id).ahead = event.at_least
            case CaughtUp() if event.sender_id in self.members:
                self.members[event.sender_id].ahead = 0
            case Forged():
                return [remark(self._describe_forgery(event), warning=True)]
            case Sent() | PossiblyAcknowledged() | Acknowledged() | GaveUp() | NotStored():
                self._mark(event.message_id, _MARKS[type(event)])
            case Withdrawn():
                line = self.messages.pop(event.message_id, None)
                return [] if line is None else [remark(_describe_withdrawal(line), warning=True)]
        text = _remark_of(event)
        return [] if text is None else [remark(text)]

    def members_by_name(self) -> list[tuple[str, ChatMember]]:
        """Return the other participants in the order of their names."""
        return sorted(self.members.items(), key=lambda item: item[0].casefold())

    def _received(self, message: Message, *, live: bool) -> list[Line]:
        # Own messages come unpublished, and their echo is not an event: what comes published
        # under the own name was sent by another participant.
        mine = message.own and not message.published
        lines = self._message(message, mine)
        is_foreign = bool(lines) and message.own and not mine
        if is_foreign and live and message.lamport > self._since_ms and not self.has_namesake:
            self.has_namesake = True
            text = (
                f"Another participant writes as {safe(self.own)} now, and the messages of both"
                " look alike. One of you has to leave and come back under another name (--name)."
            )
            lines.append(remark(text, warning=True))
        return lines

    def _message(self, message: Message, mine: bool) -> list[Line]:
        if message.message_id in self.messages:
            return []
        self._see(message.sender_id, message.lamport)
        rows = rows_of(message.content)
        quoted = " ".join(rows)[: MAX_QUOTED_CHARS + 1]
        if message.unmet:
            rows.append("(answers something that is lost)")
        if message.proof is Proof.NONE and not mine:
            rows.append(NOT_VERIFIED)
        if message.entries_after:
            rows[-1] += f" ({message.entries_after:,} above)"
        sender = safe(message.sender_id) or "somebody"
        line = Line(
            LineKind.MESSAGE,
            min(message.lamport, _MAX_TIME_MS),
            rows,
            sender if mine or not message.own else f"{sender} (not here)",
            _mark_of(message) if mine else Mark.NONE,
            mine,
        )
        self.messages[message.message_id] = replace(line, rows=[quoted])
        return [line]

    def _see(self, name: str, when_ms: int) -> None:
        if name and name != self.own:
            member = self._member(name)
            member.last_seen_ms = max(member.last_seen_ms, min(when_ms, now_ms()))

    def _member(self, name: str) -> ChatMember:
        member = self.members[name] = self.members.get(name) or ChatMember()
        return member

    def _mark(self, message_id: str, mark: Mark) -> None:
        line = self.messages.get(message_id)
        if line is not None and line.own and _RANK.index(mark) > _RANK.index(line.mark):
            line.mark = mark

    def _describe_forgery(self, event: Forged) -> str:
        """Describe a message that came under the ID of another one."""
        quoted, genuine = _quoted(rows_of(event.content)), self.messages.get(event.message_id)
        which = "a line"
        if genuine is not None:
            which = f"the line of {genuine.sender} at {clock_of(genuine.when_ms)}"
        if event.certain:
            return f"FORGED: {quoted} came under the ID of {which}, and is not taken"
        return f"{quoted} came under the ID of {which}; which of the two is genuine cannot be told"


def remark(*rows: str, warning: bool = False) -> Line:
    """Return a line that is no message."""
    return Line(LineKind.WARNING if warning else LineKind.REMARK, now_ms(), list(rows))


def now_ms() -> int:
    """Return the Unix time in milliseconds."""
    return time.time_ns() // _NS_PER_MS


def clock_of(when_ms: int) -> str:
    """Return a time of the day on the clock of the user: hours and minutes."""
    return time.strftime("%H:%M", time.localtime(when_ms / 1_000))


def rows_of(content: bytes) -> list[str]:
    """Return a message as rows that may be printed, at most 64,000 characters in 1,000 rows."""
    text = content.decode("utf-8", "replace")
    rows = _ROW_ENDS.split(text[:MAX_TEXT_CHARS].rstrip())
    shown = [_printable(row) for row in rows[:MAX_TEXT_ROWS]]
    left = {"characters": len(text) - MAX_TEXT_CHARS, "rows": len(rows) - MAX_TEXT_ROWS}
    parts = [f"{count:,} more {noun}" for noun, count in left.items() if count > 0]
    return [*shown, f"[{' and '.join(parts)} not shown]"] if parts else shown


def _printable(row: str) -> str:
    row = row.expandtabs(_TAB_COLUMNS)
    if row.isprintable():
        return row
    # Every second part is one that the pattern found.
    parts = _INVISIBLE.split(row)
    return "".join(part if at % 2 else safe(part) for at, part in enumerate(parts))


def _mark_of(message: Message) -> Mark:
    if message.acknowledged_by is not None:
        return Mark.ACKNOWLEDGED
    return Mark.STORED if message.published else Mark.WAITING


def _remark_of(event: ChannelEvent) -> str | None:
    """Return the remark about an event; None for most."""
    text: str | None = None
    match event:
        case Connected():
            text = f"connected to {safe(event.node)}"
        case Disconnected():
            text = f"{safe(event.node)} is unreachable: {safe(event.sentence)}"
        case NotStored():
            text = f"a message was refused: {safe(event.reason)}"
        case GaveUp():
            text = f"no participant has confirmed a message that was sent {event.sends} times"
        case Repaired() if event.found:
            text = f"fetched {event.found:,} of {counted(event.asked, 'missing message')}"
        case Behind() if event.searches == 1:
            lacking = counted(event.at_least, "message")
            text = f"{safe(event.sender_id)} has {lacking} or more that are not here: searching"
        case CaughtUp():
            text = f"everything that {safe(event.sender_id)} has is here now"
        case Lost():
            lost = counted(len(event.message_ids), "message")
            text = f"{lost} could not be fetched from any participant: lost for good"
            if event.early:
                text = f"{lost} were too many to wait for: searching the node for them"
    return text


def _describe_withdrawal(forged: Line) -> str:
    """Describe a printed line whose ID is another message's."""
    quoted = _quoted(forged.rows)
    return f"FORGED: {quoted} was not written by {forged.sender}: the genuine line follows"


def _quoted(rows: list[str]) -> str:
    text = " ".join(rows)
    cut = text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"
    return f'"{cut}"'
