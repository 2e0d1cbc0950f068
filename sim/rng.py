"""Chance as an argument: everything that a run leaves to it, from one generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from store.domain.environment import Random

_T = TypeVar("_T")


class Rng(Random, Protocol):
    """The methods of the standard library's generators that a run uses."""

    def random(self) -> float:
        """At least 0 and below 1."""

    def randint(self, a: int, b: int) -> int:
        """A whole number between the two, or one of them."""

    def randbytes(self, n: int) -> bytes:
        """So many bytes."""

    def sample(self, population: Sequence[_T], k: int) -> list[_T]:
        """Some of them, each at most once."""


def happens(rng: Rng, share: float) -> bool:
    """True in such a share of cases; for a share of 0 nothing is asked of the generator."""
    return share > 0 and rng.random() < share
