"""The rule of growth finds leaks, and ignores short work."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from chaos.checker.growth import (
    BYTES_PER_MESSAGE,
    MIB,
    Life,
    Rule,
    Sample,
    check_growth,
    measure_growth,
)

RULE = Rule(warm_up_s=60, least_s=120)
EVERY_S = 2


def make_life(
    value: Callable[[int], float], seconds: int = 600, measure: str = "memory", per_s: int = 0
) -> Life:
    """Return samples of a measure over a life, with ``per_s`` messages a second."""
    samples = [Sample(float(at), value(at), at * per_s) for at in range(0, seconds, EVERY_S)]
    return Life("node a, life 1", measure, samples)


def test_memory_that_grows_is_found() -> None:
    leaking = make_life(lambda at: (150 + at * 0.1) * MIB)
    (found,) = check_growth([leaking], RULE)
    assert found.rule == "not flat"
    assert found.sentence == "node a, life 1: memory grew from 165 to 201 MiB, by more than 33"


NOISE = Random(1)


def filling(at: int) -> float:
    """Return the memory of a node that keeps something of 100 messages a second."""
    return 150 * MIB + at * 100 * BYTES_PER_MESSAGE


@pytest.mark.parametrize(
    ("life", "is_flat"),
    [
        (make_life(lambda _: (150 + NOISE.random() * 20) * MIB), True),
        (make_life(lambda at: (300 - at * 0.1) * MIB), True),
        # A start, and short work.
        (make_life(lambda at: (50 if at < 60 else 170) * MIB), True),
        (make_life(lambda at: (900 if 500 < at < 540 else 150) * MIB), True),
        # Memory may grow with the messages that a node keeps something of.
        (make_life(filling, 1_200, per_s=100), True),
        (make_life(filling, 1_200), False),
        (make_life(filling, 3_600, per_s=100), False),
        *(
            (make_life(lambda at: 20 + at // 10, measure=measure, per_s=per_s), False)
            for measure in ("database connections", "sockets", "files", "threads")
            for per_s in (0, 100)
        ),
        (make_life(lambda at: 20 + at % 5, measure="sockets"), True),
    ],
)
def test_only_growth_is_found(life: Life, is_flat: bool) -> None:
    assert [each.rule for each in check_growth([life], RULE)] == ([] if is_flat else ["not flat"])


def test_a_life_that_is_too_short_is_not_judged() -> None:
    short = make_life(lambda at: at * MIB, seconds=150)
    assert measure_growth(short, RULE) is None
    assert check_growth([short], RULE) == []
    assert make_life(lambda at: (900 if 500 < at < 540 else 150) * MIB).most == 900 * MIB
