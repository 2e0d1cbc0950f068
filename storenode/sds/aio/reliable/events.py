"""What a reliable channel tells, and what it hands out.

Source: RELIABLE-CHANNEL-API, "Type definitions".
"""

from __future__ import annotations

from dataclasses import dataclass

from storenode.sds.pages import Key


@dataclass(frozen=True, slots=True)
class Content:
    """A whole content of the log. ``request_id`` names it at its sender, and ``key`` is the place
    of the segment that completed it.
    """

    request_id: str
    sender_id: str
    content: bytes
    key: Key
    own: bool


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """All segments of another's content came, and they have its hash."""

    content: Content


@dataclass(frozen=True, slots=True)
class MessageSent:
    """Nodes hold all segments. Nobody need have received them."""

    request_id: str


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """Other participants have acknowledged all segments; follows `MessageSent`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class MessageSendError:
    """No node took a segment. It is sent again like all that nobody acknowledges, so a
    `MessageDelivered` may follow.
    """

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class MessageDeliveryError:
    """Nobody has acknowledged a segment, however often it was sent. Nodes hold it."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class ContentDropped:
    """Segments of a content that is given up: too few came in time, there were too many others, or
    all attempts to put it together are used up. ``held`` is for how many indices some came.
    """

    sender_id: str
    held: int
    count: int


@dataclass(frozen=True, slots=True)
class AssemblyFailed:
    """Segments for all ``count`` indices of a content are here, some of them are not the sender's,
    and none of the ``attempts`` to put it together gave its hash. A segment that comes yet may
    complete it.
    """

    sender_id: str
    count: int
    attempts: int


@dataclass(frozen=True, slots=True)
class SegmentRefused:
    """A message that is no segment; the sentence says why."""

    message_id: str
    sender_id: str
    error: str


RequestEvent = MessageSent | MessageDelivered | MessageSendError | MessageDeliveryError
ReliableEvent = MessageReceived | RequestEvent | AssemblyFailed | ContentDropped | SegmentRefused
