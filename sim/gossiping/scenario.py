"""The scenario of a run of gossip, drawn from its seed: each has some kinds of fault, not all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sim.limits import NS_PER_S
from sim.rng import Rng, happens
from store.gossip.limits import GossipLimits


class Trick(StrEnum):
    """A fault that a lying peer repeats.

    CLAIM: it announces everything that others announce. INVENT: it announces IDs that were never
    published, without end. REPEAT: it sends the same bodies over and over.
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
class GossipScenario:
    """The gossip of a run.

    ``beside``: nodes reconcile too. ``min_confirms``: what publishers ask for, one of them each
    time. ``events``: the share of messages with SDS metadata, ``strange``: of parents that no store
    holds. ``retold``: of commits, those that are reported again. ``kept_batches``: of its own, that
    a node keeps until their commit is reported. ``tricks``: of the peers that lie, each of which
    connects to ``victims`` honest nodes.

    Faults, as shares of all cases: ``stalls`` and ``silent`` (`sim.network.Weather`), ``pauses`` of
    calls of a store; of crashes, those that are a shutdown are ``gentle``.
    """

    beside: bool
    limits: GossipLimits
    max_confirms: int
    min_confirms: tuple[int, ...]
    events: float = 0.0
    strange: float = 0.0
    retold: float = 0.0
    kept_batches: int = 1_000
    replayed: int = 1_000
    tricks: tuple[Trick, ...] = ()
    victims: int = 1
    stalls: float = 0.0
    silent: float = 0.0
    pauses: float = 0.0
    gentle: float = 0.0


def draw_tricks(rng: Rng) -> list[Trick]:
    """Draw what liars do, if there are any."""
    return rng.sample(list(Trick), rng.choice((1, 1, 2))) if happens(rng, 0.5) else []


def draw_gossip(
    rng: Rng, stores: Sequence[int], tricks: Sequence[Trick], unnoticed: float, *, beside: bool
) -> GossipScenario:
    """Draw the gossip among nodes with these stores; ``unnoticed`` is that of the faults."""
    honest = len(set(stores))
    return GossipScenario(
        beside=beside,
        max_confirms=rng.choice((0, 0, 1, 2)),
        limits=_limits(rng),
        min_confirms=rng.choice(((0,), (0, 0, 1), (0, 1, honest - 1), (honest,))),
        events=rng.choice((0.0, 0.5, 1.0)),
        strange=rng.choice((0.0, 0.05)),
        retold=rng.choice((0.0, 0.2)),
        kept_batches=rng.choice((1_000, 1_000, 1)),
        tricks=tuple(tricks),
        victims=rng.randint(1, len(stores)),
        stalls=rng.choice((0.0, 0.0, 0.02)),
        silent=unnoticed / 2,
        pauses=rng.choice((0.0, 0.0, 0.02)),
        # A shutdown takes longer than the pause between two of them where sessions must end.
        gentle=0.0 if beside else rng.choice((0.0, 0.5, 1.0)),
    )


def _limits(rng: Rng) -> GossipLimits:
    """Draw small limits, by which a few hundred messages are a large set."""
    return GossipLimits(
        unread_interval_ns=rng.choice((1, 5, 10)) * NS_PER_S,
        pushed_ids=rng.choice((0, 2, 2_048)),
        frame_ids=rng.choice((1, 7, 64)),
        max_frame_ids=1_024,
        frame_bytes=rng.choice((200, 2_000, 100_000)),
        round_ids=rng.choice((1, 5, 64)),
        unstored_bytes=rng.choice((300, 2_000, 1_000_000)),
        announced_ids=1_024,
        asked_ids=256,
        leaf_ids=rng.choice((1, 3, 64)),
        queued_ids=4_096,
        catch_up_ids=4_096,
        cut_off_ns=rng.choice((10, 60)) * NS_PER_S,
    )
