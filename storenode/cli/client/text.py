"""Text for terminals: nothing that a stranger published may move a cursor or change a colour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from storenode.cli.client.limits import PREVIEW_CHARS, SHORT_HASH_CHARS
from storenode.cli.options.types import Parsed
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S
from storenode.message.text import check_nanoseconds, printable

safe: Final = printable

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NS_DIGITS: Final = 9
_LABEL_CHARS: Final = 10
_NUMBER: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def parse_time_ns(text: str) -> int:
    """Return Unix nanoseconds from an RFC 3339 time (`2026-11-20T09:30:00Z`) or a number of them.

    Raises:
        ValueError: It is neither, looks like seconds or milliseconds, or is beyond what a timestamp
            can carry.
    """
    text = text.strip()
    match = _RFC_3339.fullmatch(text)
    if _NUMBER.fullmatch(text):
        time_ns = check_nanoseconds(int(text))
    elif match is not None:
        time_ns = _from_rfc_3339(text, *match.groups())
    else:
        raise ValueError(
            f"{safe(text)!r} is not a time: write it as 2026-11-20T09:30:00Z, or as nanoseconds "
            "since 1970"
        )
    if not -MAX_TIMESTAMP_NS - 1 <= time_ns <= MAX_TIMESTAMP_NS:
        raise ValueError(f"{text} is beyond the times from 1678 to 2262 that a timestamp can name")
    return time_ns


TIME: Final = Parsed("time", "TIME", parse_time_ns)
"""The type of options that are a time."""


def format_time(time_ns: int) -> str:
    """RFC 3339 in UTC with milliseconds; what is finer is left out."""
    seconds, rest_ns = divmod(time_ns, NS_PER_S)
    return f"{_second(seconds)}.{rest_ns // 1_000_000:03d}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    # Messages in the order of time have many in a second.
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def labelled(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines of a report: labels, and behind them what they are about."""
    return (f"{label:<{_LABEL_CHARS}}{value}" for label, value in rows)


def short(digest: bytes) -> str:
    """The first digits of a hash, enough for people to tell messages apart."""
    return digest.hex()[:SHORT_HASH_CHARS]


def preview(payload: bytes) -> str:
    """The beginning of a payload: as text where it is text, else as hexadecimal."""
    try:
        text = safe(payload.decode())
    except UnicodeDecodeError:
        text = "0x" + payload.hex()
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 3] + "..."


def _from_rfc_3339(text: str, day: str, time: str, fraction: str | None, zone: str) -> int:
    offset = "+00:00" if zone in "Zz" else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{offset}")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time of the calendar: {error}") from None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * NS_PER_S + int((fraction or "0").ljust(_NS_DIGITS, "0"))
