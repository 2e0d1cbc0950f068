"""The scenario of a run of relay, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sim.limits import NS_PER_MS
from sim.rng import Rng, happens

MIN_ROUTERS: Final = 3
MAX_ROUTERS: Final = 10
_MAX_LIARS: Final = 4


class Trick(StrEnum):
    """A fault of a liar, which it repeats."""

    ANNOUNCE = "announce"
    """It announces thousands of IDs of messages that do not exist."""
    WITHHOLD = "withhold"
    """It announces each message before the others do, and never sends one."""
    GRAFT = "graft"
    """It asks for a place in the mesh, however often it is pruned."""
    STAY = "stay"
    """It stays in the mesh, does not read a PRUNE, and forwards nothing."""
    DEMAND = "demand"
    """It requests the messages that it hears of, again and again."""
    REFUSE = "refuse"
    """It refuses thousands of messages in advance."""
    SIGN = "sign"
    """It sends the messages that it hears of with a signature."""
    INVALID = "invalid"
    """It sends what is no message."""
    GARBAGE = "garbage"
    """It sends what is no RPC."""
    REPLAY = "replay"
    """It sends old messages."""
    CHURN = "churn"
    """It comes under ever new names, prunes for an hour, and goes."""


PUNISHED: Final = frozenset({Trick.ANNOUNCE, Trick.GRAFT, Trick.SIGN, Trick.INVALID, Trick.GARBAGE})
"""Tricks for which a peer is disconnected in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayScenario:
    """The parameters of a run.

    ``links`` connect routers, the first of each pair is the one that connects. ``leaves``: of the
    routers, the last so many forward nothing. ``losses``: of RPCs, the share that is lost while
    there are faults; ``breaks`` and ``restarts``: how many there are. ``pushes`` False: messages
    that their receiver has not requested are lost, and there are no other faults but liars.
    """

    routers: int
    leaves: int
    links: tuple[tuple[int, int], ...]
    delay_ns: int
    losses: float
    breaks: int
    restarts: int
    tricks: tuple[Trick, ...]
    victims: int
    pushes: bool = True


def drawn_relay(rng: Rng) -> RelayScenario:
    """Draw a scenario: the routers that forward are always connected by links."""
    count = rng.randint(MIN_ROUTERS, MAX_ROUTERS)
    leaves = rng.randint(0, 1)
    links = {(number, rng.randint(0, number - 1)) for number in range(1, count)}
    for _ in range(rng.randint(0, 2 * count)):
        one, two = rng.sample(range(count), 2)
        if (two, one) not in links:
            links.add((one, two))
    for leaf in range(count, count + leaves):
        links |= {(leaf, other) for other in rng.sample(range(count), 2)}
    liars = rng.randint(0, _MAX_LIARS)
    return RelayScenario(
        routers=count + leaves,
        leaves=leaves,
        links=tuple(sorted(links)),
        delay_ns=rng.choice((2, 50, 200)) * NS_PER_MS,
        losses=0.1 if happens(rng, 0.5) else 0.0,
        breaks=rng.choice((0, 4, 20)),
        restarts=rng.choice((0, 1, 3)),
        tricks=tuple(rng.choice(list(Trick)) for _ in range(liars)),
        victims=rng.randint(1, 3),
    )


def without_pushes(scenario: RelayScenario) -> RelayScenario:
    """Return a scenario in which requested messages arrive alone, and all liars withhold some."""
    liars = (Trick.WITHHOLD,) * len(scenario.tricks)
    return replace(scenario, pushes=False, tricks=liars, losses=0.0)
