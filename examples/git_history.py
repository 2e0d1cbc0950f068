"""Publish the history of a git repository as an SDS channel, and check what a node makes of it.

Commits are messages with parents and authors: the commit's ID is the message ID, its parents are
the causal history (with the hash of each parent's message as retrieval hint), its author is the
sender. Messages are published now, so their timestamps are now; the commit's own time goes into
the content, and as milliseconds into the Lamport timestamp, which is always greater than those of
the parents.

With --verify the causal history of each head is fetched in one call and compared with what
`git rev-list` says. With --withhold some commits are not published; then the history must end at
them, and exactly those that it reaches must be listed as missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from storenode.client.messages import hash_of, new_message, outcome_name
from storenode.client.node import NodeClient, connect
from storenode.client.sds_messages import sds_payload, sds_view
from storenode.connection.errors import ClientOptionError, NodeError

if TYPE_CHECKING:
    from storenode.client.types import WakuMessageAndTopic

PUBSUB_TOPIC = "/waku/2/rs/1/0"
CONTENT_TOPIC = "/git-history/1/commits/proto"
MAX_SUBJECT_CHARS = 1_000
MAX_SHOWN = 3
MS_PER_S = 1_000
FIELDS = ("%H", "%P", "%an <%ae>", "%ct", "%s")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ExampleError(Exception):
    """The example cannot continue; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the repository; ``time_s`` is its commit time, Unix time."""

    name: str
    parents: tuple[str, ...]
    author: str
    time_s: int
    subject: str


def git(repo: Path, *arguments: str) -> str:
    """Run git on a repository and return its output.

    Raises:
        ExampleError: git is not installed, or it refuses.
    """
    command = ["git", "-C", str(repo), "-c", "log.showSignature=false", *arguments]
    # Variables of git's own could name another repository, as they do inside a hook.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, check=True, env=env)
    except FileNotFoundError:
        raise ExampleError("There is no git on the path: install it.") from None
    except subprocess.CalledProcessError as error:
        cause = " ".join(error.stderr.decode(errors="replace").split())
        raise ExampleError(f"git could not read {repo}: {cause}") from None
    return done.stdout.decode(errors="replace")


def read_history(repo: Path) -> list[Commit]:
    """Read all commits that a branch, a tag or HEAD reaches, parents before children."""
    line = "%x00".join(FIELDS)
    order = ("--all", "--topo-order", "--reverse")
    text = git(repo, "log", *order, "-z", "--encoding=UTF-8", f"--format=tformat:{line}")
    fields = text.split("\0")
    return [
        Commit(name, tuple(parents.split()), author, int(time_s), subject[:MAX_SUBJECT_CHARS])
        for name, parents, author, time_s, subject in zip(
            *(fields[start::5] for start in range(len(FIELDS))), strict=False
        )
    ]


def heads_of(commits: Sequence[Commit]) -> list[str]:
    """Return the commits that no other commit names as a parent."""
    parents = {parent for commit in commits for parent in commit.parents}
    return [commit.name for commit in commits if commit.name not in parents]


@dataclass
class Channel:
    """Turns commits into messages, parents first; remembers what their children need."""

    name: str
    hashes: dict[str, bytes] = field(default_factory=dict[str, bytes])
    lamports: dict[str, int] = field(default_factory=dict[str, int])
    last_ns: int = 0

    def message(self, commit: Commit) -> WakuMessageAndTopic:
        """Build the message of one commit, with a timestamp that no other has."""
        self.last_ns = max(time.time_ns(), self.last_ns + 1)
        lamport = self.lamport(commit)
        payload = sds_payload(
            self.name,
            commit.name,
            content_of(commit),
            sender_id=commit.author,
            lamport=lamport,
            parents=[(parent, self.hashes.get(parent)) for parent in commit.parents],
        )
        message = new_message(payload, CONTENT_TOPIC, PUBSUB_TOPIC, self.last_ns)
        self.hashes[commit.name] = hash_of(message)
        self.lamports[commit.name] = lamport
        return message

    def lamport(self, commit: Commit) -> int:
        """Return the commit's time in milliseconds, or later if a parent claims to be younger."""
        parents = [self.lamports[parent] for parent in commit.parents if parent in self.lamports]
        return max(commit.time_s * MS_PER_S, *(parent + 1 for parent in parents), 0)


def content_of(commit: Commit) -> bytes:
    """Return the content of the message, as JSON."""
    moment = (EPOCH + timedelta(seconds=commit.time_s)).isoformat()
    return json.dumps({"time": moment, "subject": commit.subject}, ensure_ascii=False).encode()


async def publish(
    client: NodeClient, channel: Channel, commits: Sequence[Commit], withheld: frozenset[str]
) -> int:
    """Publish all commits but the withheld ones; returns how many.

    Raises:
        ExampleError: The node refused one.
    """

    def messages() -> Iterator[WakuMessageAndTopic]:
        for commit in commits:
            # Made also when it is withheld: its children know its hash, as they would in earnest.
            message = channel.message(commit)
            if commit.name not in withheld:
                yield message

    published = 0
    async for _, result in client.publish_all(messages()):
        if outcome_name(result) != "STORED":
            raise ExampleError(f"The node answered {outcome_name(result)}: {result.reason}")
        published += 1
    return published


