"""The partitions that must exist: calendar units for messages, few wide ones for lookup tables.

Rules.

- Messages: one partition per UTC day from `NEAR_DAYS` before now on; further back one per month,
  and more than `MONTHS_DAYS` back one per year, where the whole unit lies in that zone and nothing
  in it is covered yet; else the next finer unit. Days are never in each other's way, so there is a
  partition for every timestamp. From `CROWDED_AT` partitions on, months serve near now too: every
  statement locks all partitions, and where nothing is dropped days would become thousands.
- Lookup tables ("coarse"): contiguous, and few, so that a probe of all of them stays cheap. What
  lies below the lowest is covered by one partition without a lower bound. From `WIDEN_AT` bounded
  ones on, a new one is as wide as all of them together, so a hundred years without retention have
  eleven, and no store has more than `MAX_COARSE`. They cover every partition of messages from end
  to end (`ends`), whichever of its timestamps it was made for.
- Commits: `COMMITS_PER_PARTITION` positions each, the next one made ahead.

Bounds are inclusive below and exclusive above, as Postgres has them ("Table Partitioning").
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from storenode.message.limits import NS_PER_S

MINUTE_NS: Final = 60 * NS_PER_S
HOUR_NS: Final = 60 * MINUTE_NS
DAY_NS: Final = 24 * HOUR_NS
UNBOUNDED_LOW: Final = -(2**63)
"""Stands for MINVALUE."""
UNBOUNDED_HIGH: Final = 2**63
"""Stands for MAXVALUE: greater than any ``bigint``."""

AHEAD_DAYS: Final = 2
"""Days after today whose partitions exist before they are needed."""
NEAR_DAYS: Final = 60
MONTHS_DAYS: Final = 730
CROWDED_AT: Final = 180
"""Partitions of messages from which on new ones are months."""

MAX_COARSE: Final = 24
WIDEN_AT: Final = 6
RETENTION_PARTS: Final = 4
"""Coarse partitions that one retention period spans."""
ENDLESS_COARSE_DAYS: Final = 92
"""Width of a coarse partition when nothing is dropped by age."""

COMMITS_PER_PARTITION: Final = 1 << 20

_DEFAULT: Final = "DEFAULT"
_BOUNDS: Final = re.compile(
    r"FOR VALUES FROM \((?:MINVALUE|'?(?P<low>-?\d+)'?)\) TO \((?:MAXVALUE|'?(?P<high>-?\d+)'?)\)"
)


@dataclass(frozen=True, slots=True, order=True)
class Bounds:
    """A range of the partition key: ``low`` inclusive, ``high`` exclusive."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not UNBOUNDED_LOW <= self.low < self.high <= UNBOUNDED_HIGH:
            raise ValueError(f"a partition from {self.low} to {self.high} holds nothing")

    def __contains__(self, key: int) -> bool:
        return self.low <= key < self.high

    @property
    def clause(self) -> str:
        """The ``FROM (...) TO (...)`` of CREATE TABLE and ATTACH PARTITION."""
        low = "MINVALUE" if self.low == UNBOUNDED_LOW else str(self.low)
        high = "MAXVALUE" if self.high == UNBOUNDED_HIGH else str(self.high)
        return f"FROM ({low}) TO ({high})"


class Cover:
    """The bounds of a table's partitions, ready to be asked what they contain."""

    def __init__(self, bounds: Iterable[Bounds]) -> None:
        self.bounds: list[Bounds] = sorted(bounds)
        self._lows = [each.low for each in self.bounds]

    def find(self, key: int) -> Bounds | None:
        """Return the partition that contains a key, in logarithmic time."""
        place = bisect_right(self._lows, key) - 1
        return self.bounds[place] if place >= 0 and key < self.bounds[place].high else None

    def spans(self, first: int, last: int) -> bool:
        """Return True if every key from ``first`` to ``last``, both included, has a partition."""
        return self.reaches(first, last) > last

    def reaches(self, first: int, last: int = UNBOUNDED_HIGH) -> int:
        """Return the first key from ``first`` on, itself included, that has no partition.

        Beyond ``last`` it may be one that has.
        """
        reached, place = first, max(0, bisect_right(self._lows, first) - 1)
        while reached <= last and place < len(self.bounds) and self._lows[place] <= reached:
            reached, place = max(reached, self.bounds[place].high), place + 1
        return reached

    def overlaps(self, other: Bounds) -> bool:
        """Return True if a partition with these bounds could not be added."""
        place = bisect_right(self._lows, other.low)
        before = place > 0 and self.bounds[place - 1].high > other.low
        after = place < len(self._lows) and self._lows[place] < other.high
        return before or after

    def check(self) -> None:
        """Verify that no two partitions overlap.

        Raises:
            ValueError: two do.
        """
        for one, other in zip(self.bounds, self.bounds[1:], strict=False):
            if one.high > other.low:
                raise ValueError(f"the partitions {one} and {other} overlap")


def parse_bounds(text: str) -> Bounds | None:
    """Read ``pg_get_expr(relpartbound)``; None for a default partition, which has no bounds.

    Raises:
        ValueError: the text is not about one range of integers.
    """
    if text == _DEFAULT:
        return None
    match = _BOUNDS.fullmatch(text)
    if match is None:
        raise ValueError(f"the partition bound {text!r} is not a range of integers")
    low, high = match["low"], match["high"]
    return Bounds(
        UNBOUNDED_LOW if low is None else int(low), UNBOUNDED_HIGH if high is None else int(high)
    )


