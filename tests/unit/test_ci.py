"""Checks of a change and releases: what runs, what ends, what is audited and published."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.pages import ROOT
from tools import audit_dependencies
from tools.audit_dependencies import CLEAN, LOCK, UNKNOWN, VULNERABLE, audit, judge, pinned
from tools.release import present

WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow; YAML takes its key `on` for a truth value."""
    loaded: dict[Any, Any] = yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in loaded.items()}


def steps(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from job.get("steps", ())


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in steps(job) if "run" in step)


def planned(*arguments: str) -> str:
    """Return what make would run; each of its lines is shown and none is run."""
    options = ("--dry-run", "--no-print-directory")
    done = subprocess.run(
        ["make", *options, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_long_tests_are_run_where_they_are_asked_for() -> None:
    short, all_, long = planned("test"), planned("test", "LONG=1"), planned("test-long")
    assert "-m 'not long'" in short
    assert "`make test-long` runs them" in short
    assert "not long" not in all_
    assert "test-long" not in all_
    assert " -m long " in long
    assert "-m" not in planned("test", "ARGS=tests/unit").rpartition("pytest ")[2]
    refused = subprocess.run(
        ["bash", ".ci/run", "--short"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stderr) == (2, "usage: .ci/run [--long]\n")
    assert 'make test LONG="$long"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_nothing_is_published_that_was_not_checked() -> None:
    release = workflow("release.yml")
    jobs = release["jobs"]
    assert release["on"] == {"push": {"tags": ["v*"]}}
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    assert {"check", "dist", "wheels"} <= set(jobs["publish"]["needs"])
    assert jobs["images"]["needs"] == "check"
    assert "publish" in jobs["page"]["needs"]
    runners = jobs["wheels"]["strategy"]["matrix"]["runner"]
    assert {runner.partition("-")[0] for runner in runners} == {"macos", "ubuntu"}
    assert any(runner.endswith("-arm") for runner in runners)
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not any("password" in step.get("with", {}) for step in steps(jobs["publish"]))


@pytest.mark.parametrize("name", [path.name for path in sorted(WORKFLOWS.iterdir())])
def test_what_a_workflow_names_exists(name: str) -> None:
    found = workflow(name)
    assert found["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in found["jobs"].values():
        for step in steps(job):
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step["uses"])
            if "file" in step.get("with", {}):
                assert (ROOT / step["with"]["file"]).is_file()
        for path in re.findall(r"(?:tools|\.ci)/[\w.]+", commands(job)):
            assert (ROOT / path).exists(), path
        assert set(re.findall(r"\bmake ([\w-]+)", commands(job))) <= set(targets)


# The audit of the dependencies

GOOD = {"name": "one", "version": "1.0", "vulns": []}
BAD = {"name": "two", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "three", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("dependencies", "expected", "code"),
    [
        ([GOOD], 1, CLEAN),
        ([GOOD, BAD], 2, VULNERABLE),
        ([BAD, SKIPPED], 2, VULNERABLE),
        ([GOOD, SKIPPED], 2, UNKNOWN),
        ([SKIPPED], 1, UNKNOWN),
        ([GOOD], 2, UNKNOWN),
        ([], 1, UNKNOWN),
    ],
)
def test_a_dependency_that_was_not_audited_is_not_clean(
    dependencies: list[dict[str, Any]], expected: int, code: int
) -> None:
    assert judge({"dependencies": dependencies}, expected)[0] == code


def test_a_vulnerability_is_named_with_what_mends_it() -> None:
    _, (first, last) = judge({"dependencies": [BAD]}, 1)
    assert first == "two 2.0: PYSEC-1, mended in 2.1"
    assert "1 known" in last


def test_the_lock_is_counted(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(
        "a==1 \\\n    --hash=sha256:00\n# a remark\n"
        "b[x]==2 ; python_version < '3' \\\n    --hash=sha256:00\nc==3\n"
    )
    assert pinned(lock) == 2
    assert pinned(LOCK) > 100


def test_whatever_pip_audit_says_without_a_report_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "import sys; sys.stderr.write('no route to host'); sys.exit(1)"
    monkeypatch.setattr(audit_dependencies, "_COMMAND", (sys.executable, "-c", says))
    code, (sentence,) = audit(tmp_path / "lock")
    assert (code, "no route to host" in sentence) == (UNKNOWN, True)


# Versions and the changelog

FILES = (
    "CHANGELOG.md",
    "pyproject.toml",
    "packaging/node/pyproject.toml",
    "tools/release.py",
    *(
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("deploy/kubernetes/overlays/*/kustomization.yaml")
    ),
)
Run = Callable[..., subprocess.CompletedProcess[str]]


def run_git(tree: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=tree, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with the files that have the version."""
    for name in FILES:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    changelog = tmp_path / "CHANGELOG.md"
    text = changelog.read_text()
    if "## Unreleased" not in text:
        changelog.write_text(text.replace("\n## ", "\n## Unreleased\n\n- New.\n\n## ", 1))
    run_git(tmp_path, "init", "--quiet")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "--quiet", "--message", "All")
    return tmp_path


@pytest.fixture
def run(tree: Path) -> Run:
    """Return the tool, in that repository."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(tree / "tools" / "release.py"), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def test_a_release_and_what_follows_it(tree: Path, run: Run) -> None:
    assert run("version", "90.1.0").returncode == 0
    library = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    node = tomllib.loads((tree / "packaging/node/pyproject.toml").read_text())["project"]
    assert library["version"] == node["version"] == "90.1.0"
    assert "storenode==90.1.0" in node["dependencies"]
    assert library["optional-dependencies"]["node"] == ["storenode-node==90.1.0"]
    for name in FILES:
        if name != "CHANGELOG.md":
            assert present() not in (tree / name).read_text(), name
    assert "newTag: 90.1.0" in (tree / FILES[-1]).read_text()
    assert "## Unreleased" not in (tree / "CHANGELOG.md").read_text()

    notes = run("notes", "v90.1.0")
    assert notes.returncode == 0
    assert "\n- " in notes.stdout
    assert "## 0.1.0" not in notes.stdout
    assert "tag v90.1.0" in run("notes", "v90.1.1").stderr

    run_git(tree, "commit", "--quiet", "--all", "--message", "Release")
    assert run("version", "90.2.0.dev0").returncode == 0
    changelog = (tree / "CHANGELOG.md").read_text()
    assert changelog.index("## Unreleased") < changelog.index("## 90.1.0 - ")
    assert "newTag: 90.2.0.dev0" in (tree / FILES[-1]).read_text()
    run_git(tree, "commit", "--quiet", "--all", "--message", "Go on")
    assert "nothing under `## Unreleased`" in run("version", "90.2.0").stderr


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("soon", "soon is no version"),
        ("0.0.1", "name a later version"),
        ("90.01", "in its shortest form"),
        ("90.0.0.dev0", "release that, first"),
    ],
)
def test_a_version_that_cannot_follow_is_refused(
    tree: Path, run: Run, version: str, said: str
) -> None:
    ended = run("version", version)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert said in ended.stderr
    assert run_git(tree, "status", "--porcelain") == ""


def test_a_tree_with_changes_is_refused(tree: Path, run: Run) -> None:
    (tree / "new.txt").touch()
    ended = run("version", "90.1.0")
    assert ended.returncode == 1
    assert "The working tree has changes" in ended.stderr
    assert run_git(tree, "status", "--porcelain") == "?? new.txt\n"


# Processes that a run leaves behind

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
    [("ends", None, 3), ("waits", signal.SIGINT, 130), ("waits", signal.SIGTERM, 143)],
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
