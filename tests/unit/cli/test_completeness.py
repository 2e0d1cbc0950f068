"""The sentence of ``--coverage``: never more than the steps say."""

from __future__ import annotations

import pytest

from storenode.cli.client.completeness import completeness, sentence
from storenode.cli.errors import CliError
from storenode.client.node import connect
from storenode.client.types import CoverageStep, StoreCoverage

HOUR = 3_600_000_000_000


def equal(store_id: str, until: int, *, compared: int = 5 * HOUR) -> StoreCoverage:
    state = StoreCoverage.UNCONFIRMED if until % HOUR else StoreCoverage.EQUAL
    return StoreCoverage(
        store_id=store_id, state=state, compared_at=compared, equal_until=until, keyed=True
    )


def step(index: int, *stores: StoreCoverage, before_horizon: bool = False) -> CoverageStep:
    return CoverageStep(
        time_start=index * HOUR,
        time_end=(index + 1) * HOUR,
        before_horizon=before_horizon,
        stores=stores,
    )


def test_all_steps_equal_is_complete_as_of_the_earliest_comparison() -> None:
    steps = [step(0, equal("b", HOUR, compared=4 * HOUR)), step(1, equal("b", 2 * HOUR))]
    told = "complete as far as 1 store (b) knew as of 1970-01-01T04:00:00.000Z."
    assert sentence(steps, 2 * HOUR) == f"Coverage: {told}"


def test_a_gap_ends_what_is_complete_although_later_steps_are_equal() -> None:
    steps = [step(0, equal("b", HOUR)), step(1), step(2, equal("b", 3 * HOUR))]
    assert "complete up to 1970-01-01T01:00:00.000Z as far as" in sentence(steps, 3 * HOUR)
    assert "not confirmed by any" in sentence(steps[1:], 3 * HOUR)


def test_part_of_the_last_step_is_enough_if_the_range_ends_in_it() -> None:
    steps = [step(0, equal("b", HOUR)), step(1, equal("b", HOUR + HOUR // 2))]
    assert sentence(steps, HOUR + HOUR // 2).startswith("Coverage: complete as far as")
    assert "complete up to 1970-01-01T01:30:00.000Z" in sentence(steps, HOUR + HOUR // 2 + 1)


def test_one_difference_outweighs_the_stores_that_are_equal() -> None:
    differs = StoreCoverage(store_id="c\x1b", state=StoreCoverage.DIFFERS, compared_at=3 * HOUR)
    told = sentence([step(0, equal("b", HOUR), differs)], HOUR)
    assert told.startswith("Coverage: may be incomplete: differs from 1 store (c")
    assert "1970-01-01T03:00:00.000Z" in told
    assert "\x1b" not in told


def test_below_the_horizon_nothing_is_called_complete() -> None:
    told = sentence([step(0, equal("b", HOUR), before_horizon=True)], HOUR)
    assert told.startswith("Coverage: may be incomplete: the time begins before the horizon")


def test_xor_alone_is_told_and_many_stores_are_counted() -> None:
    stores = [equal(name, HOUR) for name in "abcde"]
    stores[0].keyed = False
    told = sentence([step(0, *stores)], HOUR)
    assert "5 stores (a, b, c and 2 more)" in told
    assert told.endswith(", by XOR.")


def test_a_time_to_come_has_no_coverage() -> None:
    assert sentence([], HOUR) == "Coverage: none, as this time has not come yet."


async def test_a_range_without_start_is_refused_before_any_call() -> None:
    async with connect("127.0.0.1:1") as client:
        with pytest.raises(CliError, match="--coverage needs --from"):
            await completeness(
                client, pubsub_topic=None, content_topics=(), time_start=None, time_end=None
            )
