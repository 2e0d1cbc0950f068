"""A run of tests leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

REAPER = Path(__file__).parents[1] / "support" / "reaper.py"
NODE = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("runs", flush=True)
time.sleep(600)
"""
RUN = f"""
import subprocess, sys, time
command = [sys.executable, "-c", {NODE!r}]
node = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
node.stdout.readline()
print(node.pid, flush=True)
for _ in range(6_000 if sys.argv[1] == "waits" else 0):
    time.sleep(0.1)  # in parts: a signal that comes just before a sleep does not end it
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("how", "ending", "code"),
    [
        ("ends", None, 3),
        ("waits", signal.SIGINT, 130),
        ("waits", signal.SIGTERM, 143),
    ],
)
def test_nothing_outlives_the_run(how: str, ending: int | None, code: int) -> None:
    run = subprocess.Popen(
        [sys.executable, REAPER, sys.executable, "-c", RUN, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    node = int(run.stdout.readline())
    if ending == signal.SIGINT:
        os.killpg(run.pid, ending)  # as a terminal does
    elif ending is not None:
        run.send_signal(ending)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == code
    assert f"Ended what the tests left behind: {node} python" in errors
    assert not psutil.pid_exists(node)
