"""The rule of growth finds leaks, and ignores short work."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from chaos.soak.growth import BYTES_PER_MESSAGE, EVERY_S, MIB, Sample, check_growth


def samples(
    value: Callable[[int], float], seconds: int = 600, messages_per_s: int = 0
) -> list[Sample]:
    """Return the samples of a life."""
    times = range(0, seconds, int(EVERY_S))
    return [Sample(float(at), value(at), at * messages_per_s) for at in times]


NOISE = Random(1)


def filling(at: int) -> float:
    """Return the memory of a node that keeps something of 100 messages a second."""
    return 150 * MIB + at * 100 * BYTES_PER_MESSAGE


def short_work(at: int) -> float:
    return (900 if 500 < at < 540 else 150) * MIB


FLAT = {
    "noise": samples(lambda _: (150 + NOISE.random() * 20) * MIB),
    "falling": samples(lambda at: (300 - at * 0.1) * MIB),
    "a start": samples(lambda at: (50 if at < 60 else 170) * MIB),
    "short work": samples(short_work),
    "a node that keeps something of messages": samples(filling, 1_200, 100),
    "too short to judge": samples(lambda at: at * MIB, seconds=150),
}
GROWING = {
    "memory without messages": samples(filling, 1_200),
    "memory beyond the bound of messages": samples(filling, 3_600, 100),
}


@pytest.mark.parametrize("name", [*FLAT, *GROWING])
def test_only_memory_that_grows_is_found(name: str) -> None:
    found = check_growth("node a", "memory", (FLAT | GROWING)[name])
    assert [each.rule for each in found] == ["not flat"] * (name in GROWING)


@pytest.mark.parametrize("measure", ["database connections", "sockets", "files", "threads"])
def test_counts_that_grow_are_found(measure: str) -> None:
    for messages_per_s in (0, 100):
        growing = samples(lambda at: 20 + at // 10, messages_per_s=messages_per_s)
        assert check_growth("node a", measure, growing)
    assert check_growth("node a", measure, samples(lambda at: 20 + at % 5)) == []
