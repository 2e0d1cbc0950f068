"""What jobs answer: plain data, shown as JSON or as lines for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from storenode.message.limits import NS_PER_S

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Report(Protocol):
    """The result of a job."""

    @property
    def sound(self) -> bool:
        """False when the job found a fault, or could not do all that it was asked for."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""

    def lines(self) -> list[str]:
        """Return the report in words."""


def time_text(ns: int) -> str:
    """Return a time in UTC as RFC 3339 to the second."""
    return f"{_EPOCH + timedelta(seconds=ns // NS_PER_S):%Y-%m-%dT%H:%M:%SZ}"
