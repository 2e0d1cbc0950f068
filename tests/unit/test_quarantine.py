"""Quarantined failures do not fail a run before their date; all others say how to repeat them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import quarantine
from tests.support.quarantine import load, parse

ROOT = Path(__file__).parents[2]
TESTS = """\
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("no server")

def test_passes():
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_fails(tmp_path, number):
    (tmp_path / "node.log").write_text("what the node said")
    print("seed 42")
    assert False, "acknowledged message lost"

def test_cannot_begin(broken):
    pass
"""
CONFTEST = """\
from pathlib import Path
from tests.support.quarantine import Quarantine
from tests.support.repeat import Repeat

def pytest_configure(config):
    config.pluginmanager.register(Repeat())
    config.pluginmanager.register(
        Quarantine(Path(__file__).with_name("quarantine.toml"), config.rootpath)
    )
"""
FUTURE, PAST = "9999-12-31", "2000-01-01"
ALL = ("test_it.py::test_fails", "test_it.py::test_cannot_begin")


def entries(*nodeids: str, until: str = FUTURE) -> str:
    return "".join(
        f'[[test]]\nid = "{nodeid}"\nreason = "A race."\nuntil = {until}\n' for nodeid in nodeids
    )


def run(directory: Path, quarantined: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests above with these entries."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "quarantine.toml").write_text(quarantined)
    (directory / "test_it.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-ra", *arguments],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=120,
        check=False,
    )


def test_a_quarantined_failure_is_shown_and_fails_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, entries(*ALL), "--numprocesses", "2")
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "1 passed, 3 quarantined" in done.stdout
    assert "QUARANTINED FAILURES" in done.stdout
    assert f"quarantined until {FUTURE}: A race." in done.stdout
    assert "acknowledged message lost" in done.stdout
    assert "no server" in done.stdout


def test_an_entry_may_name_one_case_and_holds_until_its_date(tmp_path: Path) -> None:
    past = entries("test_it.py::test_cannot_begin", until=PAST)
    done = run(tmp_path, entries("test_it.py::test_fails[1]") + past)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed, 1 error, 1 quarantined" in done.stdout
    assert f"The test was quarantined until {PAST}: A race." in done.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_does_not_exist_fails_the_run(tmp_path: Path, processes: str) -> None:
    gone = ("test_it.py::test_gone", "test_gone.py::test_fails")
    done = run(tmp_path, entries(*ALL, *gone), "--numprocesses", processes)
    assert done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR)
    for nodeid in gone:
        assert f"quarantine.toml names a test that does not exist: {nodeid}" in done.stdout


def test_a_run_of_one_test_does_not_ask_for_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, entries(*ALL), "test_it.py::test_passes")
    assert done.returncode == pytest.ExitCode.OK, done.stdout


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[test]", "Expected ']]'"),
        ("test = 1", "only tables [[test]]"),
        ("tests = []", "only tables [[test]]"),
        ('[[test]]\nid = "a"\nreason = "b"', "exactly id, reason, until"),
        (entries("a") + "more = 1", "exactly id, reason, until"),
        (entries("a", until='"2030-01-01"'), "until must be a date"),
        (entries("a", until="2030-01-01T00:00:00"), "until must be a date"),
        (entries(""), "id must be a str and not empty"),
        (entries("a", "a"), "named twice"),
    ],
)
def test_a_malformed_file_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace("[", r"\[").replace("]", r"\]")):
        parse(text)


def test_a_malformed_file_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "test = 1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "quarantine.toml: only tables [[test]] are known" in done.stderr


def test_the_file_of_this_repository_is_read() -> None:
    assert all(ROOT.joinpath(entry.path).is_file() for entry in load(quarantine.FILE).values())


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_failure_says_how_to_repeat_it(tmp_path: Path, processes: str) -> None:
    done = run(tmp_path, "", f"--basetemp={tmp_path / 'kept'}", "-k", "fails", "-n", processes)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert """make test 'ARGS='"'"'test_it.py::test_fails[1]'"'"''""" in done.stdout
    assert "seed 42" in done.stdout
    assert "-k fails" in done.stdout
    (log,) = (tmp_path / "kept").rglob("test_fails_1_0/node.log")
    assert f"  {log}\n" in done.stdout
