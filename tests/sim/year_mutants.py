"""Faults that show with the days: the simulated year must find each."""

from __future__ import annotations

from sim import node
from store.domain.ports import SyncOutcome
from store.domain.retention import PrunePlan
from store.sync.session.exchange import Exchange
from store.sync.session.report import SessionReport
from tests.sim.mutant import Mutant, replace_with

DAYS = 36

_ENDED = Exchange.ended


def _hoard(exchange: Exchange, report: SessionReport) -> SyncOutcome:
    """Keep every session for as long as the node runs."""
    outcome = _ENDED(exchange, report)
    exchange.__dict__.setdefault("hoard", []).append((report, outcome, [[] for _ in range(20)]))
    return outcome


def _drop_nothing(*_tables: object, **_given: object) -> PrunePlan:
    """Leave all partitions where they are."""
    return PrunePlan(())


YEAR_MUTANTS = {
    "keeps what it knew of each session": Mutant(
        replace_with(Exchange, "ended", _hoard), "memory of n0 .* grows", size=DAYS
    ),
    "drops no partition": Mutant(
        replace_with(node, "plan_prune", _drop_nothing),
        "(messages|commits) of .* grows",
        size=DAYS,
    ),
}
