"""The whole way of a history through the pipeline, every step of it checked.

A node gets the messages of twenty channels, with forks, merges and gaps. They are archived,
verified and audited; retention drops the older half; the difference is found, restored, and gone.
Every step is the ordinary command. The exit code is 1 as soon as one comes to something else than
what was published.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from bench.histories import HOURS_PER_DAY, Channel, Spoken, channels
from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResult
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.support.node import COMMAND, NodeProcess, clean_environment, running_node

CHANNELS: Final = 20
DAYS: Final = 8
BATCH: Final = 1_000
TIMEOUT_S: Final = 3_600
NODE: Final = (
    *("--max-clock-drift", "off", "--retention", "off", "--sync-interval", "0"),
    *("--log-level", "warning"),
)


class Deviation(Exception):
    """A step came to something else than what it should."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and what it said."""

    code: int
    said: dict[str, Any]


@dataclass
class Known:
    """What there is to be found."""

    messages: int = 0
    gaps: set[tuple[str, str]] = field(default_factory=set)
    incomplete: int = 0
    forks: int = 0
    merges: int = 0

    def add(self, channel: Channel) -> None:
        """Count a channel in."""
        self.messages += len(channel.messages)
        self.gaps |= {(channel.name, each) for each in channel.gaps}
        self.incomplete += channel.incomplete
        self.forks += channel.forks
        self.merges += channel.merges


