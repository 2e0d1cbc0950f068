"""A short year: what days leave behind is dropped, and the simulator notices where it is not."""

import random

import pytest

from sim.run import simulate_year
from sim.year import partitions
from sim.year.calendar import SHORT
from store.domain.ports import SyncOutcome
from store.domain.retention import PrunePlan
from store.sync.session.exchange import Exchange
from store.sync.session.report import SessionReport
from tests.sim.mutant import Mutant, replace_with

ENDED = Exchange.ended


def hoarding(exchange: Exchange, report: SessionReport) -> SyncOutcome:
    """Keep every session for as long as the node runs."""
    outcome = ENDED(exchange, report)
    exchange.__dict__.setdefault("hoard", []).append((report, outcome, [[] for _ in range(20)]))
    return outcome


def dropping_nothing(*_tables: object, **_given: object) -> PrunePlan:
    """Leave all partitions where they are."""
    return PrunePlan(())


MUTANTS = {
    "keeps what it knew of each session": Mutant(
        replace_with(Exchange, "ended", hoarding), "memory of n0 .* grows"
    ),
    "drops no partition": Mutant(
        replace_with(partitions, "plan_prune", dropping_nothing), "(messages|commits) of .* grows"
    ),
}


def test_nothing_grows_and_nothing_is_lost() -> None:
    summary = simulate_year(0, random.Random(0), SHORT)
    assert summary.days == SHORT.days
    # What was to happen did.
    assert summary.upgrades == 3 * SHORT.days // SHORT.month_days
    assert summary.crashes
    assert summary.dropped > 3 * (SHORT.days - SHORT.month_days) // 2


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_that_shows_with_the_days_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[name].find(
        monkeypatch, 1, lambda seed: simulate_year(seed, random.Random(seed), SHORT), "--year "
    )
