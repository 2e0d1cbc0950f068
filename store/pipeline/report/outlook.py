"""The expected growth of an archive or a database, computed from its messages a day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from store.pipeline.limits import DAY_NS
from store.pipeline.report.axis import usual_days
from store.pipeline.report.limits import OUTLOOK_DAYS


@dataclass(frozen=True, slots=True)
class Limits:
    """The retention limits of an archive or a database, as in a node's options; None: no limit.

    ``disk_bytes`` is the size of its disk.
    """

    retention_ns: int | None = None
    retention_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The size of an archive or a database, its daily growth, and a forecast.

    ``days`` whole days, the newest, are what ``messages_a_day`` and ``bytes_a_day`` are the means
    of; 0: there is none yet, and nothing can be said. ``age_bytes`` is what the retention by age
    leaves in the long run, ``size_days`` how far back that by size lets it reach, each by itself;
    ``full_in_days`` is when the disk is full under both; None: no such limit, or never.
    """

    messages: int
    stored_bytes: int
    days: int
    messages_a_day: float
    bytes_a_day: float
    age_bytes: float | None = None
    size_days: float | None = None
    full_in_days: float | None = None

    def drops_by_size(self, limits: Limits) -> bool:
        """Return True if the retention by size drops messages before that by age does."""
        size = limits.retention_bytes
        return size is not None and (self.age_bytes is None or size < self.age_bytes)


def outlook_of(messages_by_day: Mapping[int, int], stored_bytes: int, limits: Limits) -> Outlook:
    """Look ahead from a place's messages by day, since the epoch, and the bytes that they take.

    The oldest and the newest day are left out, for they may not be whole, and days far from all
    others (`usual_days`). Every message is taken to be as large as the mean of all.
    """
    messages = sum(messages_by_day.values())
    if not messages:
        return Outlook(0, stored_bytes, 0, 0.0, 0.0)
    oldest, newest = usual_days(messages_by_day)
    first = max(oldest + 1, newest - OUTLOOK_DAYS)
    days = newest - first
    if days <= 0:
        return Outlook(messages, stored_bytes, 0, 0.0, 0.0)
    counted = sum(count for day, count in messages_by_day.items() if first <= day < newest)
    a_day = counted / days
    bytes_a_day = a_day * stored_bytes / messages
    return Outlook(
        messages,
        stored_bytes,
        days,
        a_day,
        bytes_a_day,
        _by_age(bytes_a_day, limits),
        _by_size(bytes_a_day, limits),
        _full(stored_bytes, bytes_a_day, limits),
    )


def _by_age(bytes_a_day: float, limits: Limits) -> float | None:
    if limits.retention_ns is None:
        return None
    # Partitions are days: the oldest goes when all of it is too old.
    return bytes_a_day * (limits.retention_ns / DAY_NS + 1)


def _by_size(bytes_a_day: float, limits: Limits) -> float | None:
    if limits.retention_bytes is None or not bytes_a_day:
        return None
    return limits.retention_bytes / bytes_a_day


def _full(stored_bytes: int, bytes_a_day: float, limits: Limits) -> float | None:
    if limits.disk_bytes is None or not bytes_a_day:
        return None
    kept = (_by_age(bytes_a_day, limits), limits.retention_bytes)
    if any(each is not None and each <= limits.disk_bytes for each in kept):
        return None
    return max(0.0, (limits.disk_bytes - stored_bytes) / bytes_a_day)
