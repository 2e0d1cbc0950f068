"""The environment of a driver: clocks, randomness, log and counters; a simulation has its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random  # its type alone
from typing import Protocol


class EventLog(Protocol):
    """A structured log: an event's name and its fields."""

    def debug(self, event: str, **fields: object) -> object:
        """Log a detail for debugging."""

    def info(self, event: str, **fields: object) -> object:
        """Log a normal event."""

    def warning(self, event: str, **fields: object) -> object:
        """Log an event that an operator should look at."""

    def error(self, event: str, **fields: object) -> object:
        """Log a fault of this node."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The clocks ``now_ns`` (Unix) and ``steady_ns`` (monotonic), in nanoseconds, and the rest.

    ``count_intake`` counts duplicates and rejected messages, by label of the reason, of a source.
    """

    now_ns: Callable[[], int]
    steady_ns: Callable[[], int]
    random: Random
    log: EventLog
    count_intake: Callable[[str, int, Mapping[str, int]], None]
