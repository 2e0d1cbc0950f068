"""The benchmark of two nodes, with little data: it verifies by itself that both become equal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIZES = ("--messages", "3000", "--missing", "30", "--many", "2000")
"""In the end 5,000 messages, for which the compact mode is offered."""


@pytest.mark.long
def test_lines_with_what_each_process_used() -> None:
    command = [sys.executable, "-m", "bench.sync", *SIZES]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    sync, transfer, secured = (json.loads(line) for line in ended.stdout.splitlines())
    assert (sync["benchmark"], sync["messages"], sync["missing_on_each_side"]) == (
        "sync",
        3_000,
        30,
    )
    assert (transfer["benchmark"], transfer["missing_on_one_side"]) == ("transfer", 2_000)
    assert (sync["equality"], sync["compact"]) == ("keyed", False)
    assert (secured["equality"], secured["compact"]) == ("keyed", True)
    assert secured["payload_bytes"] < sync["payload_bytes"]
    for line in (sync, transfer, secured):
        assert line["seconds"] >= line["session_seconds"] > 0
        for side in ("caller", "callee"):
            assert line[f"{side}_node_cpu_s"] >= 0
            assert line[f"{side}_postgres_cpu_s"] >= 0
    assert transfer["ratio"] > 0
