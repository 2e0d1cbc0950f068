"""Text of people and strangers: hexadecimal digits, times as numbers, and what does not print."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from storenode.message.limits import NS_PER_S


def printable(text: str) -> str:
    """Return the text with everything that does not print written as an escape.

    Control characters, marks of direction and separators of lines are among it.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Return the same of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


_SCALES: Final = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6}
_FIRST_S: Final = 1_262_304_000
_END_S: Final = 4_102_444_800
"""2010 and 2100: a number that names a time between them in a coarser unit is taken for that."""


def parse_hex(text: str) -> bytes:
    """Return the bytes of hexadecimal digits, which may begin with ``0x``.

    Raises:
        ValueError: It holds something else.
    """
    try:
        return bytes.fromhex(text.strip().removeprefix("0x").removeprefix("0X"))
    except ValueError:
        raise ValueError(
            f"{printable(text)!r} is not hexadecimal: write two digits for a byte"
        ) from None


def check_nanoseconds(time: int) -> int:
    """Return a time in nanoseconds since 1970.

    Raises:
        ValueError: It looks like a time of our days in a coarser unit.
    """
    for unit, per_second in _SCALES.items():
        if _FIRST_S <= time / per_second < _END_S:
            time_ns = time * (NS_PER_S // per_second)
            moment = datetime.fromtimestamp(time // per_second, UTC)
            raise ValueError(
                f"{time} looks like {unit} since 1970; write {time_ns}, which are nanoseconds, or "
                f"{moment:%Y-%m-%dT%H:%M:%SZ}"
            )
    return time
