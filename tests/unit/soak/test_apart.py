"""The soak's checker shares no code with what it checks; and its plan is a matter of the seed."""

from __future__ import annotations

from itertools import pairwise

from bench.soak.faults import FAULTS
from bench.soak.plan import plan
from tests.layering.sources import PACKAGES, ROOT, Module

CHECKER = ROOT / "bench/soak/checker"
NEEDED = ["node-killed", "postgres-killed", "failover", "partition"]


def test_the_checker_imports_no_room_but_the_generated_classes() -> None:
    shared = {*PACKAGES, "tests"}
    found = []
    for path in CHECKER.glob("*.py"):
        module = Module.parse(f"bench.soak.checker.{path.stem}", path.read_text(encoding="utf-8"))
        for line, target in module.imports:
            if target.startswith(("bench.soak.checker.", "storenode.wire.")):
                continue
            if target.split(".")[0] in shared | {"bench"}:
                found.append(f"{path.name}:{line} imports {target}")
    assert found == []
    assert len(list(CHECKER.glob("*.py"))) > 5


def test_a_seed_repeats_its_plan_and_another_gives_another() -> None:
    plans = [list(plan(seed, list(FAULTS), 20, 120)) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_every_kind_comes_before_any_comes_again_and_in_time() -> None:
    for seed in range(20):
        planned = list(plan(seed, list(FAULTS), 20, 120))
        assert len(planned) == 10
        assert {each.fault.name for each in planned[: len(FAULTS)]} == FAULTS.keys()
        assert all(each.victim in each.fault.victims for each in planned)
        assert all(
            earlier.at_s + earlier.hold_s < later.at_s for earlier, later in pairwise(planned)
        )
        assert planned[-1].at_s + planned[-1].hold_s < 20 * 60


def test_a_run_shorter_than_the_interval_has_one_fault_within_it() -> None:
    (planned,) = plan(1, NEEDED, 1, 120)
    assert planned.at_s + planned.hold_s < 60


def test_where_no_kind_is_possible_nothing_befalls() -> None:
    assert list(plan(1, [], 20, 120)) == []
