"""A process that is forked for a test is one that executes the command, but for what it imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import warm
from tests.support.node import COMMAND, NodeProcess, clean_environment
from tests.support.pages import ROOT
from tests.support.polling import eventually


def ended(environment: dict[str, str], *arguments: str) -> tuple[int, bytes, bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.popen([COMMAND, *arguments], env=environment, **pipes) as process:
        out, err = process.communicate()
    return process.returncode, out, err


@pytest.mark.parametrize("arguments", [["--version"], ["status", "--odd"], ["run", "--help"]])
def test_it_says_and_ends_as_the_executed_one(arguments: list[str]) -> None:
    executed = subprocess.run(
        [COMMAND, *arguments], capture_output=True, env=clean_environment(), check=False
    )
    found = ended(clean_environment(), *arguments)
    assert found == (executed.returncode, executed.stdout, executed.stderr)


def test_its_settings_are_those_that_it_is_given() -> None:
    code, _, err = ended(clean_environment(STORENODE_ADMIN="127.0.0.1:1"), "status")
    assert (code, b"127.0.0.1:1" in err) == (3, True)


def test_two_have_nothing_of_each_other(tmp_path: Path, database_url: str) -> None:
    nodes = [NodeProcess(tmp_path / name, database_url=database_url) for name in ("one", "two")]
    try:
        first, second = (psutil.Process(node.start().process.pid) for node in nodes)
        assert first.parent() == second.parent() != psutil.Process()
        assert os.getsid(first.pid) == first.pid != os.getsid(second.pid)
        said, told = (
            {Path(f"/proc/{each.pid}/fd/{number}").readlink() for number in (1, 2)}
            for each in (first, second)
        )
        held = {path.readlink() for path in Path(f"/proc/{second.pid}/fd").iterdir()}
        assert told <= held
        assert not said & held
        nodes[0].signal(signal.SIGKILL)
        assert nodes[0].wait() == -signal.SIGKILL
        assert nodes[1].running
    finally:
        for node in nodes:
            node.close()


def test_what_another_environment_would_import_is_executed(tmp_path: Path) -> None:
    arguments = ["run", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    environment = clean_environment(PYTHONHASHSEED="1")
    with warm.popen([COMMAND, *arguments], env=environment, stdout=subprocess.PIPE) as process:
        assert psutil.Process(process.pid).parent() == psutil.Process()
        process.kill()


RUNNER = """
import sys
from pathlib import Path
from tests.support import warm
from tests.support.node import NodeProcess

how, directory, url = sys.argv[1:]
if how == "forked":
    warm.use()
node = NodeProcess(Path(directory), database_url=url).start()
print(node.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["forked", "executed"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_node_ends_with_the_process_that_started_it(
    how: str, number: signal.Signals, tmp_path: Path, database_url: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, how, str(tmp_path / "node"), database_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(PYTHONPATH=str(ROOT)),
    ) as runner:
        assert runner.stdout is not None
        node = psutil.Process(int(runner.stdout.readline()))
        runner.send_signal(number)
        runner.wait()
    # Nobody may collect it: what has ended stays as a zombie then.
    eventually(lambda: not node.is_running() or node.status() == psutil.STATUS_ZOMBIE)
