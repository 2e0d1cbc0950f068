"""Names that strangers have chosen, and figures, as text for people.

Jinja escapes HTML. These functions remove what does not print, what turns the direction of writing,
and what is endless.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from store.pipeline.reports import moment
from store.pipeline.source import NO_SHARD
from storenode.message.text import printable

MAX_NAME_CHARS: Final = 120
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
_MARKS: Final = frozenset({"Mn", "Me"})
_MAX_MARKS: Final = 2
"""Marks above and below one letter; more of them would cover the text around it."""


def shown(name: str | None, otherwise: str = "(empty)") -> str:
    """Return a name with escapes for what does not print, cut off after `MAX_NAME_CHARS`."""
    if not name or not name.strip():
        return otherwise
    found, marks = [], 0
    for char in name[:MAX_NAME_CHARS]:
        marks = marks + 1 if unicodedata.category(char) in _MARKS else 0
        found.append(printable(char) if marks <= _MAX_MARKS else ascii(char)[1:-1])
    return "".join(found) + "…" * (len(name) > MAX_NAME_CHARS)


def shard_name(shard: int) -> str:
    """Return the name of a shard."""
    return "other topics" if shard == NO_SHARD else f"shard {shard}"


def count(number: float, one: str, many: str | None = None) -> str:
    """Return a number of things, such as `1 message` and `12 messages`."""
    return f"{number:,.0f} {one if number == 1 else many or one + 's'}"


def span(seconds: int) -> str:
    """Return a length of time of whole hours, such as `12 h` or `28 days`."""
    return f"{seconds // HOUR_S} h" if seconds < 2 * DAY_S else f"{seconds // DAY_S} days"


def time(ns: int | None, otherwise: str = "\N{EN DASH}") -> str:
    """Return a time to the minute."""
    return otherwise if ns is None else f"{moment(ns):%Y-%m-%d %H:%M}"
