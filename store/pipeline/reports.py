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
        """Everything, as JSON has it."""

    def lines(self) -> list[str]:
        """The same in words."""


def time_text(ns: int) -> str:
    """A time as RFC 3339 to the second, in UTC; of slices, which begin at whole minutes."""
    return f"{_EPOCH + timedelta(seconds=ns // NS_PER_S):%Y-%m-%dT%H:%M:%SZ}"
