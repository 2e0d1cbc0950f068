"""Counts what a call costs a node: functions, files, dataclasses, statements, commits, connections.

``python -m bench.ways`` starts two real nodes, each with a profile function in its process, and
makes each of these calls until all is warm, then `TURNS` times more:

- publish: one message, until it is answered, indexed and announced
- query: one page, by topic and time
- follow: one message published to a follower; counted is what publish does not have
- reconcile: ``Admin.Synchronize`` of two nodes with equal sets, on the node that begins
- sync: the same where each side lacks three messages

Functions are those entered in every turn, and counts the least of all turns, so that timers that
happen to fire are left out; also left out are generated code, libraries, comprehensions and
lambdas. It fails above a ceiling of `ways.toml`. ``--list`` prints the functions in the order in
which they were entered first; ``--update`` lowers the ceilings to what was counted and never raises
one.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.ways_node import BEGIN, END
from storenode.client import Admin, Client, Message
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.wire.storenode.v1.admin_pb2 import SyncReport
from tests.support.node import NodeProcess
from tools.rooms import lower_ceilings

ROOT: Final = Path(__file__).resolve().parent.parent
NODE: Final = ROOT / "bench" / "ways_node.py"
CEILINGS: Final = ROOT / "bench" / "ways.toml"
COUNTS: Final = ("dataclasses", "statements", "commits", "connections")
FIGURES: Final = ("functions", "files", *COUNTS)
WAYS: Final = ("publish", "query", "follow", "reconcile", "sync")
WARM_TURNS: Final = 5
TURNS: Final = 7
ATTEMPTS: Final = 3
"""The number of times that a way above a ceiling is measured before the check fails."""
SETTLE_S: Final = 0.3
"""Seconds for what follows an answer: the feed, the index, the peers."""

TOPIC: Final = "/ways/1/one/proto"
OFFSET_NS: Final = 60 * 10**9
"""Messages are this old: younger ones may still be on their way, and are not reconciled."""

_NOT_COUNTED: Final = {"wire", "site-packages", "bench"}
Step = tuple[str, str]
"""A file of the project, and the function in it."""


@dataclass(frozen=True)
class Turn:
    """The functions that one call entered, in order, and its counts."""

    steps: list[Step]
    counts: dict[str, int]


@dataclass
class Traced:
    """A node, and the connection that switches its recorder on and off."""

    node: NodeProcess
    control: socket.socket

    def begin(self) -> None:
        """Start to record."""
        self.control.sendall(BEGIN)
        assert self.control.recv(1) == BEGIN

    def end(self) -> Turn:
        """Return what was recorded since `begin`, of the project's functions only."""
        self.control.sendall(END)
        with self.control.makefile("rb") as lines:
            found = json.loads(lines.readline())
        steps = []
        for name, function in found["steps"]:
            path = Path(name)
            if path.is_relative_to(ROOT) and not function.endswith(">"):
                path = path.relative_to(ROOT)
                if not _NOT_COUNTED.intersection(path.parts):
                    steps.append((str(path), function))
        return Turn(steps, {name: found["counts"].get(name, 0) for name in COUNTS})


@dataclass
class Way:
    """The recorded turns of one call.

    Attributes:
        beside: a way whose functions and counts are subtracted.
    """

    name: str
    turns: list[Turn] = field(default_factory=list)
    beside: Way | None = None

    @property
    def steps(self) -> list[Step]:
        """The functions of every turn, in the order of the last one."""
        common = set.intersection(*(set(turn.steps) for turn in self.turns))
        excluded = set(self.beside.steps) if self.beside else set()
        return [step for step in self.turns[-1].steps if step in common - excluded]

    def figures(self) -> dict[str, int]:
        """Return the counts by name, as in `FIGURES`."""
        steps = self.steps
        figures = {"functions": len(steps), "files": len({path for path, _ in steps})}
        other = self.beside.figures() if self.beside else {}
        for name in COUNTS:
            least = min(turn.counts[name] for turn in self.turns)
            figures[name] = max(0, least - other.get(name, 0))
        return figures

    def measure(
        self,
        traced: Traced,
        call: Callable[[], object],
        prepare: Callable[[], None] | None = None,
    ) -> Way:
        """Record the call until it is warm, and `TURNS` times more."""
        for turn in range(WARM_TURNS + TURNS):
            if prepare is not None:
                prepare()
                time.sleep(SETTLE_S)
            traced.begin()
            call()
            time.sleep(SETTLE_S)
            recorded = traced.end()
            if turn >= WARM_TURNS:
                self.turns.append(recorded)
        return self

    def show(self, *, listed: bool) -> None:
        """Print the counts, and the functions if they are wanted."""
        figures = self.figures()
        print(f"{self.name:<10}", *(f"{figures[name]:>5} {name}" for name in FIGURES))
        if listed:
            for path, function in self.steps:
                print(f"    {path}: {function}")


