"""The state of a channel, and what happens in it, in plain words."""

from __future__ import annotations

from typing import Final

from storenode.cli.client.text import counted, safe
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

_JOINED: Final = {
    "offline": "offline:",
    "catching up": "catching up from",
    "incomplete": "incomplete, connected to",
    "up to date": "up to date with",
}


def state_of(status: Status) -> str:
    """Where a participant stands, in a few words; the most important first."""
    reason = reason_of(status)
    found = status.node if status.node is not None else reason
    said = [" ".join([_JOINED[_connection(status)], safe(found)]) if found else "connecting"]
    if status.node is not None and reason:
        said.append(reason)
    return ", ".join(said + lacks_of(status) + owed_of(status))


def brief_state_of(status: Status) -> str:
    """The same for a narrow terminal: without the node, and why there is none."""
    said = [_connection(status)]
    if status.missing or status.waiting:
        said.append(f"{max(status.missing, 1):,} missing")
    if status.behind:
        said.append(f"{status.behind:,} or more not here")
    if status.unpublished:
        said.append(f"{status.unpublished:,} not sent")
    if unconfirmed := _unconfirmed(status):
        said.append(f"{unconfirmed:,} not confirmed")
    if status.node is not None and status.trouble:
        said.append(reason_of(status))
    return ", ".join(said)


def reason_of(status: Status) -> str:
    """The last failure while it lasts, as a part of a sentence."""
    return safe(status.trouble).removesuffix(".")


def _connection(status: Status) -> str:
    if status.node is None:
        return "offline" if status.trouble else "connecting"
    if not status.live:
        return "catching up"
    lacks = status.missing or status.waiting or status.behind
    return "incomplete" if lacks else "up to date"


def _unconfirmed(status: Status) -> int:
    return max(status.unacknowledged - status.unpublished, 0)


def lacks_of(status: Status) -> list[str]:
    """What is not here, and what is done about it."""
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
    """What has become of own messages."""
    said = []
    if status.unpublished:
        said.append(f"{status.unpublished:,} not sent yet")
    if unconfirmed := _unconfirmed(status):
        said.append(f"{unconfirmed:,} not confirmed by anybody yet")
    return said


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
