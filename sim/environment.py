"""What a simulated node gives its drivers of the world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sim.marks import Mark
from store.domain.environment import Environment

if TYPE_CHECKING:
    from sim.process import Process


_MARKS: Final = {"index_lost": Mark.INDEX_LOST, "index_failed": Mark.INDEX_FAILED}


class SimLog:
    """Writes into the trace; an error that a driver logs is a fault of the node."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def debug(self, event: str, **fields: object) -> None:
        """Note it."""
        self._note(event, fields)

    info = warning = debug

    def error(self, event: str, **fields: object) -> None:
        """A driver of a simulated node has no reason for one.

        Raises:
            Violation: always.
        """
        self._note(event, fields)
        error = fields.get("exc_info")
        cause = error if isinstance(error, BaseException) else None
        self._process.judge.fail(f"{self._process.name} logs an error: {event} {cause!r}", cause)

    def _note(self, event: str, fields: Mapping[str, object]) -> None:
        if event in _MARKS:
            self._process.mark(_MARKS[event])
        what = " ".join(f"{name}={value}" for name, value in fields.items())
        self._process.note(f"{event} {what}".rstrip())


class _Counts:
    def count_intake(self, source: str, duplicate: int, rejected: Mapping[str, int]) -> None:
        """Count nothing: the judge sees every message."""


def environment_of(process: Process) -> Environment:
    """The clocks of the node, the generator of the run, and its trace."""
    return Environment(
        now_ns=process.clock.unix_ns,
        steady_ns=process.clock.steady_ns,
        random=process.dice,
        log=SimLog(process),
        counts=_Counts(),
    )
