"""SendRequests: which own segments belong to one `send`, and what has become of them.

The ID of a request is that of the SDS message with its first segment, so it is the same after a
restart. Segments of one request follow each other among the own messages of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storenode.sds.aio.reliable.events import (
    MessageDelivered,
    MessageDeliveryError,
    MessageSendError,
    MessageSent,
    RequestEvent,
)
from storenode.sds.segments import Segment, SegmentSet


@dataclass(slots=True)
class _Request:
    request_id: str
    whole: SegmentSet
    ids: list[str] = field(default_factory=list)
    unsent: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    sent: bool = False
    failed: bool = False
    given_up: int = 0

    @property
    def begun(self) -> bool:
        """A flag: segments are still to come."""
        return len(self.ids) < self.whole.count


class SendRequests:
    """The requests that have not ended."""

    def __init__(self) -> None:
        self._of: dict[str, _Request] = {}
        self._newest: _Request | None = None

    def __len__(self) -> int:
        """Count the requests."""
        return len({id(each) for each in self._of.values()})

    def add(
        self,
        message_id: str,
        segment: Segment,
        *,
        unsent: bool,
        unacknowledged: bool,
        given_up: bool = False,
    ) -> str:
        """Add an own segment, in the order of the log, and return the ID of its request.

        A segment whose first ones are unknown has a request of its own.
        """
        request = self._newest
        follows = (
            request is not None
            and request.begun
            and request.whole == segment.whole
            and segment.index == len(request.ids)
        )
        if request is None or not follows:
            request = self._newest = _Request(message_id, segment.whole)
            request.ids += [""] * segment.index
        request.ids.append(message_id)
        request.given_up += given_up
        if unsent:
            request.unsent.add(message_id)
        if unacknowledged:
            request.open.add(message_id)
        if unsent or unacknowledged:
            self._of[message_id] = request
        return request.request_id

    def loaded(self) -> None:
        """Mark the requests so far as those of an earlier run, which were reported then."""
        for request in self._of.values():
            request.sent = not request.unsent

    def stored(self, message_id: str) -> list[RequestEvent]:
        """Record that a node stores a segment."""
        request = self._of.get(message_id)
        if request is None:
            return []
        request.unsent.discard(message_id)
        request.refused.discard(message_id)
        return self._news(request)

    def refused(self, message_id: str, reason: str) -> list[RequestEvent]:
        """Record that no node stores a segment."""
        request = self._of.get(message_id)
        if request is None:
            return []
        request.unsent.discard(message_id)
        request.refused.add(message_id)
        first, request.failed = not request.failed, True
        error = MessageSendError(request.request_id, reason)
        return [error, *self._news(request)] if first else self._news(request)

    def acknowledged(self, message_id: str) -> list[RequestEvent]:
        """Record that a participant has a segment."""
        request = self._of.get(message_id)
        if request is None:
            return []
        request.open.discard(message_id)
        return self.stored(message_id)

    def given_up(self, message_id: str) -> list[RequestEvent]:
        """Record that a segment was given up without acknowledgement."""
        request = self._of.get(message_id)
        if request is None:
            return []
        request.open.discard(message_id)
        request.given_up += 1
        return self._news(request)

    def _news(self, request: _Request) -> list[RequestEvent]:
        if request.begun or request.unsent:
            return []
        news: list[RequestEvent] = []
        if not request.sent and not request.refused:
            request.sent = True
            news.append(MessageSent(request.request_id))
        if not request.open:
            for each in request.ids:
                self._of.pop(each, None)
            news.append(self._end(request))
        return news

    def _end(self, request: _Request) -> RequestEvent:
        if not request.given_up:
            return MessageDelivered(request.request_id)
        error = (
            f"Nobody has acknowledged {request.given_up} of {request.whole.count} segments, "
            "however often they were sent."
        )
        return MessageDeliveryError(request.request_id, error)
