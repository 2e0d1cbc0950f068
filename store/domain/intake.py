"""Whether a store was taking messages in at some time, from the intervals that it has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from store.domain.coverage import Span
from storenode.message.limits import NS_PER_S

_SLACK_NS: Final = 30 * NS_PER_S
"""What the record may be behind while a node is online: it is written every ten seconds."""


class Intake(StrEnum):
    """What a store did in a span.

    ONLINE: a node took messages in all the time. RESUMED: where none did, the store fetched what
    it had missed from a peer. OFFLINE: for a part, neither is recorded. NEVER: the record begins
    later.
    """

    ONLINE = "online"
    RESUMED = "resumed"
    OFFLINE = "offline"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``start_ns`` to ``end_ns`` a node was online, or its store has resumed that time."""

    start_ns: int
    end_ns: int
    resumed: bool


class IntakeRecord(Protocol):
    """Where intervals are kept. All methods raise `StoreUnavailable` where the database is away."""

    async def record(self, interval: Interval) -> None:
        """Keep an interval; one with the same start and kind grows."""

    async def overlapping(self, start_ns: int, end_ns: int) -> Sequence[Interval]:
        """Those that touch a range, and the first of all."""


def intake_of(span: Span, intervals: Iterable[Interval], now_ns: int) -> Intake:
    """What is recorded of a span that has begun; ``intervals`` as `IntakeRecord.overlapping`."""
    ascending = sorted(intervals, key=lambda each: each.start_ns)
    if not ascending or span[1] <= ascending[0].start_ns:
        return Intake.NEVER
    start_ns, end_ns = span[0], max(span[0], min(span[1], now_ns - _SLACK_NS))
    online = [each for each in ascending if not each.resumed]
    if _covers(online, start_ns, end_ns):
        return Intake.ONLINE
    return Intake.RESUMED if _covers(ascending, start_ns, end_ns) else Intake.OFFLINE


def _covers(ascending: Iterable[Interval], start_ns: int, end_ns: int) -> bool:
    reached_ns = start_ns
    for each in ascending:
        if each.start_ns <= reached_ns:
            reached_ns = max(reached_ns, each.end_ns)
    return reached_ns >= end_ns
