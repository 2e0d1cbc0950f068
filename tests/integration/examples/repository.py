"""A git repository with a history worth walking, always the same."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

COMMITS = 90
BRANCHES = 4
SEED = 13
FIRST_TIME_S = 1_700_000_000
AUTHORS = ("Ada", "Jürgen", "明", "Eve \x1b[31m", "O'Neil")


def git(
    repo: Path, *arguments: str, stdin: bytes = b"", extra: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run git without the tester's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env = {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **extra}
    done = subprocess.run(
        ["git", "-C", str(repo), *arguments], input=stdin, capture_output=True, check=True, env=env
    )
    return done.stdout.decode()


def make_repository(repo: Path) -> Path:
    """Make commits on several branches: merges of two and three, two roots, clocks that lie.

    Made by plumbing with fixed authors and times, so that every run has the same commit IDs.
    """
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch=main")
    tree = git(repo, "hash-object", "-t", "tree", "-w", "--stdin").strip()
    draw = random.Random(SEED)
    tips = [_commit(repo, tree, number, ()) for number in range(2)]
    for number in range(2, COMMITS):
        merged = draw.sample(tips, min(len(tips), draw.choice((1, 1, 1, 2, 3))))
        name = _commit(repo, tree, number, merged)
        forks = len(tips) < BRANCHES and draw.random() < 0.5
        tips = [name, *(tip for tip in tips if forks or tip not in merged)][:BRANCHES]
    for number, tip in enumerate(tips):
        git(repo, "update-ref", f"refs/heads/{'main' if number == 0 else f'side-{number}'}", tip)
    git(repo, "tag", "--annotate", "--message=a tag", "v1", tips[-1], extra=_identity(0))
    return repo


def _commit(repo: Path, tree: str, number: int, parents: Sequence[str]) -> str:
    flags = [flag for parent in parents for flag in ("-p", parent)]
    subject = "" if number == 5 else f"Commit {number}: größer\n\nWith a body.\n"
    arguments = ("commit-tree", tree, *flags)
    return git(repo, *arguments, stdin=subject.encode(), extra=_identity(number)).strip()


def _identity(number: int) -> dict[str, str]:
    # Every seventh clock is a day behind, so that children seem older than their parents.
    time_s = FIRST_TIME_S + 60 * number - (86_400 if number % 7 == 6 else 0)
    author = AUTHORS[number % len(AUTHORS)]
    return {
        "GIT_AUTHOR_NAME": author,
        "GIT_AUTHOR_EMAIL": "someone@example.org",
        "GIT_AUTHOR_DATE": f"{time_s} +0000",
        "GIT_COMMITTER_NAME": "Committer",
        "GIT_COMMITTER_EMAIL": "committer@example.org",
        "GIT_COMMITTER_DATE": f"{time_s} +0100",
    }
