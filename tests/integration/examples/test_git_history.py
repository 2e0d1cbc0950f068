"""The example that publishes a git history."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storenode.client.sds_messages import SdsView, sds_view
from tests.integration.examples.repository import git, make_repository
from tests.support.command import Command, Ended
from tests.support.node import NodeProcess, clean_environment, running_node

ROOT = Path(__file__).parents[3]
CONTENT_TOPIC = "/git-history/1/commits/proto"
HEADS = 3
TIMEOUT_S = 100.0

_numbers = itertools.count()


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("examples")
    with running_node(directory / "node", database_url=new_store()) as process:
        yield process


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repositories") / "made")


@pytest.fixture
def channel() -> str:
    return f"channel-{next(_numbers)}"


def example(node: NodeProcess | str, repo: Path, *options: str) -> Ended:
    address = node if isinstance(node, str) else node.listen
    script = str(ROOT / "examples" / "git_history.py")
    done = subprocess.run(
        [sys.executable, script, "--node", address, "--repo", str(repo), *options],
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


def test_the_causal_history_of_any_head_is_what_git_lists(
    node: NodeProcess, made: Path, channel: str
) -> None:
    heads = some_heads(made)
    flags = [flag for head in heads for flag in ("--head", head)]
    ended = example(node, made, "--channel", channel, "--verify", *flags)
    assert ended.code == 0, ended.err
    count = len(commits_of(made, "--all"))
    assert ended.lines[0] == f"published {count} of {count} commits on channel {channel}"
    assert [line.split(":")[0] for line in ended.lines[1:]] == heads
    for head in heads:
        history = commits_of(made, head)
        views, missing = walked(node, channel, head)
        names = [view.message_id for view in views]
        assert sorted(names) == sorted(history)
        assert missing == []
        place = {name: number for number, name in enumerate(names)}
        assert all(place[parent] < place[name] for name in names for parent in history[name])


def test_withheld_commits_that_are_reached_are_missing_and_no_others(
    node: NodeProcess, made: Path, channel: str
) -> None:
    flags = ("--withhold", "0.1", "--seed", "1", "--verify")
    ended = example(node, made, "--channel", channel, *flags)
    assert ended.code == 0, ended.err
    graph = commits_of(made, "--all")
    withheld = set(graph) - published(node, channel)
    assert len(withheld) == round(len(graph) / 10)
    for head in some_heads(made):
        wanted, reached = naive_walk(graph, head, withheld)
        views, missing = walked(node, channel, head)
        assert sorted(view.message_id for view in views) == sorted(wanted)
        assert sorted(missing) == sorted(reached)


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


def test_verification_fails_where_the_channel_was_used_before(
    node: NodeProcess, made: Path, channel: str
) -> None:
    assert example(node, made, "--channel", channel).code == 0
    flags = ("--withhold", "0.1", "--verify", "--head", "main")
    ended = example(node, made, "--channel", channel, *flags)
    assert ended.code == 1
    assert ended.err.startswith("Several messages claim to be the same commit")


def test_what_is_no_repository_is_refused(node: NodeProcess, tmp_path: Path) -> None:
    ended = example(node, tmp_path)
    assert ended.code == 1
    assert ended.err.startswith(f"git could not read {tmp_path}: ")
    git(tmp_path, "init", "--quiet")
    ended = example(node, tmp_path)
    assert (ended.code, ended.err) == (1, f"The repository {tmp_path} has no commits.\n")


def test_a_node_that_is_not_there_is_said_so(made: Path) -> None:
    ended = example("127.0.0.1:1", made)
    assert ended.code == 1
    assert ended.err.startswith("No node could be reached at 127.0.0.1:1")
