"""The random generator of a run, which decides everything that is random in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from store.domain.environment import Random

_T = TypeVar("_T")


class Rng(Random, Protocol):
    """The methods of the standard library's generators that a run uses."""

    def random(self) -> float:
        """Return a number of at least 0 and below 1."""

    def randint(self, a: int, b: int) -> int:
        """Return a whole number from ``a`` to ``b``."""

    def randbytes(self, n: int) -> bytes:
        """Return random bytes."""

    def sample(self, population: Sequence[_T], k: int) -> list[_T]:
        """Return some of a population, each at most once."""


def happens(rng: Rng, share: float) -> bool:
    """Return True in a share of cases; a share of 0 does not use the generator."""
    return share > 0 and rng.random() < share
