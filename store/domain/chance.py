"""Chance as an argument: what pure code asks of a generator that its caller has seeded."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Chance(Protocol):
    """The methods of the standard library's generators that are used."""

    def uniform(self, a: float, b: float) -> float:
        """A number between the two."""
        ...

    def choice(self, seq: Sequence[_T]) -> _T:
        """One of them; there must be one."""
        ...

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Change the order in place."""
        ...
