"""The attacks by name, and the addresses of the node that they attack."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses of a node, HOST:PORT; ``http_address`` is empty without such a listener.

    ``gateway`` and ``gateway_ws`` are multiaddrs of a gateway before the node, if there is one.
    """

    address: str
    peer_address: str
    metrics_address: str
    http_address: str
    gateway: str = ""
    gateway_ws: str = ""


Work = Callable[[Target, random.Random, int], Awaitable[str]]
_W = TypeVar("_W", bound=Work)


@dataclass(frozen=True, slots=True)
class Attack:
    """A program against a node that describes the outcome; tests use ``short`` as its ``count``.

    ``options`` are those of the node. ``on_gateway``: a gateway before it is attacked, and its
    memory and processor time are measured. An attack that takes longer than ``deadline_s`` is
    stopped.
    """

    work: Work
    count: int
    short: int
    options: tuple[str, ...]
    on_gateway: bool
    deadline_s: float


ATTACKS: dict[str, Attack] = {}
"""The attacks by name; the modules of this package fill it when they are imported."""


def attack(
    *,
    count: int,
    short: int,
    options: tuple[str, ...] = (),
    on_gateway: bool = False,
    deadline_s: float = 300.0,
) -> Callable[[_W], _W]:
    """Return a decorator that registers a function as an attack under its name."""

    def made(work: _W) -> _W:
        ATTACKS[work.__name__] = Attack(work, count, short, options, on_gateway, deadline_s)
        return work

    return made
