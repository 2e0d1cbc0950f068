"""A node as a process: its start, its end, and the end of the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from chaos.node import NodeFailedError, NodeProcess
from tests.support.polling import eventually

SERVING = """
import sys, time
print("serving", file=sys.stderr, flush=True)
print('{"listen": "127.0.0.1:1"}', flush=True)
time.sleep(600)
"""
"""A program in the place of `storenode`, which takes any options."""

PARENT = f"""
import asyncio, pathlib, sys, time
from chaos.node import NodeProcess
node = NodeProcess("n1", pathlib.Path(sys.argv[1]), program=(sys.executable, "-c", {SERVING!r}))
asyncio.run(node.start())
print(node.pid, flush=True)
time.sleep(600)
"""


async def test_a_node_that_ends_by_itself_is_reported_with_its_log(tmp_path: Path) -> None:
    node = NodeProcess("n1", tmp_path, program=(sys.executable, "-c", SERVING))
    await node.start()
    assert node.ready == {"listen": "127.0.0.1:1"}
    os.kill(node.pid, signal.SIGKILL)
    with pytest.raises(NodeFailedError) as failure:
        await node.watch()
    sentence = f"The node n1 was ended by SIGKILL: see {tmp_path / 'n1.log'}."
    assert (failure.value.sentence, failure.value.tail) == (sentence, "serving")


async def test_a_node_that_is_stopped_is_not_reported(tmp_path: Path) -> None:
    node = NodeProcess("n1", tmp_path, program=(sys.executable, "-c", SERVING))
    await node.start()
    await node.stop()
    await node.watch()
    assert not node.running


async def test_a_node_that_does_not_start_is_reported(tmp_path: Path) -> None:
    node = NodeProcess("n1", tmp_path, program=(sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(NodeFailedError, match="n1 ended with code 3 while it started"):
        await node.start()


def test_a_node_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    eventually(lambda: not psutil.pid_exists(pid))
