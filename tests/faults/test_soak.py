"""A short run of the soak: each of the faults that matter most, under load.

What it asserts is what the soak itself asserts, by a checker that shares no code with the nodes.
Each fault alone has tests of its own in this folder, which always run.
The rule for memory and connections looks at lives that are longer than this run's, so it is tried
by `tests/unit/chaos` and by long runs only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = (
    *("node-killed", "postgres-killed", "partition", "failover", "node-replaced"),
    "participant-away",
)
SEED = 20
LIMIT_S = 900


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 60)
def test_a_short_soak_keeps_everything(tmp_path: Path) -> None:
    report = tmp_path / "soak.json"
    faults = [part for name in FAULTS for part in ("--fault", name)]
    command = [sys.executable, "-m", "chaos.soak", "--minutes", "0.5", "--every", "5"]
    done = subprocess.run(
        [*command, "--rate", "0.5", "--seed", str(SEED), "--json", str(report), *faults],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert {each["fault"] for each in found["faults"]} == set(FAULTS)
    assert found["ok"]
    assert found["violations"] == []
    # It would be easy to lose nothing if nothing had been kept.
    assert found["acknowledged"] > 1_000
    kept = found["acknowledged"] - found["lost_as_allowed"]
    assert all(found["stored"][name] >= kept for name in "abc")
    assert found["participants"]["sent"] > 0
