"""One conversation as one participant sees it: a line that her link loses, and how it comes back.

What is shown is what her participant reports: events of its channel, and the call by which the
missing line came (`tap`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from store.demo.tap import Way
from storenode.sds.aio.events import ChannelEvent, Message
from storenode.sds.codec import Kind
from storenode.sds.events import Missing, Received

SCRIPT: Final = (
    ("ada", "Is the ferry running tonight?"),
    ("cora", "Yes, until ten."),
    ("ada", "Then bring the crate."),
    ("cora", "I will. Which dock?"),
    ("ada", "Dock four."),
)
LOST: Final = 2
"""The line of the script that the link of `READER` loses."""

READER: Final = "bela"


@dataclass(slots=True)
class Row:
    """A line as its reader has it: ``text`` is empty until it is in her log.

    ``missing_s`` and ``back_s``: when it was found missing, and when it was back, on a clock that
    nobody sets.
    """

    message_id: str
    who: str = ""
    text: str = ""
    missing_s: float | None = None
    back_s: float | None = None
    way: Way | None = None


class Conversation:
    """The rows, in the order of the log; ``tell`` is told of the gap and of its end."""

    def __init__(self, came: Mapping[str, Way], tell: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self.over = False
        self._came = came
        self._tell = tell

    def note(self, event: ChannelEvent) -> None:
        """Take in what the reader's channel reports."""
        match event:
            case Received(message_id, Kind.CONTENT, sender_id):
                self._row(message_id).who = sender_id
            case Missing(messages):
                for each in messages:
                    self._miss(each.message_id)
            case Message():
                self._read(event)

    def gap_s(self, row: Row) -> float:
        """How long a line was missing, or has been so far."""
        if row.missing_s is None:
            return 0.0
        return (time.monotonic() if row.back_s is None else row.back_s) - row.missing_s

    @property
    def gap(self) -> Row | None:
        """The line that was found missing first, whether it is back or not."""
        return next((row for row in self.rows if row.missing_s is not None), None)

    @property
    def whole(self) -> bool:
        """Whether every line of the script is in the reader's log."""
        return len(self.rows) == len(SCRIPT) and all(row.text for row in self.rows)

    def _row(self, message_id: str) -> Row:
        for row in self.rows:
            if row.message_id == message_id:
                return row
        row = Row(message_id)
        self.rows.append(row)
        return row

    def _miss(self, message_id: str) -> None:
        if any(row.message_id == message_id for row in self.rows):
            return
        row = Row(message_id, missing_s=time.monotonic())
        # What names it as a parent came last and waits for it.
        waits = next((at for at, each in enumerate(self.rows) if not each.text), len(self.rows))
        self.rows.insert(waits, row)
        self._tell(f"{READER} misses a line: the next one names it as its parent, and waits")

    def _read(self, message: Message) -> None:
        row = self._row(message.message_id)
        row.who, row.text = message.sender_id, message.content.decode()
        if row.missing_s is not None and row.back_s is None:
            row.back_s, row.way = time.monotonic(), self._came.get(message.message_id)
            self._tell(f"{READER} has it after {self.gap_s(row):.1f} s, {origin(row.way)}")


def origin(way: Way | None) -> str:
    """By which call a line came back, in words."""
    match way:
        case Way.SDS_REPAIR:
            return "from another participant"
        case None:
            return "from a store node"
        case _:
            return f"from a store node, by {way}"
