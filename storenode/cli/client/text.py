"""Text for terminals: nothing that a stranger published may move a cursor or change a colour."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from storenode.cli.options.types import Parsed
from storenode.cli.options.units import parse_duration_ns
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S
from storenode.message.text import check_nanoseconds, printable

safe: Final = printable

PREVIEW_CHARS: Final = 100
"""The longest preview of a payload for people."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NS_DIGITS: Final = 9
_NUMBER: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_DATE: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)?)?",
    re.ASCII,
)

TIME_FORMS: Final = (
    "2026-11-20, '2026-11-20 09:30', 2026-11-20T09:30:00Z, 90m (ago), or nanoseconds since 1970"
)
"""The ways to write a time."""


def parse_time_ns(text: str) -> tuple[int, datetime | None]:
    """Return the Unix nanoseconds of a time, and the moment with its zone if that was not given.

    A time is a day, a day with a time of it (in the local zone unless it has one, as RFC 3339 has),
    a duration before now such as `90m`, or a number of nanoseconds since 1970.

    Raises:
        ValueError: It is none of these, looks like seconds or milliseconds, or is beyond what a
            timestamp can carry.
    """
    text, local = text.strip(), None
    if _NUMBER.fullmatch(text):
        time_ns = check_nanoseconds(int(text))
    elif (match := _DATE.fullmatch(text)) is not None:
        time_ns, local = _from_date(text, *match.groups())
    else:
        try:
            time_ns = time.time_ns() - parse_duration_ns(text)
        except ValueError:
            raise ValueError(f"{safe(text)!r} is not a time: write it as {TIME_FORMS}") from None
    if not -MAX_TIMESTAMP_NS - 1 <= time_ns <= MAX_TIMESTAMP_NS:
        raise ValueError(f"{text} is beyond the times from 1678 to 2262 that a timestamp can name")
    return time_ns, local


def note(text: str, end: str = "\n") -> None:
    """Print a remark on standard error."""
    sys.stdout.flush()
    print(safe(text), end=end, file=sys.stderr, flush=True)


def _noted_time(text: str) -> int:
    time_ns, local = parse_time_ns(text)
    if local is not None:
        note(f"{text.strip()} is taken in the local zone: {local.isoformat()}.")
    return time_ns


TIME: Final = Parsed("time", "TIME", _noted_time)
"""The type of options that are a time; a local one is noted with its zone."""


def format_time(time_ns: int) -> str:
    """Return a time by RFC 3339 in UTC, cut to milliseconds."""
    seconds, rest_ns = divmod(time_ns, NS_PER_S)
    second = (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    return f"{second}.{rest_ns // 1_000_000:03d}Z"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def preview(payload: bytes) -> str:
    """Return the beginning of a payload as text if it is text, else as hexadecimal."""
    try:
        text = safe(payload.decode())
    except UnicodeDecodeError:
        text = "0x" + payload.hex()
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 3] + "..."


def _from_date(
    text: str, day: str, time_of_day: str | None, fraction: str | None, zone: str | None
) -> tuple[int, datetime | None]:
    offset = "+00:00" if zone in ("Z", "z") else zone or ""
    try:
        moment = datetime.fromisoformat(f"{day}T{time_of_day or '00:00'}{offset}")
        # The zone of the system, with its summer time at that moment.
        moment = moment if zone else moment.astimezone()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a time of the calendar: {error}") from None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    time_ns = seconds * NS_PER_S + int((fraction or "0").ljust(_NS_DIGITS, "0"))
    return time_ns, None if zone else moment
