"""Chance as an argument: what the channel asks of a generator that its caller has seeded."""

from typing import Protocol


class Rng(Protocol):
    """The one method of the standard library's generators that is used."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between the two."""
