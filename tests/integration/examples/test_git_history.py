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

from storenode.client.sds_messages import SdsView, sds_view
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
HEADS = 3
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


def some_heads(repo: Path) -> list[str]:
    names = sorted(commits_of(repo, "--all"))
    tips = git(repo, "rev-parse", "--branches", "HEAD").split()
    return [*tips, *random.Random(1).sample(names, min(HEADS, len(names)))]


def walked(node: NodeProcess, channel: str, head: str) -> tuple[list[SdsView], list[str]]:
    """Return the causal history of a head by the command line: what came, and what is missing."""
    ended = Command.of(node)("causal-history", "--channel", channel, head, "--json")
    objects = ended.objects
    # 1: the head itself is missing.
    assert ended.code == int(objects[0].get("missing", {}).get("message_id") == head), ended
    payloads = [bytes.fromhex(o["stored"]["message"]["payload"]) for o in objects if "stored" in o]
    views = [view for payload in payloads if (view := sds_view(payload)) is not None]
    assert len(views) == len(payloads)
    return views, [each["missing"]["message_id"] for each in objects if "missing" in each]


def published(node: NodeProcess, channel: str) -> set[str]:
    objects = Command.of(node).ok("scan", "--content-topic", CONTENT_TOPIC, "--json").objects
    views = [sds_view(bytes.fromhex(each["message"]["payload"])) for each in objects]
    return {view.message_id for view in views if view is not None and view.channel_id == channel}


@pytest.mark.parametrize("withheld", ["0", "0.1"])
def test_a_causal_history_is_what_git_lists_up_to_what_is_missing(
    node: NodeProcess, made: Path, channel: str, withheld: str
) -> None:
    flags = ("--withhold", withheld, "--seed", "1", "--verify")
    ended = example(node, made, "--channel", channel, *flags)
    assert ended.code == 0, ended.err
    graph = commits_of(made, "--all")
    absent = set(graph) - published(node, channel)
    assert len(absent) == round(len(graph) * float(withheld))
    for head in some_heads(made):
        wanted, reached = naive_walk(graph, head, absent)
        views, missing = walked(node, channel, head)
        names = [view.message_id for view in views]
        assert sorted(names) == sorted(wanted)
        assert sorted(missing) == sorted(reached)
        place = {name: number for number, name in enumerate(names)}
        parents = ((name, parent) for name in names for parent in graph[name])
        assert all(place[parent] < place[name] for name, parent in parents if parent in place)


def naive_walk(
    graph: dict[str, list[str]], head: str, withheld: set[str]
) -> tuple[set[str], set[str]]:
    seen, waiting = set(), {head}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name not in withheld:
            waiting |= set(graph[name]) - seen
    return seen - withheld, seen & withheld


def test_what_is_no_repository_is_refused(node: NodeProcess, tmp_path: Path) -> None:
    ended = example(node, tmp_path)
    assert ended.code == 1
    assert ended.err.startswith(f"git could not read {tmp_path}: ")
    git(tmp_path, "init", "--quiet")
    ended = example(node, tmp_path)
    assert (ended.code, ended.err) == (1, f"The repository {tmp_path} has no commits.\n")
