"""The demo as a user runs it, only quicker: its end, its output, and its leftovers."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.node import COMMAND, clean_environment

TIMEOUT_S = 560.0
QUICK = ("--pace", "10", "--limit", "9m")


def environment(directory: Path) -> dict[str, str]:
    return clean_environment(TMPDIR=str(directory), COLUMNS="100")


def table(output: str, title: str, cells: int = 3) -> list[list[str]]:
    """Return the cells of a table below its heads; they are two spaces or more apart."""
    lines = output.split(title, 1)[1].splitlines()[2:]
    rows: list[list[str]] = []
    for line in lines:
        row = re.split(r" {2,}", line.strip())
        if len(row) < cells:
            return rows
        rows.append(row)
    return rows


def number(cell: str) -> int:
    return 0 if cell == "-" else int(cell.replace(",", ""))


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of all processes that name a directory."""
    lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(directory) in line]


def left_behind(directory: Path) -> list[str]:
    """Return the files in a directory, and the processes that name it."""
    return [*processes_of(directory), *(str(path) for path in directory.iterdir())]


@pytest.mark.timeout(TIMEOUT_S + 20)
def test_everything_comes_back_and_nothing_stays_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "demo", *QUICK],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("SDS message")

    missed, back = (done.stdout.index(words) for words in ("?     missing", "(back from a store"))
    assert done.stdout.index("One conversation") < missed < back

    incidents = table(done.stdout, "What the nodes lacked")
    assert [row[0] for row in incidents] == ["n1", "n2", "n3", "n2"]
    assert {row[-1] for row in incidents} == {"yes"}
    assert number(incidents[2][2]) >= 12_000
    assert number(incidents[3][2]) >= 10_000

    came = {row[0]: number(row[1]) for row in table(done.stdout, "How participants", cells=2)}
    assert came["not at all"] == 0
    # The lines of lena behind the node that is cut off cannot reach the others otherwise.
    assert came["SDS-Repair"] >= 3
    assert "The 3 stores are equal" in done.stdout
    assert "The 12 logs are equal" in done.stdout
    assert left_behind(tmp_path) == []


@pytest.mark.timeout(TIMEOUT_S)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        assert any("One conversation" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, errors) == (130, "")
    assert left_behind(tmp_path) == []