class Show:
    """The steps, in order; each returns what it has found in words."""

    def __init__(self, node: NodeProcess, directory: Path, master: str | None) -> None:
        self._node = node
        self._directory = directory
        self._lake = str(directory / "archive")
        self._database = ("--data-dir", str(node.data_dir))
        self._master = () if master is None else ("--master", master)
        self._known = Known()
        self._lost = 0

    def steps(self, messages: int) -> Iterator[tuple[str, Callable[[], str]]]:
        """Names of the steps and what they do."""
        yield "publish", lambda: self.publish(messages)
        yield "archive", self.archive
        yield "verify", self.verify
        yield "audit", self.audit
        yield "report", self.report
        yield "retention", self.prune
        yield "diff", self.diff
        yield "restore", self.restore
        yield "diff again", self.diff_again
        yield "verify again", self.verify
        yield "check", self.check

    def publish(self, messages: int) -> str:
        """Publish everything at the node."""
        with grpc.insecure_channel(self._node.listen) as connection:
            for each in channels(messages, CHANNELS, DAYS, time.time_ns()):
                _publish(connection, each.messages)
                self._known.add(each)
        known = self._known
        return (
            f"{known.messages:,} messages of {CHANNELS} channels, {known.forks:,} forks,"
            f" {known.merges:,} merges, {len(known.gaps):,} gaps"
        )

    def archive(self) -> str:
        """All of it goes into the archive."""
        said = self._job("archive", self._lake, *self._database)
        _same("messages archived", said["messages"], self._known.messages)
        return f"{said['files']:,} files, {said['hours_marked']:,} hours noted"

    def verify(self) -> str:
        """The archive is sound, and what the database holds is in it."""
        said = self._job("verify", self._lake, "--with-database", *self._database)
        _same("messages verified", said["messages"], self._known.messages)
        _same("sound", said["sound"], True)
        return f"{said['hours']:,} hours are sound"

    def audit(self) -> str:
        """Exactly the planted gaps are missing, and what comes after them is incomplete."""
        known, file = self._known, self._directory / "missing.jsonl"
        said = self._job("audit", self._lake, "--missing", str(file), code=1)
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        found = {(each["channel"], each["message_id"]) for each in lines}
        _same("gaps that were not found", len(known.gaps - found), 0)
        _same("gaps that nobody has planted", len(found - known.gaps), 0)
        for name in ("incomplete", "forks", "merges"):
            _same(name, said[name], getattr(known, name))
        for name in ("violations", "cycles", "conflicts"):
            _same(name, said[name], 0)
        return f"{len(found):,} gaps, {said['incomplete']:,} messages with an incomplete past"

    def report(self) -> str:
        """A page is written."""
        page = self._directory / "report.html"
        self._job("report", self._lake, "--output", str(page))
        return f"{page.stat().st_size // 1_024:,} KiB"

    def prune(self) -> str:
        """Retention drops the older half, all of which is archived."""
        age = f"{DAYS // 2 * HOURS_PER_DAY}h"
        limits = ("--retention", age, "--retention-requires-archive", "--retention-confirm")
        options = (*limits, *self._database)
        self._command("db", "prune", *options)
        self._lost = self._known.messages - self._held()
        if not self._known.messages * 0.3 < self._lost < self._known.messages * 0.7:
            raise Deviation(f"{self._lost:,} messages were dropped, which is not about half.")
        return f"{self._lost:,} messages dropped"

    def diff(self) -> str:
        """The database lacks what was dropped, and nothing else."""
        output = ("--output", str(self._directory / "lacking"))
        said = self._job("diff", self._lake, *output, *self._database, code=1)
        _same("messages that the archive lacks", said["first_lacks"], 0)
        _same("messages that the database lacks", said["second_lacks"], self._lost)
        return f"{self._lost:,} messages are lacking"

    def restore(self) -> str:
        """What it lacks comes back."""
        lacking = ("--diff", str(self._directory / "lacking"))
        said = self._job("restore", self._lake, *lacking, *self._database)
        _same("messages restored", said["new"], self._lost)
        return f"{said['new']:,} messages are back"

    def diff_again(self) -> str:
        """Nothing is different."""
        said = self._job("diff", self._lake, *self._database)
        _same("equal", said["equal"], True)
        _same("messages held", self._held(), self._known.messages)
        return "nothing is lacking"

    def check(self) -> str:
        """The database is sound, with all that belongs to a message."""
        said = self._command("db", "check", *self._database)
        _same("findings", said.said.get("findings", []), [])
        return "the database is sound"

    def _held(self) -> int:
        answer = self._command("pipeline", "fingerprint", *self._spark(), *self._database)
        return int(answer.said["messages"])

    def _spark(self) -> tuple[str, ...]:
        return ("--level", "day", "--quiet", *self._master)

    def _job(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self._command("pipeline", *arguments, "--quiet", *self._master, code=code).said

    def _command(self, *arguments: str, code: int = 0) -> Answer:
        done = subprocess.run(
            [COMMAND, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=clean_environment(),
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != code:
            raise Deviation(
                f"`storenode {' '.join(arguments)}` ended with exit code {done.returncode}, not"
                f" {code}: {(done.stdout + done.stderr).decode()[-2_000:]}"
            )
        lines = done.stdout.decode().splitlines()
        return Answer(done.returncode, json.loads(lines[-1]) if lines else {})


def _publish(connection: grpc.Channel, messages: tuple[Spoken, ...]) -> None:
    stored = 0
    for response in StoreStub(connection).PublishStream(_requests(messages)):
        stored += sum(each.outcome == PublishResult.STORED for each in response.results)
    _same("messages stored", stored, len(messages))


def _requests(messages: tuple[Spoken, ...]) -> Iterator[PublishRequest]:
    for start in range(0, len(messages), BATCH):
        request = PublishRequest()
        for each in messages[start : start + BATCH]:
            item = request.messages.add(pubsub_topic=each.pubsub_topic)
            item.message.payload = each.payload
            item.message.content_topic = each.content_topic
            item.message.timestamp = each.timestamp
        yield request


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Deviation(f"{what}: {found}, and {wanted} were to be expected.")


def run(messages: int, directory: Path, master: str | None) -> int:
    """Go through all steps and print a line for each; the exit code."""
    with running_node(directory / "node", *NODE) as node:
        show = Show(node, directory, master)
        for name, step in show.steps(messages):
            started = time.monotonic()
            try:
                found = step()
            except Deviation as error:
                sys.stderr.write(f"{name}: {error}\n")
                return 1
            seconds = time.monotonic() - started
            sys.stdout.write(f"{name:<14} {seconds:>8.1f} s  {found}\n")
            sys.stdout.flush()
    sys.stdout.write("Every step came to what was published.\n")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.pipeline_show")
    parser.add_argument("--messages", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--master", help="as of `storenode pipeline`; default: this machine")
    parser.add_argument("--directory", type=Path, help="keep everything in this new directory")
    given = parser.parse_args()
    if given.directory is not None:
        given.directory.mkdir()
        return run(given.messages, given.directory, given.master)
    with tempfile.TemporaryDirectory(prefix="storenode-show-") as directory:
        return run(given.messages, Path(directory), given.master)


if __name__ == "__main__":
    raise SystemExit(main())
