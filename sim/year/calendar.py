"""The calendar of a simulated year, and the scenario that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from reconcile.algorithm.plan import Tuning
from reconcile.limits import SessionLimits, SummaryLimits
from sim.rng import Rng
from sim.scenario import HOUR_NS, Faults, Scenario, drawn
from store.domain.partitioning import DAY_NS
from store.sync.limits import IndexLimits, TransferLimits
from storenode.message.limits import NS_PER_S

STORES: Final = 3


@dataclass(frozen=True, slots=True)
class Calendar:
    """``days`` in all, in months of ``month_days``, which is also how long messages are kept."""

    days: int = 365
    month_days: int = 30

    @property
    def retention_ns(self) -> int:
        """The age at which messages are dropped."""
        return self.month_days * DAY_NS

    def upgrades(self, day: int) -> int | None:
        """Return the phase of an upgrade that is on this day: 0, 1, or None."""
        in_month = day % self.month_days
        return in_month - 1 if in_month in (1, 2) else None

    @property
    def replaced_on(self) -> int:
        """The day on which the last node is replaced, and what it stores is thrown away."""
        return self.days // 3


SHORT: Final = Calendar(days=36, month_days=9)
"""Four months of nine days: what a test has time for."""


def scenario_of(rng: Rng) -> Scenario:
    """Return three stores that call each other: the faults of the year are in its calendar."""
    everyone = [tuple(other for other in range(STORES) if other != one) for one in range(STORES)]
    return replace(
        drawn(rng, STORES),
        stores=tuple(range(STORES)),
        peers=tuple(everyone),
        retention_ns=(None,) * STORES,
        partition_ns=DAY_NS,
        history=0,
        moments=1,
        clients=2,
        publish_every_ns=3 * HOUR_NS,
        ask_every_ns=0,
        sds_share=0.0,
        large_share=0.0,
        small_nodes=frozenset(),
        plain_nodes=frozenset(range(STORES)),
        forged=False,
        interval_ns=8 * HOUR_NS,
        wide_ns=24 * HOUR_NS,
        range_ns=24 * HOUR_NS,
        offset_ns=NS_PER_S,
        index=IndexLimits(settle_s=6 * 3_600.0),
        written_ids=1_000,
        online_every_s=3_600.0,
        limits=SessionLimits(),
        tuning=Tuning(),
        transfer=TransferLimits(),
        summary=SummaryLimits(),
        faults=Faults(**dict.fromkeys([each.name for each in fields(Faults)], 0)),
    )
