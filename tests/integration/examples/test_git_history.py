"""The example that publishes a git history."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest

from storenode.client.sds_messages import SdsView, sds_view
from tests.integration.examples.repository import git, make_repository
from tests.support.command import Command, Ended
from tests.support.node import NodeProcess, clean_environment, shared_node

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
