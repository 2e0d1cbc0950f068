"""The version is set everywhere at once, in a clean tree; the changelog lists what is new."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pages import ROOT
from tools.release import present

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


def git(tree: Path, *arguments: str) -> str:
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
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "All")
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

    git(tree, "commit", "--quiet", "--all", "--message", "Release")
    assert run("version", "90.2.0.dev0").returncode == 0
    changelog = (tree / "CHANGELOG.md").read_text()
    assert changelog.index("## Unreleased") < changelog.index("## 90.1.0 - ")
    assert "newTag: 90.2.0.dev0" in (tree / FILES[-1]).read_text()
    git(tree, "commit", "--quiet", "--all", "--message", "Go on")
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
    assert git(tree, "status", "--porcelain") == ""


def test_a_tree_with_changes_is_refused(tree: Path, run: Run) -> None:
    (tree / "new.txt").touch()
    ended = run("version", "90.1.0")
    assert ended.returncode == 1
    assert "The working tree has changes" in ended.stderr
    assert git(tree, "status", "--porcelain") == "?? new.txt\n"
