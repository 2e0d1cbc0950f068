"""What a chat shows: lines in the order of the log, with a mark each, and remarks in between."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import Enum

from storenode.cli.chat.limits import MAX_SHOWN_LINES, MAX_TEXT_CHARS
from storenode.cli.client.text import format_time, safe
from storenode.message.limits import NS_PER_S
from storenode.sds.aio.events import (
    ChannelEvent,
    Connected,
    Disconnected,
    Message,
    NotStored,
    Repaired,
)
from storenode.sds.behind import MAX_SEARCHES
from storenode.sds.events import (
    Acknowledged,
    Behind,
    CaughtUp,
    GaveUp,
    Lost,
    Missing,
    PossiblyAcknowledged,
    Sent,
)
from storenode.sds.pages import Key

_MAX_TIME_MS = 253_402_300_799_000
_MS_PER_S = 1_000


class Mark(Enum):
    """How far an own message has come; the value is its sign."""

    WAITING = "…"
    STORED = "·"
    POSSIBLY = "?"
    ACKNOWLEDGED = "✓"
    FAILED = "✗"
    NONE = " "


_RANK = [Mark.WAITING, Mark.STORED, Mark.POSSIBLY, Mark.FAILED, Mark.ACKNOWLEDGED]


@dataclass(slots=True)
class Line:
    """One line; ``turn`` orders remarks after the message that they followed."""

    key: Key
    turn: int
    text: str
    mark: Mark = Mark.NONE
    remark: bool = False

    @property
    def place(self) -> tuple[Key, int]:
        """Where it is shown."""
        return self.key, self.turn

    def __str__(self) -> str:
        return f"  * {self.text}" if self.remark else f"{self.mark.value} {self.text}"


class Transcript:
    """Lines by the order of the log: 500 at most, the oldest make room."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._by_id: dict[str, Line] = {}
        self._turn = 0

    def take(self, event: ChannelEvent) -> Line | None:
        """Note an event; the line that is new, if any."""
        match event:
            case Message():
                return self._message(event)
            case Sent():
                self._mark(event.message_id, Mark.STORED)
            case PossiblyAcknowledged():
                self._mark(event.message_id, Mark.POSSIBLY)
            case Acknowledged():
                self._mark(event.message_id, Mark.ACKNOWLEDGED)
            case GaveUp() | NotStored():
                self._mark(event.message_id, Mark.FAILED)
        said = remark_of(event)
        return None if said is None else self.remark(said)

    def remark(self, text: str) -> Line:
        """Add a remark at the end."""
        last = self.lines[-1].key if self.lines else (0, "")
        return self._insert(Line(last, self._next_turn(), text, remark=True))

    def _message(self, message: Message) -> Line | None:
        if message.message_id in self._by_id:
            return None
        own = Mark.STORED if message.published else Mark.WAITING
        mark = own if message.own else Mark.NONE
        line = Line(message.key, 0, text_of(message), mark)
        self._by_id[message.message_id] = line
        return self._insert(line)

    def _mark(self, message_id: str, mark: Mark) -> None:
        line = self._by_id.get(message_id)
        if line is not None and _RANK.index(mark) > _RANK.index(line.mark):
            line.mark = mark

    def _insert(self, line: Line) -> Line:
        insort(self.lines, line, key=lambda each: each.place)
        if len(self.lines) > MAX_SHOWN_LINES:
            gone = self.lines.pop(0)
            self._by_id = {key: each for key, each in self._by_id.items() if each is not gone}
        return line

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn


def text_of(message: Message) -> str:
    """A message as a line: when, who, what. The time is what the sender claims."""
    lamport_ms = min(message.lamport, _MAX_TIME_MS)
    when = format_time(lamport_ms * (NS_PER_S // _MS_PER_S))[:19].replace("T", " ")
    said = safe(message.content.decode("utf-8", "replace"))[:MAX_TEXT_CHARS]
    gap = " (answers what is lost)" if message.unmet else ""
    return f"{when}  {safe(message.sender_id) or 'somebody'}: {said}{gap}"


def remark_of(event: ChannelEvent) -> str | None:
    """What is said of an event besides the messages; None for most."""
    said: str | None = None
    match event:
        case Connected():
            said = f"connected to {safe(event.node)}"
        case Disconnected():
            said = f"{safe(event.node)} is unreachable: {safe(event.sentence)}"
        case NotStored():
            said = f"a message was refused: {safe(event.reason)}"
        case GaveUp():
            said = f"a message was sent {event.sends} times without an acknowledgement"
        case Missing():
            said = f"{len(event.messages):,} missing"
        case Repaired():
            said = f"repair: {event.found:,} of {event.asked:,} came, in {event.calls} calls"
        case Behind() if event.searches == 1:
            who = safe(event.sender_id)
            said = f"{who} has {event.at_least:,} or more messages that are not here: searching"
        case Behind() if event.searches == MAX_SEARCHES:
            said = f"still not found what {safe(event.sender_id)} has: searching everything"
        case CaughtUp():
            said = f"all that {safe(event.sender_id)} has is known here again"
        case Lost():
            said = f"{len(event.message_ids):,} lost for good"
    return said