async def fetch(client: NodeClient, channel: Channel, head: str) -> tuple[list[str], list[str]]:
    """Fetch the causal history of a head in one call: what came, and what is missing.

    Raises:
        ExampleError: The history is larger than a node returns at once.
    """
    received: list[str] = []
    missing: list[str] = []
    async for page in client.causal_history(channel.name, [(head, channel.hashes.get(head))]):
        if page.truncated:
            raise ExampleError(f"The history of {head} is larger than a node returns at once.")
        for item in page.messages:
            view = sds_view(item.stored.message.payload)
            if view is None or view.message_id != item.entry.message_id:
                raise ExampleError(f"The message of {item.entry.message_id} is not that commit.")
            received.append(view.message_id)
        missing.extend(entry.message_id for entry in page.missing)
    return received, missing


def expected(
    head: str, history: dict[str, Commit], withheld: frozenset[str]
) -> tuple[set[str], set[str]]:
    """Return what a walk from a head receives, and what it finds missing."""
    received: set[str] = set()
    missing: set[str] = set()
    waiting = [head]
    while waiting:
        name = waiting.pop()
        if name in withheld:
            missing.add(name)
        elif name not in received:
            received.add(name)
            waiting.extend(history[name].parents)
    return received, missing


async def verify(
    client: NodeClient,
    channel: Channel,
    head: str,
    *,
    repo: Path,
    commits: Sequence[Commit],
    withheld: frozenset[str],
) -> str:
    """Compare a head's causal history with git's own; returns a line that says what was found.

    Raises:
        ExampleError: They differ.
    """
    history = {commit.name: commit for commit in commits}
    found, not_found = await fetch(client, channel, head)
    received, missing = expected(head, history, withheld)
    if not withheld:
        received = set(git(repo, "rev-list", head).split())
    compare(f"the history of {head}", found, received)
    compare(f"what is missing from the history of {head}", not_found, missing)
    seen: set[str] = set()
    for name in found:
        late = [each for each in history[name].parents if each in received and each not in seen]
        if late:
            raise ExampleError(f"The node sent {name} before its parent {late[0]}.")
        seen.add(name)
    return f"{head}: {len(received)} commits as git has them, {len(missing)} missing as withheld"


def compare(what: str, found: Sequence[str], wanted: set[str]) -> None:
    """Compare what the node returned with what git says.

    Raises:
        ExampleError: They differ.
    """
    if len(found) != len(set(found)):
        raise ExampleError(
            f"Several messages claim to be the same commit in {what}: publish on a new channel."
        )
    lacking, extra = sorted(wanted - set(found)), sorted(set(found) - wanted)
    if lacking or extra:
        raise ExampleError(
            f"The node and git differ in {what}: {len(lacking)} are lacking, such as "
            f"{lacking[:MAX_SHOWN]}, and {len(extra)} are too many, such as {extra[:MAX_SHOWN]}."
        )


async def run(
    repo: Path,
    channel: Channel,
    *,
    node: str,
    withhold: float,
    seed: int,
    verified: bool,
    heads: tuple[str, ...],
) -> None:
    """Publish a repository and verify it where that is asked for."""
    commits = await asyncio.to_thread(read_history, repo)
    if not commits:
        raise ExampleError(f"The repository {repo} has no commits.")
    names = [commit.name for commit in commits]
    count = round(len(names) * withhold)
    withheld = frozenset(random.Random(seed).sample(names, count))  # noqa: S311 - a draw
    async with connect(node) as client:
        published = await publish(client, channel, commits, withheld)
        print(f"published {published} of {len(commits)} commits on channel {channel.name}")
        for head in (heads or heads_of(commits)) if verified else ():
            name = git(repo, "rev-parse", "--verify", f"{head}^{{commit}}").strip()
            found = verify(client, channel, name, repo=repo, commits=commits, withheld=withheld)
            print(await found)


@click.command(context_settings={"show_default": True})
@click.option("--repo", type=click.Path(path_type=Path), default=".", help="The repository.")
@click.option(
    "--node",
    envvar="STORENODE_NODE",
    default="127.0.0.1:7420",
    metavar="HOST:PORT",
    help="The node to call.",
)
@click.option(
    "--channel",
    default="",
    show_default="git:NAME",
    help="The SDS channel; a new one for each run.",
)
@click.option(
    "--withhold", type=click.FloatRange(0, 1), default=0.0, help="Share of commits to leave out."
)
@click.option("--seed", default=0, help="Chooses which commits are left out.")
@click.option("--verify", "verified", is_flag=True, help="Compare the causal histories with git's.")
@click.option(
    "--head", "heads", multiple=True, metavar="REV", help="What to verify; without it all heads."
)
def main(repo: Path, channel: str, **options: Any) -> None:  # noqa: ANN401 - those of `run`
    """Publish the history of a git repository as an SDS channel."""
    made = Channel(channel or f"git:{repo.resolve().name}")
    try:
        asyncio.run(run(repo, made, **options))
    except (ClientOptionError, ExampleError, NodeError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
