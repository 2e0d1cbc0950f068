"""What a driver is given of the world: clocks, randomness, a log and counters, as arguments.

A simulation gives its own; then a driver does the same at every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from storenode.sds.rng import Rng

_T = TypeVar("_T")


class Random(Rng, Protocol):
    """The methods of the standard library's generators that are used."""

    def choice(self, seq: Sequence[_T]) -> _T:
        """One of them; there must be one."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Change the order in place."""

    def getrandbits(self, k: int, /) -> int:
        """A number of so many random bits."""


class Log(Protocol):
    """A structured log: an event's name and its fields."""

    def debug(self, event: str, **fields: object) -> object:
        """For whoever looks for a fault."""

    def info(self, event: str, **fields: object) -> object:
        """What happens as it should."""

    def warning(self, event: str, **fields: object) -> object:
        """What an operator may want to look at."""

    def error(self, event: str, **fields: object) -> object:
        """A fault of this node."""


class IntakeCounts(Protocol):
    """Counts messages that came in and were not stored; what was is counted where it is written."""

    def count_intake(self, source: str, duplicate: int, rejected: Mapping[str, int]) -> None:
        """``rejected`` by label of the reason."""


@dataclass(frozen=True, slots=True)
class Environment:
    """``now_ns``: Unix nanoseconds; ``steady_ns``: nanoseconds of a clock that nobody sets."""

    now_ns: Callable[[], int]
    steady_ns: Callable[[], int]
    random: Random
    log: Log
    counts: IntakeCounts