@contextmanager
def traced_node(directory: Path, name: str, *options: str) -> Iterator[Traced]:
    """Run a node without gossip under the recorder."""
    path = str(directory / f"{name}.sock")
    program = (sys.executable, str(NODE), path)
    arguments = (
        *("--log-level", "warning", "--sync-interval", "0"),
        *("--max-clock-drift", "off", "--gossip", "off"),
    )
    node = NodeProcess(directory / name, (*arguments, *options), program=program)
    with ExitStack() as stack:
        stack.callback(node.close)
        node.start()
        control = stack.enter_context(socket.socket(socket.AF_UNIX))
        control.connect(path)
        yield Traced(node, control)


class Calls:
    """The calls that are measured, as a client makes them."""

    def __init__(self, own: Traced, other: Traced, stack: ExitStack) -> None:
        self._own = stack.enter_context(Client(own.node.listen))
        self._other = stack.enter_context(Client(other.node.listen))
        self._admin = stack.enter_context(Admin(own.node.admin))
        self._peer = other.node.peer
        self._number = 0
        self._followed: Iterator[Message] = iter(())

    def publish(self) -> None:
        """Publish a message."""
        self._publish(self._own)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the topic during the block."""
        with closing(self._own.follow(TOPIC, from_beginning=True)) as self._followed:
            yield

    def follow(self) -> None:
        """Publish a message, and wait until a follower has it."""
        payload = self._publish(self._own)
        while next(self._followed).payload != payload:
            pass  # published before the follower began

    def query(self) -> None:
        """Read the newest of a topic."""
        start_ns = time.time_ns() - 2 * OFFSET_NS
        page = self._own.query(TOPIC, pubsub_topic=DEFAULT_PUBSUB_TOPIC, start=start_ns, limit=10)
        assert page.messages

    def differ(self) -> None:
        """Publish at each side three messages that the other lacks."""
        for client in (self._own, self._other) * 3:
            self._publish(client)

    def reconcile(self) -> SyncReport:
        """Synchronize everything."""
        report = self._admin.synchronize(self._peer, start=0)
        assert report.in_sync, report
        return report

    def transfer(self) -> None:
        """Synchronize everything where both sides lack three messages."""
        report = self.reconcile()
        assert (report.messages_sent, report.messages_received) == (3, 3), report

    def _publish(self, client: Client) -> bytes:
        self._number += 1
        payload = self._number.to_bytes(8, "big") + time.time_ns().to_bytes(8, "big")
        message = Message(payload, TOPIC, timestamp=time.time_ns() - OFFSET_NS)
        client.publish(message)
        return payload


def measure() -> Iterator[Way]:
    """Measure each way, in the order of `WAYS`."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ways-")))
        other = stack.enter_context(traced_node(directory, "b"))
        own = stack.enter_context(traced_node(directory, "a", "--peer", other.node.peer))
        calls = Calls(own, other, stack)
        publish = Way("publish").measure(own, calls.publish)
        yield publish
        yield Way("query").measure(own, calls.query)
        with calls.following():
            yield Way("follow", beside=publish).measure(own, calls.follow)
        calls.reconcile()
        yield Way("reconcile").measure(own, calls.reconcile)
        yield Way("sync").measure(own, calls.transfer, calls.differ)


def read_ceilings(path: Path = CEILINGS) -> dict[str, dict[str, int]]:
    """Read the ceilings of each way.

    Raises:
        SystemExit: the file is missing, malformed or lacks a figure.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return {way: {name: int(table[way][name]) for name in FIGURES} for way in WAYS}
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"ways: {path} cannot be used: {error!r}") from error


def find_excesses(ways: list[Way], ceilings: dict[str, dict[str, int]]) -> list[str]:
    """Return a sentence for each figure above its ceiling."""
    return [
        f"{way.name}: {count} {name}, the ceiling is {ceilings[way.name][name]}: "
        f"`python -m bench.ways --list` prints the functions"
        for way in ways
        for name, count in way.figures().items()
        if count > ceilings[way.name][name]
    ]


def check(*, update: bool, listed: bool) -> int:
    """Compare the ways with their ceilings; return the exit code."""
    ceilings = read_ceilings()
    excesses: list[str] = []
    for _ in range(ATTEMPTS):
        ways = list(measure())
        for way in ways:
            way.show(listed=listed)
        if update:
            text = CEILINGS.read_text(encoding="utf-8")
            measured = {way.name: way.figures() for way in ways}
            CEILINGS.write_text(lower_ceilings(text, measured), encoding="utf-8")
        excesses = find_excesses(ways, ceilings)
        if not excesses:
            return 0
    for excess in excesses:
        print(f"ways: {excess}", file=sys.stderr)
    return 1


def main() -> int:
    """Measure, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.ways")
    parser.add_argument("--list", action="store_true", help="print the functions, in order")
    parser.add_argument("--update", action="store_true", help="lower the ceilings")
    options = parser.parse_args()
    return check(update=options.update, listed=options.list)


if __name__ == "__main__":
    raise SystemExit(main())
