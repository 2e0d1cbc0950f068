"""Nodes and a peer of another make, made of the published .proto files and the specifications.

It is a process of its own with stubs of its own, so that nothing of the node's code runs in it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc_tools
import pytest

from tests.support.command import Command
from tests.support.fleet import (
    CONTENT,
    Fleet,
    finished_resume,
    holdings,
    pretend_last_online,
    status,
    synchronize,
)
from tests.support.node import NodeProcess, clean_environment
from tests.support.pages import ROOT
from tests.support.polling import PATIENCE_S, eventually

OFFSET_NS = 60 * 10**9
"""An offset above what a session leaves out at the end of its range."""


@dataclass
class Minimal:
    """The peer's process; what it prints: hashes of what it holds, and its port."""

    process: subprocess.Popen[str]
    hashes: set[bytes] = field(default_factory=set)
    address: str = ""
    listening: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Follow what it prints, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("port "):
                self.address = f"127.0.0.1:{line.split()[1]}"
                self.listening.set()
            else:
                self.hashes.add(bytes.fromhex(line))


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make stubs of the published .proto files, in packages that hide the node's."""
    made = tmp_path_factory.mktemp("stubs")
    known = Path(grpc_tools.__file__).parent / "_proto"
    proto = ROOT / "proto"
    files = [str(each) for each in proto.rglob("*.proto") if "internal" not in each.parts]
    protoc = (sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"-I{known}")
    subprocess.run([*protoc, f"--python_out={made}", *files], check=True, timeout=PATIENCE_S)
    (made / "storenode" / "__init__.py").touch()
    return made


@contextmanager
def _running(stubs: Path, arguments: list[str]) -> Iterator[Minimal]:
    program = str(ROOT / "tests/support/minimal_peer.py")
    environment = clean_environment(PYTHONPATH=f"{stubs}:{ROOT}")
    with subprocess.Popen(
        [sys.executable, program, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        peer = Minimal(process)
        reader = threading.Thread(target=peer.read)
        reader.start()
        try:
            yield peer
        finally:
            process.kill()
            reader.join()


@contextmanager
def serving(stubs: Path, names: str, first: int, last: int, newest_ns: int) -> Iterator[Minimal]:
    """Let it serve, with these messages."""
    with _running(stubs, [names, str(first), str(last), str(newest_ns)]) as peer:
        assert peer.listening.wait(PATIENCE_S), "it does not serve"
        yield peer


def calls(stubs: Path, node: NodeProcess, first: int, last: int, newest_ns: int) -> set[bytes]:
    """Let it reconcile with a node and transfer; return what it stores then."""
    with _running(stubs, [node.peer, str(first), str(last), str(newest_ns)]) as peer:
        assert peer.process.wait(PATIENCE_S) == 0
    return peer.hashes


def test_it_calls_a_node_and_both_hold_everything(fleet: Fleet, stubs: Path) -> None:
    node, now = fleet.start(), time.time_ns()
    assert len(calls(stubs, node, 0, 200, now)) == 200
    assert calls(stubs, node, 100, 300, now) == holdings(node)
    assert len(holdings(node)) == 300
    assert calls(stubs, node, 0, 300, now) == holdings(node), "a session that finds nothing"


@pytest.mark.parametrize("names", ["early", "late"])
def test_a_node_calls_it_and_both_hold_everything(fleet: Fleet, stubs: Path, names: str) -> None:
    now = time.time_ns() - OFFSET_NS
    with serving(stubs, names, 100, 300, now) as peer:
        node = fleet.start("--peer", peer.address)
        calls(stubs, node, 0, 200, now)
        for found in (100, 0):
            ended, report = synchronize(node, "--from", "0")
            assert (ended.code, report.get("missing_here")) == (0, found), ended
            assert len(holdings(node)) == 300
            eventually(lambda: holdings(node) == peer.hashes)


def test_a_node_resumes_from_it(fleet: Fleet, stubs: Path) -> None:
    now = time.time_ns()
    with serving(stubs, "late", 0, 300, now) as peer:
        node = fleet.start("--peer", peer.address)
        node.terminate()
        pretend_last_online(node, now - 3_600 * 10**9)
        node.start()
        assert eventually(lambda: finished_resume(node))["stored"] == 300
        assert holdings(node) == peer.hashes


def test_it_gossips_both_ways_and_confirms(fleet: Fleet, stubs: Path) -> None:
    now = time.time_ns()
    with serving(stubs, "late", 0, 20, now) as peer:
        node = fleet.start("--gossip", "on", "--peer", peer.address)
        # What the peer prints is read beside this.
        digest = confirmed(node)
        eventually(lambda: digest in peer.hashes)
        eventually(lambda: holdings(node) == peer.hashes and len(peer.hashes) == 21)
        assert status(node)["gossip"]["peers"][0]["connected"]


def test_it_dials_gossip_and_confirms_for_every_node_on_the_database(
    fleet: Fleet, stubs: Path
) -> None:
    node, now = fleet.start("--gossip", "on"), time.time_ns()
    second = fleet.start("--gossip", "on", database_url=node.database_url)
    with _running(stubs, [f"gossip={node.peer}", "0", "20", str(now)]) as peer:
        digests = {confirmed(node), confirmed(second)}
        eventually(lambda: digests <= peer.hashes)
        eventually(
            lambda: holdings(node) == holdings(second) == peer.hashes and len(peer.hashes) == 22
        )
        assert status(second)["gossip"]["peers"] == []


def confirmed(node: NodeProcess) -> bytes:
    """Publish at a node a message that one other store is to confirm; its hash."""
    message = ("--content-topic", CONTENT, "from the node")
    waits = ("--min-confirms", "1", "--confirm-timeout", "120s")
    (result,) = Command.of(node).ok("publish", "--json", *waits, *message).objects
    assert (result["outcome"], result["confirms"]) == ("STORED", 1)
    return bytes.fromhex(result["message_hash"])
