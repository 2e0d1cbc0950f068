"""Which fault comes when, by a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from bench.soak.faults import FAULTS, Fault

_MAX_HOLD_S = 40.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault, whom it befalls, when it begins at the earliest, and how long it lasts."""

    fault: Fault
    victim: str
    at_s: float
    hold_s: float


def plan(seed: int, names: Sequence[str], minutes: float, every_s: float) -> Iterator[Planned]:
    """One fault for every ``every_s`` of a run, each kind once before any comes again.

    Each begins after a quarter of its time and lasts a third of it at most; the rest is calm.
    """
    dice = Random(f"{seed}/plan")
    deck: list[str] = []
    every_s = min(every_s, minutes * 60)
    for number in range(int(minutes * 60 / every_s) if names else 0):
        if not deck:
            deck = dice.sample(list(names), len(names))
        fault = FAULTS[deck.pop()]
        hold_s = min(_MAX_HOLD_S, every_s / 3) * dice.uniform(0.4, 1.0)
        yield Planned(fault, dice.choice(fault.victims), number * every_s + every_s / 4, hold_s)
