"""Names that strangers have chosen, and figures, as text for people.

What a page shows goes through Jinja's escaping besides; here nothing that does not print, turns the
direction of writing or is endless is left of a name.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Final

from store.pipeline.reading import NO_SHARD
from store.pipeline.report.limits import MAX_NAME_CHARS
from storenode.message.limits import NS_PER_S

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MARKS: Final = frozenset({"Mn", "Me"})
_MAX_MARKS: Final = 2
"""Marks above and below one letter; more are piled up to cover what stands around."""


def shown(name: str, otherwise: str = "(empty)") -> str:
    """Return a name with escapes for what does not print, and cut off."""
    text, marks = [], 0
    for char in name[:MAX_NAME_CHARS]:
        category = unicodedata.category(char)
        marks = marks + 1 if category in _MARKS else 0
        if category in _HIDDEN or marks > _MAX_MARKS:
            text.append(char.encode("unicode_escape", "surrogatepass").decode("ascii"))
        else:
            text.append(char)
    if len(name) > MAX_NAME_CHARS:
        text.append("…")
    return "".join(text) if name.strip() else otherwise


def shard_name(shard: int | None) -> str:
    """Return the name of a shard; None: of all shards."""
    if shard is None:
        return "all shards"
    return "other topics" if shard == NO_SHARD else f"shard {shard}"


def count(number: float, one: str, many: str | None = None) -> str:
    """Return a number of things, such as `1 gap` and `12 gaps`."""
    return f"{number:,.0f} {one if number == 1 else many or one + 's'}"


def size(number: float) -> str:
    """Return bytes to three digits, such as `12.3 MB`."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    for unit in units[:-1]:
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1_000
    return f"{number:,.3g} {units[-1]}"


def given_size(number: int) -> str:
    """Return a configured size in the unit that it was probably given in: `200 GiB`."""
    for places, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number and number % (1 << places) == 0:
            return f"{number >> places:,} {unit}"
    return size(number)


def short_count(number: float) -> str:
    """Return a number for the scale of a drawing, such as `1.5M`."""
    for unit in ("", "k", "M", "G"):
        if abs(number) < 1_000:
            return f"{number:.3g}{unit}"
        number /= 1_000
    return f"{number:,.4g}T"


def span(seconds: float) -> str:
    """Return a length of time in the unit that fits it, such as `2.5 h`; negative: `-30 ms`."""
    sign, rest = ("-" if seconds < 0 else ""), abs(seconds)
    if rest < 1:
        return f"{sign}{rest * 1_000:.0f} ms"
    for limit, unit in ((2 * MINUTE_S, 1), (2 * HOUR_S, MINUTE_S), (2 * DAY_S, HOUR_S)):
        if rest < limit:
            return f"{sign}{rest / unit:.3g} {({1: 's', MINUTE_S: 'min', HOUR_S: 'h'})[unit]}"
    return f"{sign}{rest / DAY_S:,.0f} days"


def moment(ns: int) -> datetime:
    """Return a time in UTC, to the second."""
    return _EPOCH + timedelta(seconds=ns // NS_PER_S)


def time(ns: int) -> str:
    """Return a time to the minute."""
    return f"{moment(ns):%Y-%m-%d %H:%M}"


def day(number: int) -> str:
    """Return a day since the epoch."""
    return f"{_EPOCH + timedelta(days=number):%Y-%m-%d}"
