"""The checker of memory and connections bites, and does not bark at a moment's work."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bench.soak.checker.flatness import (
    BYTES_PER_MESSAGE,
    MIB,
    Life,
    Rule,
    Sample,
    check_flat,
    growth,
)

RULE = Rule(warm_up_s=60, least_s=120)
EVERY_S = 2


def life(
    value: Callable[[int], float], seconds: int = 600, measure: str = "memory", per_s: int = 0
) -> Life:
    """Samples of a measure by the seconds of a life, while so many messages come."""
    samples = [Sample(float(at), value(at), at * per_s) for at in range(0, seconds, EVERY_S)]
    return Life("node a, life 1", measure, samples)


def test_memory_that_grows_is_found() -> None:
    leaking = life(lambda at: (150 + at * 0.1) * MIB)
    (found,) = check_flat([leaking], RULE)
    assert found.rule == "not flat"
    assert found.sentence == "node a, life 1: memory grew from 165 to 201 MiB, by more than 33"


def test_memory_that_stays_or_shrinks_is_flat() -> None:
    noise = Random(1)
    assert check_flat([life(lambda _: (150 + noise.random() * 20) * MIB)], RULE) == []
    assert check_flat([life(lambda at: (300 - at * 0.1) * MIB)], RULE) == []


def test_a_start_and_a_moment_of_work_are_not_growth() -> None:
    assert check_flat([life(lambda at: (50 if at < 60 else 170) * MIB)], RULE) == []
    peak = life(lambda at: (900 if 500 < at < 540 else 150) * MIB)
    assert check_flat([peak], RULE) == []
    assert peak.most == 900 * MIB


def test_a_life_that_is_too_short_is_not_judged() -> None:
    short = life(lambda at: at * MIB, seconds=150)
    assert growth(short, RULE) is None
    assert check_flat([short], RULE) == []


@pytest.mark.parametrize("measure", ["database connections", "sockets", "files", "threads"])
def test_connections_that_are_left_open_are_found(measure: str) -> None:
    leaking = life(lambda at: 20 + at // 10, measure=measure)
    assert [each.rule for each in check_flat([leaking], RULE)] == ["not flat"]
    assert check_flat([life(lambda at: 20 + at % 5, measure=measure)], RULE) == []


def test_memory_may_grow_with_the_messages_that_a_node_remembers_and_no_further() -> None:
    def filling(at: int) -> float:
        return 150 * MIB + at * 100 * BYTES_PER_MESSAGE

    assert check_flat([life(filling, 1_200, per_s=100)], RULE) == []
    assert [each.rule for each in check_flat([life(filling, 1_200)], RULE)] == ["not flat"]
    assert [each.rule for each in check_flat([life(filling, 3_600, per_s=100)], RULE)] == [
        "not flat"
    ]


def test_other_measures_may_not_grow_with_messages() -> None:
    leaking = life(lambda at: 20 + at // 10, measure="sockets", per_s=100)
    assert [each.rule for each in check_flat([leaking], RULE)] == ["not flat"]
