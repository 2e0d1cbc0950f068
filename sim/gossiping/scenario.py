"""What a run of gossip is made of, beyond what every run has (`sim.scenario`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from sim.dice import Dice, happens
from sim.limits import NS_PER_S
from sim.scenario import HOUR_NS, Scenario, drawn
from store.gossip.config import GossipConfig

_SETTLED_NS = 40 * NS_PER_S


class Trick(StrEnum):
    """What a peer does that is none of the honest ones.

    CLAIM: it says of everything that it has heard of that it holds it. INVENT: it announces IDs
    that nobody has ever published, without end. REPEAT: it sends the same bodies over and over.
    ASK: it asks for everything over and over. HOARD: it sends frames that are too large.
    """

    CLAIM = "claim"
    INVENT = "invent"
    REPEAT = "repeat"
    ASK = "ask"
    HOARD = "hoard"


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipScenario:
    """One run. ``base`` is what nodes, networks, disks and clients are like.

    ``beside``: reconciliation runs as well. ``config`` has everything but a store ID.
    ``min_confirms``: what publishers ask for, one of them each time. ``events``: the share of
    messages with SDS metadata, ``strange``: of parents that nobody holds. ``retold``: of commits,
    those that are told twice. ``tricks``: of the peers that lie, each of which calls ``victims``
    honest nodes. ``hour_off``: a node whose clock is an hour off while there are faults.
    ``rolling``: every node is killed in its turn, besides those that crash at random.
    """

    base: Scenario
    beside: bool
    config: GossipConfig
    min_confirms: tuple[int, ...]
    events: float
    strange: float
    retold: float
    tricks: tuple[Trick, ...]
    victims: int
    hour_off: int | None
    replayed: int
    rolling: bool


def drawn_gossip(dice: Dice, *, beside: bool, nodes: int | None = None) -> GossipScenario:
    """A scenario, with so many nodes if that is given."""
    base = drawn(dice, nodes)
    if not beside:
        base = _without_reconciliation(dice, base)
    honest = len(set(base.stores))
    max_confirms = dice.choice((0, 0, 1, 2))
    tricks = dice.sample(list(Trick), dice.choice((1, 1, 2))) if happens(dice, 0.5) else []
    return GossipScenario(
        base=base,
        beside=beside,
        config=_config(dice, max_confirms),
        min_confirms=dice.choice(((0,), (0, 0, 1), (0, 1, honest - 1), (honest,))),
        events=dice.choice((0.0, 0.5, 1.0)),
        strange=dice.choice((0.0, 0.05)),
        retold=dice.choice((0.0, 0.2)),
        tricks=tuple(tricks),
        victims=dice.randint(1, base.nodes),
        hour_off=dice.randint(0, base.nodes - 1) if beside and happens(dice, 0.3) else None,
        replayed=1_000,
        rolling=happens(dice, 0.3),
    )


def _without_reconciliation(dice: Dice, base: Scenario) -> Scenario:
    """Only gossip brings messages from one store to another, so clocks and rules are the same.

    What a peer refuses because its clock is wrong is brought again by a reconciliation only.
    """
    return replace(
        base,
        retention_ns=tuple(None for _ in base.retention_ns),
        history=0,
        moments=1,
        large_share=0.0,
        small_nodes=frozenset(),
        publish_every_ns=dice.choice((1, 1, 2, 5)) * NS_PER_S,
        faults=replace(base.faults, skew_ns=0),
    )


def _config(dice: Dice, max_confirms: int) -> GossipConfig:
    """Small limits make large sets of a few hundred messages, but lose nothing of them."""
    return GossipConfig(
        store_id="",
        max_confirms=max_confirms,
        unread_interval_ns=dice.choice((1, 5, 10)) * NS_PER_S,
        unread_age_ns=24 * HOUR_NS,
        pushed_ids=dice.choice((0, 2, 2_048)),
        frame_ids=dice.choice((1, 7, 64)),
        max_frame_ids=1_024,
        frame_bytes=dice.choice((200, 2_000, 100_000)),
        round_ids=dice.choice((1, 5, 64)),
        unstored_bytes=dice.choice((300, 2_000, 1_000_000)),
        announced_ids=1_024,
        asked_ids=256,
        leaf_ids=dice.choice((1, 3, 64)),
        queued_ids=4_096,
        catch_up_ids=4_096,
        cut_off_ns=dice.choice((10, 60)) * NS_PER_S,
    )
