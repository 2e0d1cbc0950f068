"""The events of a reliable channel, and the contents that it yields.

Source: RELIABLE-CHANNEL-API, "Type definitions".
"""

from __future__ import annotations

from dataclasses import dataclass

from storenode.sds.log import Key


@dataclass(frozen=True, slots=True)
class Content:
    """A whole content of the log.

    ``request_id`` names it at its sender, and ``key`` is the position of the last segment to come.
    """

    request_id: str
    sender_id: str
    content: bytes
    key: Key
    own: bool


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A report that all segments of another's content came, with the right hash."""

    content: Content


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A report that nodes store all segments; perhaps no participant has received them."""

    request_id: str


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A report that other participants acknowledged all segments; follows `MessageSent`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class MessageSendError:
    """An error: no node took a segment. It is sent again, so a `MessageDelivered` may follow."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class MessageDeliveryError:
    """An error: no participant has acknowledged a segment, which nodes store."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class ContentDropped:
    """A content that is given up.

    Too few segments came in time, there were too many others, or all attempts to assemble it are
    used up. ``received`` is for how many indices some came.
    """

    sender_id: str
    received: int
    count: int


@dataclass(frozen=True, slots=True)
class AssemblyFailed:
    """A report that no choice of segments has the hash of a content.

    There are segments for all ``count`` indices, some of them forged, and ``attempts`` to assemble
    it have failed. A segment that comes later may complete it.
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
