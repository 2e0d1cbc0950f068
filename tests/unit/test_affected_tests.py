"""Tests are left out only where a change cannot affect them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tools.affected_tests import FILTERS, ROOT, changed_files, unaffected


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        ("README.md", {"tests/browser"}),
        ("SECURITY.md", set()),
        ("tests/unit/test_site.py", set()),
        ("tests/browser/test_status.py", {"tests/browser"}),
        (
            "store/embedded/process.py",
            {"tests/embedded", "tests/install", "tests/integration/chaos"},
        ),
        ("store/gossip/events.py", {"tests/faults/test_attacks.py", "tests/faults/test_soak.py"}),
        ("store/pipeline/delta.py", {"tests/browser", "tests/integration/pipeline"}),
        ("tests/support/node.py", set(FILTERS)),
        (".ci/run", set(FILTERS)),
    ],
)
def test_a_change_runs_what_it_can_affect(changed: str, run: set[str]) -> None:
    assert run <= set(FILTERS) - set(unaffected([changed]))
    if not run:
        assert unaffected([changed]) == list(FILTERS)


def test_everything_runs_without_a_change() -> None:
    assert unaffected([]) == []


@pytest.mark.parametrize(
    ("tests", "room"), [("tests/sim", "sim"), ("tests/integration/pipeline", "store.pipeline")]
)
def test_a_filter_names_all_that_its_room_imports(tests: str, room: str) -> None:
    graph = grimp.build_graph("reconcile", "sim", "store", "storenode", cache_dir=None)
    for module in graph.find_descendants(room):
        for imported in graph.find_modules_directly_imported_by(module):
            assert imported.replace(".", "/").startswith(FILTERS[tests]), imported


def test_ci_leaves_out_folders_that_make_names(tmp_path: Path) -> None:
    for folder in ("left", "run"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text("def test_it():\n    pass\n")
    (option,) = re.findall(r"left_out\[@\]/#/(--\w+=)", (ROOT / ".ci" / "run").read_text())
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "left",
        "run",
        f"{option}left",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "run/test_run.py::test_it" in done.stdout
    assert "left/" not in done.stdout


def test_filters_name_what_exists() -> None:
    for tests, prefixes in FILTERS.items():
        for path in (tests, *prefixes):
            assert (ROOT / path).exists(), path


def test_changes_are_those_since_the_merge_base(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True)

    assert changed_files(tmp_path) == []
    git("init", "-q", "-b", "main")
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert changed_files(tmp_path) == []
    git("switch", "-q", "-c", "change")
    git("rm", "-q", "a")
    git("commit", "-q", "-m", "second")
    (tmp_path / "b").write_text("new")
    (tmp_path / "d").write_text("d")
    assert changed_files(tmp_path) == ["a", "b", "d"]
    git("switch", "-q", "--discard-changes", "--orphan", "unrelated")
    git("branch", "-q", "-D", "main")
    assert changed_files(tmp_path) == []