def ahead(now_ns: int) -> list[int]:
    """Return timestamps of today and the next days, whose partitions are made ahead."""
    return [now_ns + days * DAY_NS for days in range(AHEAD_DAYS + 1)]


def plan_messages(
    existing: Iterable[Bounds], timestamps: Iterable[int], now_ns: int
) -> list[Bounds]:
    """Return the partitions of messages to create so that each timestamp has one, ascending.

    Raises:
        ValueError: a timestamp is not positive.
    """
    cover, made = Cover(existing), list[Bounds]()
    for ts in sorted(set(timestamps)):
        if cover.find(ts) is not None or (made and ts in made[-1]):
            continue
        if ts <= 0:
            raise ValueError(f"no partition is made for the timestamp {ts}: it must be positive")
        made.append(_fine(ts, now_ns, cover, made[-1].high if made else UNBOUNDED_LOW))
    return made


def ends(fine: Iterable[Bounds], timestamps: Iterable[int]) -> list[int]:
    """Return the first and last key of each partition of messages that has one of the timestamps.

    The lookup tables are to cover all of such a partition, for the messages that it takes later.
    Ascending and distinct.
    """
    cover = Cover(fine)
    units = {cover.find(ts) for ts in timestamps}
    return sorted({key for unit in units if unit is not None for key in (unit.low, unit.high - 1)})


def coarse_width_ns(retention_ns: int | None) -> int:
    """Return the width of a coarse partition; ``retention_ns`` None: nothing is dropped."""
    if retention_ns is None:
        return ENDLESS_COARSE_DAYS * DAY_NS
    span = retention_ns + AHEAD_DAYS * DAY_NS
    return -(-span // (RETENTION_PARTS * DAY_NS)) * DAY_NS


def plan_coarse(
    existing: Iterable[Bounds], timestamps: Iterable[int], now_ns: int, retention_ns: int | None
) -> list[Bounds]:
    """Return the coarse partitions to create so that each timestamp has one, ascending."""
    planned, made = list(existing), list[Bounds]()
    width_ns, today_ns = coarse_width_ns(retention_ns), _day(max(now_ns, 0)).low
    if not planned:
        made.append(Bounds(today_ns, today_ns + width_ns))
    for ts in sorted(set(timestamps), reverse=True):
        if not any(ts in each for each in (*planned, *made)):
            made.append(_coarse([*planned, *made], ts, width_ns))
    return sorted(made)


def plan_commits(existing: Iterable[Bounds], position: int) -> list[Bounds]:
    """Return the partitions of commits to create: that of ``position`` and the next."""
    cover = Cover(existing)
    first = position // COMMITS_PER_PARTITION
    wanted = [
        Bounds(number * COMMITS_PER_PARTITION, (number + 1) * COMMITS_PER_PARTITION)
        for number in (first, first + 1)
    ]
    return [bounds for bounds in wanted if not cover.overlaps(bounds)]


def partition_name(table: str, bounds: Bounds) -> str:
    """Return ``commits_1``, ``hashes_before_20261120`` or ``hashes_20261120``.

    Of messages by the unit: ``messages_20261120``, ``messages_2026m11`` or ``messages_2026``.
    """
    if table == "commits":
        return f"{table}_{bounds.low // COMMITS_PER_PARTITION}"
    if bounds.low == UNBOUNDED_LOW:
        return f"{table}_before_{_calendar(bounds.high):%Y%m%d}"
    form = "%Y%m%d"
    if table == "messages" and bounds != _day(bounds.low):
        form = "%Ym%m" if bounds == _month(bounds.low) else "%Y"
    return f"{table}_{_calendar(bounds.low):{form}}"


def _coarse(planned: Iterable[Bounds], ts: int, width_ns: int) -> Bounds:
    """Return the bounds of a new coarse partition for a timestamp."""
    lower = max((each.high for each in planned if each.high <= ts), default=None)
    higher = min((each.low for each in planned if each.low > ts), default=UNBOUNDED_HIGH)
    if lower is None:
        return Bounds(UNBOUNDED_LOW, higher)
    spans = [each.high - each.low for each in planned if each.low != UNBOUNDED_LOW]
    step = max(width_ns, sum(spans)) if len(spans) >= WIDEN_AT else width_ns
    return Bounds(lower, min(higher, lower + -(-(ts + 1 - lower) // step) * step))


def _fine(ts: int, now_ns: int, cover: Cover, made_up_to: int) -> Bounds:
    today = _day(max(now_ns, 0)).low
    crowded = len(cover.bounds) >= CROWDED_AT
    months_end = UNBOUNDED_HIGH if crowded else today - NEAR_DAYS * DAY_NS
    years_end = today - MONTHS_DAYS * DAY_NS
    for unit, zone_end in ((_year(ts), years_end), (_month(ts), months_end)):
        free = unit.low >= made_up_to and not cover.overlaps(unit)
        if free and unit.high <= zone_end:
            return unit
    return _day(ts)


def _calendar(key: int) -> datetime:
    return datetime.fromtimestamp(key // NS_PER_S, UTC)


def _ns(moment: datetime) -> int:
    return int(moment.timestamp()) * NS_PER_S


def _day(ts: int) -> Bounds:
    low = ts // DAY_NS * DAY_NS
    return Bounds(low, low + DAY_NS)


def _month(ts: int) -> Bounds:
    first = _calendar(ts).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    years, month = divmod(first.month, 12)
    return Bounds(_ns(first), _ns(first.replace(year=first.year + years, month=month + 1)))


def _year(ts: int) -> Bounds:
    first = _calendar(ts).replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    return Bounds(_ns(first), _ns(first.replace(year=first.year + 1)))
