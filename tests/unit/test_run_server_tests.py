"""Which runs of tests pass: those in which a few fail once at most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import run_server_tests
from tools.run_server_tests import FAILED, MOST_AGAIN, PASSED

TEST = """\
from pathlib import Path

TRIES = Path(__file__).with_suffix(".tries")

def test_something():
    tries = len(TRIES.read_text()) if TRIES.exists() else 0
    TRIES.write_text("x" * (tries + 1))
    assert tries >= {failures}

def test_another():
    with TRIES.with_name("another").open("a") as file:
        file.write("x")
"""


def run(directory: Path, *failures: int) -> subprocess.CompletedProcess[str]:
    """Run files of tests, of each of which one test fails so often."""
    for number, times in enumerate(failures):
        (directory / f"test_{number}.py").write_text(TEST.format(failures=times))
    (directory / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, run_server_tests.__file__, str(directory), "-p", "xdist.plugin"],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=120,
        check=False,
    )


def tries(directory: Path) -> list[int]:
    return [len(each.read_text()) for each in sorted(directory.glob("*.tries"))]


def test_nothing_is_tried_again_where_all_pass(tmp_path: Path) -> None:
    done = run(tmp_path, 0, 0)
    assert done.returncode == PASSED
    assert tries(tmp_path) == [1, 1]
    assert "FIRST TRY" not in done.stdout


def test_what_fails_once_passes_and_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, 0, 1)
    assert done.returncode == PASSED
    assert tries(tmp_path) == [1, 2]
    assert (tmp_path / "another").read_text() == "xx"
    assert "NOT AT THE FIRST TRY" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("test_1.py::test_something")


@pytest.mark.parametrize("failures", [(0, 2), (1, 2)])
def test_what_fails_twice_fails_the_run(tmp_path: Path, failures: tuple[int, ...]) -> None:
    done = run(tmp_path, *failures)
    assert done.returncode == FAILED
    assert tries(tmp_path)[-1] == 2
    assert "FIRST TRY" not in done.stdout


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    done = run(tmp_path, *[1] * (MOST_AGAIN + 1))
    assert done.returncode == FAILED
    assert tries(tmp_path) == [1] * (MOST_AGAIN + 1)
