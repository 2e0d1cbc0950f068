"""Draws from the random generator of a run, which decides everything that is random in it."""

from __future__ import annotations

from random import Random

__all__ = ["Random", "happens"]


def happens(rng: Random, share: float) -> bool:
    """Return True in a share of cases; a share of 0 does not use the generator."""
    return share > 0 and rng.random() < share
