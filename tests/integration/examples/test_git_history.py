"""The example that publishes a git history, on a repository that is always the same."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from storenode.client.sds_messages import sds_view
from tests.support.command import Command, Ended
from tests.support.node import NodeProcess, clean_environment, shared_node

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


ROOT = Path(__file__).parents[3]
CONTENT_TOPIC = "/git-history/1/commits/proto"
TIMEOUT_S = 100.0

_numbers = itertools.count()

node = shared_node("examples", scope="module")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repositories") / "made")


@pytest.fixture
def channel() -> str:
    return f"channel-{next(_numbers)}"


def example(node: NodeProcess, repo: Path, *options: str) -> Ended:
    script = str(ROOT / "examples" / "git_history.py")
    done = subprocess.run(
        [sys.executable, script, "--node", node.listen, "--repo", str(repo), *options],
        capture_output=True,
        env=clean_environment(),
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def commits_of(repo: Path, *revisions: str) -> dict[str, list[str]]:
    """Return commits and their parents, as git lists them."""
    lines = git(repo, "rev-list", "--parents", *revisions).splitlines()
    return {name: parents for name, *parents in map(str.split, lines)}


def published(node: NodeProcess, channel: str) -> dict[str, list[str]]:
    """Return the commits that are messages of a channel, and their parents."""
    objects = Command.of(node).ok("scan", "--content-topic", CONTENT_TOPIC, "--json").objects
    views = [sds_view(bytes.fromhex(each["message"]["payload"])) for each in objects]
    return {
        view.message_id: [parent for parent, _ in view.parents]
        for view in views
        if view is not None and view.channel_id == channel
    }


@pytest.mark.parametrize("withheld", ["0", "0.1"])
def test_commits_are_messages_whose_history_is_what_git_lists(
    node: NodeProcess, made: Path, channel: str, withheld: str
) -> None:
    flags = ("--withhold", withheld, "--seed", "1", "--verify")
    ended = example(node, made, "--channel", channel, *flags)
    assert ended.code == 0, ended.err
    graph, stored = commits_of(made, "--all"), published(node, channel)
    heads = graph.keys() - {parent for parents in graph.values() for parent in parents}
    # One line for what was published, and one for each head that was compared with git.
    assert {line.partition(":")[0] for line in ended.lines[1:]} == heads
    assert len(graph) - len(stored) == round(len(graph) * float(withheld))
    assert stored == {name: graph[name] for name in stored}


def test_what_is_no_repository_is_refused(node: NodeProcess, tmp_path: Path) -> None:
    ended = example(node, tmp_path)
    assert ended.code == 1
    assert ended.err.startswith(f"git could not read {tmp_path}: ")
    git(tmp_path, "init", "--quiet")
    ended = example(node, tmp_path)
    assert (ended.code, ended.err) == (1, f"The repository {tmp_path} has no commits.\n")
