"""How long the way of a call through the node is: functions and files of the project entered.

``python -m bench.ways`` starts two real nodes, each with a profile function in its process, and
makes each of these calls until all is warm, then `TURNS` times more:

- publish: one message, until it is answered, indexed and announced
- query: one page, by topic and time
- reconcile: ``Admin.Synchronize`` of two nodes that hold the same, on the node that begins
- sync: the same where each side lacks three messages

Counted is what was entered in every turn, so that timers that happen to fire are left out; also
left out are generated code, libraries, comprehensions and lambdas. ``--list`` prints the functions
in the order in which they were entered first, ``--tree`` measures another checkout's node.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.ways_node import BEGIN, END
from storenode.client import Admin, Client, Message
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.wire.storenode.v1.admin_pb2 import SyncReport
from tests.support.node import NodeProcess

ROOT: Final = Path(__file__).resolve().parent.parent
NODE: Final = ROOT / "bench" / "ways_node.py"
WARM_TURNS: Final = 5
TURNS: Final = 5
SETTLE_S: Final = 0.3
"""How long what follows an answer may take: the feed, the index, the peers."""

TOPIC: Final = "/ways/1/one/proto"
OFFSET_NS: Final = 60 * 10**9
"""Messages are this old: younger ones may still be on their way, and are not reconciled."""

_NOT_COUNTED: Final = {"wire", "site-packages", "bench"}
Step = tuple[str, str]
"""A file of the project, and the function in it."""


@dataclass
class Traced:
    """A node, and the connection by which it is told when to record."""

    node: NodeProcess
    control: socket.socket
    tree: Path

    def begin(self) -> None:
        """Start to record."""
        self.control.sendall(BEGIN)
        assert self.control.recv(1) == BEGIN

    def end(self) -> list[Step]:
        """What of the project was entered since `begin`, in order."""
        self.control.sendall(END)
        with self.control.makefile("rb") as lines:
            found = json.loads(lines.readline())
        steps = []
        for name, function in found:
            path = Path(name)
            if path.is_relative_to(self.tree) and not function.endswith(">"):
                path = path.relative_to(self.tree)
                if not _NOT_COUNTED.intersection(path.parts):
                    steps.append((str(path), function))
        return steps


@dataclass
class Way:
    """What every turn of one call entered."""

    name: str
    turns: list[list[Step]] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        """In the order of the last turn."""
        common = set.intersection(*map(set, self.turns))
        return [step for step in self.turns[-1] if step in common]

    def measure(self, traced: Traced, call: Callable[[], object]) -> Way:
        """Make the call as often as it takes."""
        for turn in range(WARM_TURNS + TURNS):
            traced.begin()
            call()
            time.sleep(SETTLE_S)
            steps = traced.end()
            if turn >= WARM_TURNS:
                self.turns.append(steps)
        return self

    def show(self, *, listed: bool) -> None:
        """Print the counts, and the functions where that is wanted."""
        steps = self.steps
        files = {name for name, _ in steps}
        print(f"{self.name:<10}{len(steps):>5} functions{len(files):>5} files")
        if listed:
            for name, function in steps:
                print(f"    {name}: {function}")


@contextmanager
def traced_node(directory: Path, name: str, tree: Path, *options: str) -> Iterator[Traced]:
    """A node of a checkout, recorded."""
    path = str(directory / f"{name}.sock")
    program = (sys.executable, str(NODE), path, str(tree))
    arguments = ("--log-level", "warning", "--sync-interval", "0", "--max-clock-drift", "off")
    node = NodeProcess(directory / name, (*arguments, *options), program=program, cwd=tree)
    with ExitStack() as stack:
        stack.callback(node.close)
        node.start()
        control = stack.enter_context(socket.socket(socket.AF_UNIX))
        control.connect(path)
        yield Traced(node, control, tree)


class Calls:
    """The calls that are measured, as a client makes them."""

    def __init__(self, own: Traced, other: Traced, stack: ExitStack) -> None:
        self._own = stack.enter_context(Client(own.node.listen))
        self._other = stack.enter_context(Client(other.node.listen))
        self._admin = stack.enter_context(Admin(own.node.admin))
        self._peer = other.node.peer
        self._number = 0

    def publish(self) -> None:
        """Publish a message."""
        self._publish(self._own)

    def query(self) -> None:
        """Read the newest of a topic."""
        start_ns = time.time_ns() - 2 * OFFSET_NS
        page = self._own.query(TOPIC, pubsub_topic=DEFAULT_PUBSUB_TOPIC, start=start_ns, limit=10)
        assert page.messages

    def differ(self) -> None:
        """Give each side three messages that the other lacks."""
        for client in (self._own, self._other) * 3:
            self._publish(client)

    def reconcile(self) -> SyncReport:
        """Synchronize everything."""
        report = self._admin.synchronize(self._peer, start=0)
        assert report.in_sync, report
        return report

    def _publish(self, client: Client) -> None:
        self._number += 1
        payload = self._number.to_bytes(8, "big") + time.time_ns().to_bytes(8, "big")
        message = Message(payload, TOPIC, timestamp=time.time_ns() - OFFSET_NS)
        client.publish(message)


def measure(tree: Path) -> Iterator[Way]:
    """Each way, by the nodes of a checkout."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ways-")))
        other = stack.enter_context(traced_node(directory, "b", tree, "--gossip", "off"))
        peer = ("--gossip", "off", "--peer", other.node.peer)
        own = stack.enter_context(traced_node(directory, "a", tree, *peer))
        calls = Calls(own, other, stack)
        yield Way("publish").measure(own, calls.publish)
        yield Way("query").measure(own, calls.query)
        calls.reconcile()
        yield Way("reconcile").measure(own, calls.reconcile)
        yield _measure_sync(own, calls)


def _measure_sync(own: Traced, calls: Calls) -> Way:
    way = Way("sync")
    for turn in range(WARM_TURNS + TURNS):
        calls.differ()
        time.sleep(SETTLE_S)
        own.begin()
        report = calls.reconcile()
        time.sleep(SETTLE_S)
        steps = own.end()
        assert (report.messages_sent, report.messages_received) == (3, 3), report
        if turn >= WARM_TURNS:
            way.turns.append(steps)
    return way


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.ways")
    parser.add_argument("--list", action="store_true", help="print the functions, in order")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    given = parser.parse_args()
    for way in measure(given.tree.resolve()):
        way.show(listed=given.list)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
