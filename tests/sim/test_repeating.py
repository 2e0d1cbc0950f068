"""A run can be repeated exactly, also in another process."""

import os
import random
import subprocess
import sys

from sim.run import simulate
from tools.rooms import ROOT


def command(*arguments: str, hash_seed: str) -> str:
    """Return what the command prints, which may not depend on the order of hashes."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-m", "sim", *arguments],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in (8, 10):
        first, second = (simulate(seed, random.Random(seed)) for _ in range(2))
        assert first == second


def test_a_trace_is_the_same_in_every_process() -> None:
    first, second = (
        command("--seed", "8", "--nodes", "3", "--trace", hash_seed=each) for each in ("1", "2")
    )
    assert first == second
    lines = first.splitlines()
    assert "n0     starts" in lines[0]
    assert any("is calm from now on" in line for line in lines)
    assert lines[-1].startswith("seed 8: Summary(digest=")


def test_several_seeds_at_once() -> None:
    lines = command("--seed", "20", "--count", "3", "--nodes", "2", hash_seed="0").splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed 20", "seed 21", "seed 22"]
