"""Participants, messages and the state of a channel in plain words.

Nothing of a stranger's text moves the cursor, and emoji stay whole.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from storenode.cli.chat.limits import MAX_PEOPLE, MAX_TAG_CHARS, MAX_TEXT_CHARS, MAX_TEXT_ROWS
from storenode.cli.client.text import counted, safe
from storenode.common.bounded import BoundedDict
from storenode.sds.aio.events import (
    ChannelEvent,
    Connected,
    Disconnected,
    NotStored,
    Repaired,
)
from storenode.sds.aio.status import Status
from storenode.sds.events import Behind, CaughtUp, GaveUp, Lost
from storenode.sds.gaps import MAX_SEARCHES

_MS_PER_S: Final = 1_000
_ROW_ENDS: Final = re.compile(r"\r\n|\r|\n")
_FLAG: Final = f"\U0001f3f4[\U000e0020-\U000e007e]{{1,{MAX_TAG_CHARS}}}\U000e007f"
_JOINED: Final = r"(?<=[^\x00-\x7f\s\u200c\u200d])[\u200c\u200d](?=[^\x00-\x7f\s\u200c\u200d])"
_INVISIBLE: Final = re.compile(f"({_FLAG}|{_JOINED})")
"""Characters without a picture of their own that belong to what is beside them: joiners between
two characters of a script or two emoji, and the letters of a region after a black flag."""

_TAB_COLUMNS: Final = 4

NOT_VERIFIED: Final = "(not verified)"
"""Below a message whose ID cannot be recomputed."""

MEANING: Final = (
    "Not verified: the ID of the line is not the hash of what it says, so somebody else may have "
    "made it. If the genuine line comes, it takes its place, and this one is shown as FORGED."
)


def state_of(status: Status) -> str:
    """Describe the state of a participant, the most important first."""
    reason = safe(status.trouble).removesuffix(".")
    where = [f"connected to {safe(status.node)}"] if status.node is not None else []
    last = [reason] if reason else where
    return ", ".join([_connection(status), *lacks_of(status), *owed_of(status), *last])


def _connection(status: Status) -> str:
    if status.node is None:
        return "offline" if status.trouble else "connecting"
    if not status.live:
        return "catching up"
    lacks = status.missing or status.waiting or status.behind
    return "incomplete" if lacks else "up to date"


def lacks_of(status: Status) -> list[str]:
    """Describe the messages that are missing here."""
    said = []
    if status.missing or status.waiting:
        fetching = "being fetched" if status.node else "fetched when a node is reachable"
        said.append(f"{max(status.missing, 1):,} missing, {fetching}")
    if status.behind:
        said.append(f"others have {status.behind:,} or more that are not here: searching")
    if status.lost:
        said.append(f"{status.lost:,} lost for good")
    return said


def owed_of(status: Status) -> list[str]:
    """Describe the own messages that no participant has confirmed."""
    said = []
    if status.unpublished:
        said.append(f"{status.unpublished:,} not sent yet")
    if (unconfirmed := status.unacknowledged - status.unpublished) > 0:
        said.append(f"{unconfirmed:,} not confirmed by anybody yet")
    return said


def remark_of(event: ChannelEvent) -> str | None:
    """Return the remark about an event; None for most."""
    said: str | None = None
    match event:
        case Connected():
            said = f"connected to {safe(event.node)}"
        case Disconnected():
            said = f"{safe(event.node)} is unreachable: {safe(event.sentence)}"
        case NotStored():
            said = f"a message was refused: {safe(event.reason)}"
        case GaveUp():
            said = f"nobody has confirmed a message that was sent {event.sends} times"
        case Repaired() if event.found:
            said = f"fetched {event.found:,} of {counted(event.asked, 'missing message')}"
        case Behind() | CaughtUp():
            said = _search(event)
        case Lost():
            lost = counted(len(event.message_ids), "message")
            said = f"{lost} could not be had from anybody: lost for good"
            if event.early:
                said = f"{lost} were too many to wait for: searching the node for them"
    return said


def _search(event: Behind | CaughtUp) -> str | None:
    who = safe(event.sender_id)
    if isinstance(event, CaughtUp):
        return f"everything that {who} has is here now"
    if event.searches == 1:
        lacking = counted(event.at_least, "message")
        return f"{who} has {lacking} or more that are not here: searching the node for them"
    if event.searches == MAX_SEARCHES:
        return f"what {who} has was not found yet: searching the whole history"
    return None


@dataclass(slots=True)
class ChatMember:
    """A participant: the time of its last message, and its messages that are missing here."""

    last_seen_ms: int = 0
    ahead: int = 0


class ChatMembers:
    """The other participants by name, up to 500, the one with the latest message at the end."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.others = BoundedDict[str, ChatMember](MAX_PEOPLE)
        self.namesakes = False
        """True if another participant writes under the own name."""

    def received(self, name: str, when_ms: int) -> None:
        """Note the time of a message."""
        if name and name != self.own:
            person = self._person(name)
            person.last_seen_ms = max(person.last_seen_ms, min(when_ms, now_ms()))

    def ahead(self, name: str, at_least: int) -> None:
        """Note that a participant has messages that are missing here."""
        self._person(name).ahead = at_least

    def level(self, name: str) -> None:
        """Note that all messages of a participant are here."""
        if name in self.others:
            self.others[name].ahead = 0

    def by_name(self) -> list[tuple[str, ChatMember]]:
        """Return the others in the order of their names."""
        return sorted(self.others.items(), key=lambda item: item[0].casefold())

    def _person(self, name: str) -> ChatMember:
        person = self.others[name] = self.others.get(name) or ChatMember()
        return person


def now_ms() -> int:
    """Return the Unix time in milliseconds."""
    return int(time.time() * _MS_PER_S)


def clock_of(when_ms: int) -> str:
    """Return a time of the day on the clock of the user: hours and minutes."""
    return time.strftime("%H:%M", time.localtime(when_ms / _MS_PER_S))


def standing(name: str, person: ChatMember, lacks: int = 0) -> str:
    """Describe a participant; ``lacks`` counts own messages that it has not received."""
    seen = (
        f"last heard at {clock_of(person.last_seen_ms)}" if person.last_seen_ms else "not heard yet"
    )
    said = [f"{safe(name)}: {seen}"]
    if person.ahead:
        said.append(f"has {counted(person.ahead, 'message')} or more that are not here: searching")
    if lacks:
        here = "is" if lacks == 1 else "are"
        said.append(f"lacks {counted(lacks, 'message')} that {here} here: being sent again")
    return ", ".join(said)


def rows_of(content: bytes) -> list[str]:
    """Return a message as rows that may be printed, at most 64,000 characters in 1,000 rows."""
    text = content.decode("utf-8", "replace")
    rows = _ROW_ENDS.split(text[:MAX_TEXT_CHARS].rstrip())
    shown = [_shown(row) for row in rows[:MAX_TEXT_ROWS]]
    left = [len(text) - MAX_TEXT_CHARS, len(rows) - MAX_TEXT_ROWS]
    said = [
        f"{count:,} more {noun}"
        for count, noun in zip(left, ("characters", "rows"), strict=True)
        if count > 0
    ]
    return [*shown, f"[{' and '.join(said)} not shown]"] if said else shown


def _shown(row: str) -> str:
    row = row.expandtabs(_TAB_COLUMNS)
    if row.isprintable():
        return row
    # Every second part is one that the pattern found.
    parts = _INVISIBLE.split(row)
    return "".join(part if at % 2 else safe(part) for at, part in enumerate(parts))
