"""What a run of gossip is made of, drawn from its seed: each has some kinds of fault, not all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sim.dice import Dice, happens
from sim.limits import NS_PER_S
from store.gossip.config import GossipConfig

MIN_NODES: Final = 2
MAX_NODES: Final = 6

_DAY_NS: Final = 24 * 3_600 * NS_PER_S


class Trick(StrEnum):
    """What a peer does that is none of the honest ones.

    CLAIM: it says of everything that it has heard of that it holds it. INVENT: it announces IDs
    that nobody has ever published, without end. REPEAT: it sends the same bodies over and over.
    ASK: it asks for everything over and over. HOARD: it sends frames that are too large. GARBAGE:
    it sends what is no frame. DEAF: it reads nothing.
    """

    CLAIM = "claim"
    INVENT = "invent"
    REPEAT = "repeat"
    ASK = "ask"
    HOARD = "hoard"
    GARBAGE = "garbage"
    DEAF = "deaf"


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipFaults:
    """Shares of all cases (see `network.Weather` and `store.Disk`); ``..._every_s``: 0 is never.

    ``gentle``: of crashes, those that are a shutdown. ``hour_off``: of nodes, those whose clock is
    an hour off while there are faults.
    """

    breaks: float = 0.0
    stalls: float = 0.0
    unnoticed: float = 0.0
    busy: float = 0.0
    pauses: float = 0.0
    commit_crashes: float = 0.0
    crash_every_s: int = 0
    gentle: float = 0.0
    partition_every_s: int = 0
    outage_every_s: int = 0
    drift_ppm: int = 0
    hour_off: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipScenario:
    """One run.

    ``stores[i]`` is the store of node i, and ``peers[i]`` are the nodes that it connects to.
    ``sync_every_s``: how often two stores are reconciled besides, 0: never. ``min_confirms``: what
    publishers ask for, one of them each time. ``events``: the share of messages with SDS metadata,
    ``strange``: of parents that nobody holds. ``retold``: of commits, those that are reported
    again. ``kept_batches``: of its own, that a node keeps until their commit is reported.
    ``tricks``: of the peers that lie, each of which connects to ``victims`` honest nodes.
    """

    stores: tuple[int, ...]
    peers: tuple[tuple[int, ...], ...]
    sync_every_s: int
    config: GossipConfig
    min_confirms: tuple[int, ...]
    clients: int
    publish_every_s: int
    events: float
    strange: float
    retold: float
    kept_batches: int
    replayed: int
    tricks: tuple[Trick, ...]
    victims: int
    faults_s: int
    network_delay_s: float
    disk_delay_s: float
    faults: GossipFaults

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.stores)


def drawn_gossip(dice: Dice, *, beside: bool, nodes: int | None = None) -> GossipScenario:
    """A scenario, with so many nodes if that is given; ``beside``: stores are reconciled too."""
    count = nodes or dice.choice((2, 2, 3, 3, 3, 4, 4, 5, MAX_NODES))
    stores = list(range(count))
    if count > MIN_NODES and happens(dice, 0.25):
        stores[-1] = dice.randint(0, count - 2)
    honest = len(set(stores))
    tricks = dice.sample(list(Trick), dice.choice((1, 1, 2))) if happens(dice, 0.5) else []
    config = _config(dice, dice.choice((0, 0, 1, 2)))
    return GossipScenario(
        stores=tuple(stores),
        peers=_peers(dice, stores),
        sync_every_s=dice.choice((3, 10)) if beside else 0,
        config=config,
        min_confirms=dice.choice(((0,), (0, 0, 1), (0, 1, honest - 1), (honest,))),
        clients=dice.randint(1, 3),
        publish_every_s=dice.choice((1, 1, 2, 5)),
        events=dice.choice((0.0, 0.5, 1.0)),
        strange=dice.choice((0.0, 0.05)),
        retold=dice.choice((0.0, 0.2)),
        kept_batches=dice.choice((1_000, 1_000, 1)),
        replayed=1_000,
        tricks=tuple(tricks),
        victims=dice.randint(1, count),
        faults_s=dice.randint(15, 50),
        network_delay_s=dice.choice((0.001, 0.01, 0.06)),
        disk_delay_s=dice.choice((0.001, 0.005, 0.03)),
        faults=_faults(dice, beside=beside),
    )


def _peers(dice: Dice, stores: list[int]) -> tuple[tuple[int, ...], ...]:
    """Who connects to whom; the stores are connected, whichever node of a store is reached."""
    count = len(stores)
    everyone = [tuple(other for other in range(count) if other != node) for node in range(count)]
    if count == MIN_NODES:
        return tuple(everyone) if happens(dice, 0.5) else ((1,), ())
    if len(set(stores)) < count:
        return tuple(everyone)
    shape = dice.choice(("mesh", "ring", "line", "star"))
    if shape == "ring":
        return tuple(((node + 1) % count,) for node in range(count))
    if shape == "line":
        return tuple((node + 1,) if node + 1 < count else () for node in range(count))
    if shape == "star":
        return tuple((0,) if node else () for node in range(count))
    return tuple(everyone)


def _faults(dice: Dice, *, beside: bool) -> GossipFaults:
    def share(*most: float) -> float:
        return dice.choice((0.0, *most))

    return GossipFaults(
        breaks=share(0.0, 0.01, 0.05, 0.15),
        stalls=share(0.0, 0.02),
        unnoticed=share(0.5, 1.0),
        busy=share(0.0, 0.05, 0.2),
        pauses=share(0.0, 0.02),
        commit_crashes=share(0.0, 0.02, 0.1),
        crash_every_s=dice.choice((0, 0, 8, 20)),
        gentle=share(0.5, 1.0),
        partition_every_s=dice.choice((0, 0, 10, 25)),
        outage_every_s=dice.choice((0, 0, 6, 15)),
        drift_ppm=dice.choice((0, 200)),
        hour_off=0.3 if beside and happens(dice, 0.3) else 0.0,
    )


def _config(dice: Dice, max_confirms: int) -> GossipConfig:
    """Small limits make large sets of a few hundred messages, but lose nothing of them."""
    return GossipConfig(
        store_id="",
        max_confirms=max_confirms,
        unread_interval_ns=dice.choice((1, 5, 10)) * NS_PER_S,
        unread_age_ns=_DAY_NS,
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
