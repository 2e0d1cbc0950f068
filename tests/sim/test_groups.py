"""Simulated groups of SDS participants heal: a failure prints its seed and how to repeat it."""

import random
from collections import Counter

import pytest

from sim.groups.scenario import FIXED_MESSAGES, fixed_group
from sim.groups.world import GroupSummary
from sim.run import simulate_group

BATCHES = [*((number, False) for number in range(3)), *((number, True) for number in range(5))]
BATCH = 10
"""What stores do is rarest. `make sim ARGS='--groups 3 --count N'` makes more runs."""

LEAST_RUNS = 6  # of each rare thing


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """Return how many runs had each rare event, and sums of all runs."""
    return Counter()


pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


def run(seed: int, size: int, *, with_store: bool, seen: Counter[str]) -> GroupSummary:
    summary = simulate_group(seed, random.Random(seed), size, with_store=with_store)
    assert summary.members == size
    seen["runs"] += 1
    seen["wrong"] += summary.wrong
    seen["expected thousandths"] += round(1_000 * summary.expected)
    seen["lost"] += bool(summary.lost)
    seen["crashed"] += bool(summary.crashes)
    seen.update(summary.marks.keys())
    seen.update(summary.broadcasts.keys())
    return summary


@pytest.mark.parametrize(("batch", "with_store"), BATCHES)
def test_three_end_with_equal_logs(batch: int, with_store: bool, seen: Counter[str]) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        run(seed, 3, with_store=with_store, seen=seen)


@pytest.mark.parametrize("with_store", [False, True])
def test_fifty_end_with_equal_logs(with_store: bool, seen: Counter[str]) -> None:
    assert run(0, 50, with_store=with_store, seen=seen).lost == 0


def test_three_hundred_end_with_equal_logs(seen: Counter[str]) -> None:
    assert run(1, 300, with_store=True, seen=seen).lost == 0


def test_the_runs_have_come_by_what_they_are_for(seen: Counter[str]) -> None:
    if seen["runs"] < len(BATCHES) * BATCH + 3:
        return
    expected = {
        "a causal history was asked for",
        "a message was forged",
        "a message was read to answer others",
        "a participant crashed before a transaction",
        "a participant crashed between a transaction and what follows from it",
        "a node crashed between a commit and its acknowledgement",
        "a store refused a message for its time",
        "a transaction failed",
        "a view came from the index alone",
        "an answer was truncated",
        "content",
        "crashed",
        "lost",
        "repair",
        "resend",
        "sync",
    }
    assert not {what for what in expected if seen[what] < LEAST_RUNS}


def test_acknowledgements_are_wrong_about_as_often_as_they_say(seen: Counter[str]) -> None:
    assert seen["wrong"] <= 5 + 3 * seen["expected thousandths"] / 1_000


@pytest.mark.parametrize("with_store", [False, True])
def test_the_same_seed_gives_the_same_run(with_store: bool) -> None:
    first, second = (
        simulate_group(5, random.Random(5), 4, with_store=with_store) for _ in range(2)
    )
    assert first == second


def test_fixed_options_are_the_same_at_each_size_and_the_logs_end_equal() -> None:
    small, large = (fixed_group(random.Random(size), size, with_store=True) for size in (10, 500))
    for name in ("config", "limits", "messages", "burst", "talk_ns", "pull_ns", "stores"):
        assert getattr(small, name) == getattr(large, name)
    summary = simulate_group(1, random.Random(1), 20, with_store=True, fixed=True)
    assert (summary.members, summary.stores, summary.lost) == (20, 2, 0)
    assert summary.messages == summary.broadcasts["content"] == FIXED_MESSAGES
    assert summary.store_calls["messages published"] >= FIXED_MESSAGES
