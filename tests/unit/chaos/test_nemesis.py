"""The schedule of faults is decided by the seed."""

from __future__ import annotations

from itertools import pairwise

from chaos.soak.nemesis import FAULTS, plan


def test_a_seed_repeats_its_plan_and_another_gives_another() -> None:
    plans = [list(plan(seed, list(FAULTS), 20, 120)) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_every_kind_comes_before_any_comes_again_and_in_time() -> None:
    for seed in range(20):
        planned = list(plan(seed, list(FAULTS), 20, 120))
        assert len(planned) == 10
        assert {each.name for each in planned[: len(FAULTS)]} == FAULTS.keys()
        assert all(each.victim in FAULTS[each.name].victims for each in planned)
        assert all(
            earlier.at_s + earlier.length_s < later.at_s for earlier, later in pairwise(planned)
        )
        assert planned[-1].at_s + planned[-1].length_s < 20 * 60


def test_a_short_run_has_one_fault_within_it_if_any_is_possible() -> None:
    (planned,) = plan(1, list(FAULTS), 1, 120)
    assert planned.at_s + planned.length_s < 60
    assert list(plan(1, [], 20, 120)) == []
