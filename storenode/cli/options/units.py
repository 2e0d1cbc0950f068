"""Durations and sizes as people write them: `90s`, `5m`, `1h30m`, `10GiB`."""

import re
from typing import Final

from storenode.message.limits import NS_PER_S

_DURATION_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    **dict.fromkeys(("s", "sec", "second", "seconds"), NS_PER_S),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * NS_PER_S),
    **dict.fromkeys(("h", "hour", "hours"), 3_600 * NS_PER_S),
    **dict.fromkeys(("d", "day", "days"), 86_400 * NS_PER_S),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400 * NS_PER_S),
}
_SIZE_UNITS_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000**2,
    "gb": 1_000**3,
    "tb": 1_000**4,
    "kib": 1_024,
    "mib": 1_024**2,
    "gib": 1_024**3,
    "tib": 1_024**4,
}

MAX_DURATION_NS: Final = 2**63 - 1
"""The longest duration: what a timestamp in nanoseconds can span (292 years)."""

MAX_SIZE_BYTES: Final = 2**63 - 1

_MAX_TEXT_CHARS: Final = 64
_UNIT = "|".join(sorted(_DURATION_UNITS_NS, key=len, reverse=True))
_DURATION = re.compile(rf"(?:\d+(?:\.\d{{1,9}})?\s*(?:{_UNIT})\s*)+", re.ASCII)
_PART = re.compile(r"(\d+)(?:\.(\d{1,9}))?\s*([a-z]+)", re.ASCII)
_SIZE = re.compile(r"(\d+)(?:\.(\d{1,9}))?\s*([A-Za-z]*)", re.ASCII)


def parse_duration_ns(text: str) -> int:
    """Parse a duration such as `90s`, `1h30m` or `2 days` into nanoseconds; `0` needs no unit.

    Raises:
        ValueError: It is no duration, or one of more than 292 years.
    """
    text = text.strip().lower()
    if text == "0":
        return 0
    if len(text) > _MAX_TEXT_CHARS or not _DURATION.fullmatch(text):
        raise ValueError(
            f"{_shown(text)} is not a duration: write a number and a unit, such as 90s, 5m, 1h"
            " or 30d"
        )
    total = sum(
        _scaled(whole, fraction, unit, _DURATION_UNITS_NS)
        for whole, fraction, unit in _PART.findall(text)
    )
    if total > MAX_DURATION_NS:
        raise ValueError(f"{text!r} is longer than 292 years, the longest duration")
    return total


def parse_size_bytes(text: str) -> int:
    """Parse a size into bytes, such as `10GiB`, `500MB` or `4096`; case does not matter.

    Raises:
        ValueError: It is no size, or one of more than 8 EiB.
    """
    text = text.strip()
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_TEXT_CHARS else None
    if match is None or match[3].lower() not in _SIZE_UNITS_BYTES:
        raise ValueError(
            f"{_shown(text)} is not a size: write a number and a unit, such as 64KiB, 500MB or"
            " 10GiB"
        )
    size = _scaled(match[1], match[2], match[3].lower(), _SIZE_UNITS_BYTES)
    if size > MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is larger than 8 EiB, the largest size")
    return size


def format_size(size_bytes: int) -> str:
    """Format a size for people, with one decimal where it is not a whole number of its unit."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = _SIZE_UNITS_BYTES[unit.lower()]
        if size_bytes >= scale:
            whole = size_bytes % scale == 0
            return f"{size_bytes // scale}{unit}" if whole else f"{size_bytes / scale:.1f}{unit}"
    return f"{size_bytes}B"


def _scaled(whole: str, fraction: str | None, unit: str, units: dict[str, int]) -> int:
    # In integers: a float holds no nanoseconds of a long duration.
    scale = units[unit]
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "...")
