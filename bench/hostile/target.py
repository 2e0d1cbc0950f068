"""What an attack is, and what it is told of the node that it attacks."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses are HOST:PORT; ``http_address`` is empty where the node has no such listener."""

    address: str
    peer_address: str
    metrics_address: str
    http_address: str


Work = Callable[[Target, random.Random, int], Awaitable[str]]
_W = TypeVar("_W", bound=Work)


@dataclass(frozen=True, slots=True)
class Attack:
    """A program against a node, which says what it saw; ``short`` is its ``count`` in the tests.

    ``options`` are those of the node.
    """

    work: Work
    count: int
    short: int
    options: tuple[str, ...]


ATTACKS: dict[str, Attack] = {}
"""By name; filled as the modules of `bench.hostile.attacks` are imported."""


def attack(*, count: int, short: int, options: tuple[str, ...] = ()) -> Callable[[_W], _W]:
    """Make a function an attack, under its own name."""

    def made(work: _W) -> _W:
        ATTACKS[work.__name__] = Attack(work, count, short, options)
        return work

    return made
