"""Lines that a chat prints: messages as they come, and remarks in between."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from enum import Enum

from storenode.cli.chat.limits import (
    FAR_UP_ENTRIES,
    MAX_FORGED,
    MAX_QUOTED_CHARS,
    MAX_REPORTED_IDS,
    MAX_SHOWN_LINES,
)
from storenode.cli.chat.words import (
    NOT_VERIFIED,
    ChatMembers,
    clock_of,
    now_ms,
    remark_of,
    rows_of,
)
from storenode.cli.client.text import counted, format_time, safe
from storenode.common.bounded import BoundedDict
from storenode.message.limits import NS_PER_S
from storenode.sds.aio.events import ChannelEvent, Message, NotStored
from storenode.sds.claims import Proof
from storenode.sds.events import (
    Acknowledged,
    Behind,
    CaughtUp,
    Forged,
    GaveUp,
    Missing,
    PossiblyAcknowledged,
    Received,
    Sent,
    Withdrawn,
)

_MAX_TIME_MS = 253_402_300_799_000
_NS_PER_MS = NS_PER_S // 1_000


class Mark(Enum):
    """The progress of an own message; the value is its sign."""

    WAITING = "…"
    STORED = "·"
    POSSIBLY = "?"
    ACKNOWLEDGED = "✓"
    FAILED = "✗"
    NONE = " "


_RANK = [Mark.WAITING, Mark.STORED, Mark.POSSIBLY, Mark.FAILED, Mark.ACKNOWLEDGED]


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
    mention: bool = False

    def plain(self) -> list[str]:
        """Return the rows for a pipe; all but the first begin with blanks."""
        if self.kind is not LineKind.MESSAGE:
            return self.rows
        when = format_time(self.when_ms * _NS_PER_MS)[:19].replace("T", " ")
        head = f"{when}  {self.sender}: "
        return [head + self.rows[0], *(" " * len(head) + row for row in self.rows[1:])]


class Transcript:
    """Lines in the order of their coming: 500 at most, the oldest make room.

    ``own`` is the name of the user, from ``since_ms`` on.
    """

    def __init__(self, own: str, since_ms: int) -> None:
        self.lines: deque[Line] = deque(maxlen=MAX_SHOWN_LINES)
        self.people = ChatMembers(own)
        self.forged: deque[str] = deque(maxlen=MAX_FORGED)
        """What was said of forged messages, with the time of it."""
        self._since_ms = since_ms
        self._by_id = BoundedDict[str, Line](MAX_SHOWN_LINES)
        self._missing: set[str] = set()
        self._earlier: bool | None = None
        self._name = re.compile(rf"(?<!\w){re.escape(own)}(?!\w)", re.IGNORECASE)

    def stored(self, message: Message) -> list[Line]:
        """Take a message of the log; the lines that are new."""
        return self._message(message, message.own)

    def take(self, event: ChannelEvent, *, live: bool = False) -> list[Line]:
        """Note an event; the lines that are new. ``live``: what was said before is through."""
        match event:
            case Message():
                return self._came(event, live=live)
            case Sent():
                self._mark(event.message_id, Mark.STORED)
            case PossiblyAcknowledged():
                self._mark(event.message_id, Mark.POSSIBLY)
            case Acknowledged():
                self._mark(event.message_id, Mark.ACKNOWLEDGED)
            case GaveUp() | NotStored():
                self._mark(event.message_id, Mark.FAILED)
            case Received():
                self.people.received(event.sender_id, now_ms())
            case Behind():
                self.people.ahead(event.sender_id, event.at_least)
            case CaughtUp():
                self.people.level(event.sender_id)
            case Missing():
                return self._lacking(event)
            case Forged():
                genuine = self._by_id.get(event.message_id)
                return [self._warning_of_forgery(_rejected(event, genuine))]
            case Withdrawn():
                return self._withdrawn(event.message_id)
        said = remark_of(event)
        return [] if said is None else [self.remark(said)]

    def remark(self, *rows: str, warning: bool = False) -> Line:
        """Add a remark at the end."""
        line = Line(LineKind.WARNING if warning else LineKind.REMARK, now_ms(), list(rows))
        self.lines.append(line)
        return line

    def _came(self, message: Message, *, live: bool) -> list[Line]:
        # Own messages that this participant sent come unpublished, and then once more as an echo
        # that is not told: what comes published under the own name was sent by another one.
        known = message.message_id in self._by_id
        mine = message.own and not message.published
        lines = self._message(message, mine)
        if message.own and not mine and not known:
            lines += self._namesake(message, live=live)
        elif lines and live and message.entries_after >= FAR_UP_ENTRIES:
            above = counted(message.entries_after, "message")
            who, when = lines[0].sender, clock_of(lines[0].when_ms)
            lines.append(
                self.remark(f"a late message of {who}, said at {when}, is {above} further up")
            )
        return lines

    def _message(self, message: Message, mine: bool) -> list[Line]:
        if message.message_id in self._by_id:
            return []
        self.people.received(message.sender_id, message.lamport)
        own = _mark_of(message)
        rows = rows_of(message.content)
        if message.unmet:
            rows.append("(answers something that is lost)")
        if message.proof is Proof.NONE and not mine:
            rows.append(NOT_VERIFIED)
        sender = safe(message.sender_id) or "somebody"
        line = Line(
            LineKind.MESSAGE,
            min(message.lamport, _MAX_TIME_MS),
            rows,
            sender if mine or not message.own else f"{sender} (not here)",
            own if mine else Mark.NONE,
            mine,
            not message.own and any(map(self._name.search, rows)),
        )
        self._by_id[message.message_id] = line
        self.lines.append(line)
        return [line]

    def _namesake(self, message: Message, *, live: bool) -> list[Line]:
        if not live or message.lamport <= self._since_ms:
            if self._earlier is None:
                self._earlier = True
            return []
        if self.people.namesakes:
            return []
        self.people.namesakes = True
        name = safe(self.people.own)
        return [
            self.remark(
                f"Somebody else writes as {name} right now, and what either says is taken for the "
                "other's. One of you has to leave and come back under another name (--name).",
                warning=True,
            )
        ]

    def caught_up(self) -> list[Line]:
        """Warn once, after the history was read, of earlier lines under the own name."""
        if not self._earlier:
            return []
        self._earlier = False
        name = safe(self.people.own)
        return [
            self.remark(
                f"Earlier lines under the name {name} were not said from here. If they are not "
                "yours, from a run without --state, choose another name (--name).",
                warning=True,
            )
        ]

    def _withdrawn(self, message_id: str) -> list[Line]:
        line = self._by_id.pop(message_id, None)
        if line is None:
            return []
        if line in self.lines:
            self.lines.remove(line)
        return [self._warning_of_forgery(_replaced(line))]

    def _warning_of_forgery(self, said: str) -> Line:
        line = self.remark(said, warning=True)
        self.forged.append(f"{clock_of(line.when_ms)} {said}")
        return line

    def _lacking(self, event: Missing) -> list[Line]:
        names = {each.message_id for each in event.messages}
        fresh = len(names - self._missing)
        self._missing = names if len(self._missing) > MAX_REPORTED_IDS else self._missing | names
        if not fresh:
            return []
        noun = counted(fresh, "message")
        return [self.remark(f"{noun} that others answer to {_is(fresh)} missing: being fetched")]

    def _mark(self, message_id: str, mark: Mark) -> None:
        line = self._by_id.get(message_id)
        if line is not None and line.own and _RANK.index(mark) > _RANK.index(line.mark):
            line.mark = mark


def _mark_of(message: Message) -> Mark:
    if message.acknowledged_by is not None:
        return Mark.ACKNOWLEDGED
    return Mark.STORED if message.published else Mark.WAITING


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _rejected(event: Forged, genuine: Line | None) -> str:
    """Return the warning of a message under the ID of another one."""
    quoted = _quoted(rows_of(event.content))
    which = "a line"
    if genuine is not None:
        which = f"the line of {genuine.sender} at {clock_of(genuine.when_ms)}"
    if event.certain:
        return f"FORGED: {quoted} came under the ID of {which}, and is not taken"
    return f"{quoted} came under the ID of {which}; which of the two is genuine cannot be told"


def _replaced(forged: Line) -> str:
    """Return the warning of a printed line whose ID is another message's."""
    rows = [row for row in forged.rows if row != NOT_VERIFIED]
    return f"FORGED: {_quoted(rows)} was not said by {forged.sender}: the genuine line follows"


def _quoted(rows: list[str]) -> str:
    text = " ".join(rows)
    cut = text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"
    return f'"{cut}"'
