"""What a run of gossip is made of, drawn from its seed: each has some kinds of fault, not all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sim.dice import Dice, happens
from sim.limits import NS_PER_S
from sim.scenario import Faults, Scenario, drawn
from store.gossip.limits import GossipConfig

_DAY_NS: Final = 24 * 3_600 * NS_PER_S
_HISTORY: Final = 40


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
class GossipScenario:
    """One run: ``base`` is what it has in common with runs of reconciliation.

    ``beside``: nodes reconcile too. ``min_confirms``: what publishers ask for, one of them each
    time. ``events``: the share of messages with SDS metadata, ``strange``: of parents that nobody
    holds. ``retold``: of commits, those that are reported again. ``kept_batches``: of its own, that
    a node keeps until their commit is reported. ``tricks``: of the peers that lie, each of which
    connects to ``victims`` honest nodes.

    Faults, as shares of all cases: ``stalls`` and ``silent`` (`sim.network.Weather`), ``pauses`` of
    calls of a store; of crashes, those that are a shutdown are ``gentle``.
    """

    base: Scenario
    beside: bool
    config: GossipConfig
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


def drawn_gossip(dice: Dice, *, beside: bool, nodes: int | None = None) -> GossipScenario:
    """A scenario, with so many nodes if that is given; ``beside``: nodes reconcile too."""
    base = drawn(dice, nodes)
    honest = len(set(base.stores))
    tricks = dice.sample(list(Trick), dice.choice((1, 1, 2))) if happens(dice, 0.5) else []
    return GossipScenario(
        base=_base(dice, base, beside=beside),
        beside=beside,
        config=_config(dice, dice.choice((0, 0, 1, 2))),
        min_confirms=dice.choice(((0,), (0, 0, 1), (0, 1, honest - 1), (honest,))),
        events=dice.choice((0.0, 0.5, 1.0)),
        strange=dice.choice((0.0, 0.05)),
        retold=dice.choice((0.0, 0.2)),
        kept_batches=dice.choice((1_000, 1_000, 1)),
        tricks=tuple(tricks),
        victims=dice.randint(1, base.nodes),
        stalls=dice.choice((0.0, 0.0, 0.02)),
        silent=base.faults.unnoticed / 2,
        pauses=dice.choice((0.0, 0.0, 0.02)),
        # A shutdown takes longer than the pause between two of them where sessions must end.
        gentle=0.0 if beside else dice.choice((0.0, 0.5, 1.0)),
    )


def _base(dice: Dice, base: Scenario, *, beside: bool) -> Scenario:
    """Every message is for every store: policy and retention are the business of other runs."""
    base = replace(
        base,
        retention_ns=(None,) * len(base.retention_ns),
        history=min(base.history, _HISTORY) if beside else 0,
        large_share=0.0,
        small_nodes=frozenset(),
        publish_every_ns=dice.choice((1, 1, 2, 5)) * NS_PER_S,
        faults=_faults(dice, base.faults),
    )
    if beside:
        return base
    return replace(base, ask_every_ns=0, offset_ns=0, faults=alone(base.faults))


def _faults(dice: Dice, faults: Faults) -> Faults:
    """Publishers are heard, and the store fails more often: streams last, and sessions do not."""
    outages_ns = dice.choice((0, 0, 6, 15)) * NS_PER_S
    busy = dice.choice((0.0, 0.0, 0.05, 0.2))
    return replace(
        faults, lost=0.0, twice=0.0, commits_lost=0.0, busy=busy, outage_every_ns=outages_ns
    )


def alone(faults: Faults) -> Faults:
    """Those that gossip alone can repair: who refuses a message for its time is not told again."""
    return replace(faults, jump_every_ns=0, index_lost_every_ns=0, skew_ns=0)


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
