"""Wires between real sockets, and nodes as processes of the world of faults."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from chaos.network import PEER, Network, Wire, WireState
from chaos.node import NodeFailedError, NodeProcess
from tests.support.polling import eventually

PATIENCE_S = 60.0


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """Run a server that sends back what it receives, and yield its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@asynccontextmanager
async def wired() -> AsyncIterator[Wire]:
    async with echo() as address, asyncio.timeout(PATIENCE_S):
        wire = await Wire().open()
        wire.target = address
        yield wire
        await wire.close()


Caller = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""A connection through a wire."""


async def call(wire: Wire) -> Caller:
    return await asyncio.open_connection(*wire.address.rsplit(":", 1))


async def echo_of(caller: Caller, text: bytes) -> bytes:
    """Send a text, and return what comes back; nothing if the connection is reset."""
    reader, writer = caller
    writer.write(text)
    try:
        return await reader.readexactly(len(text))
    except (OSError, asyncio.IncompleteReadError):
        return b""


async def test_an_open_wire_carries_everything() -> None:
    async with wired() as wire:
        caller = await call(wire)
        text = bytes(range(256)) * 4_096
        assert await echo_of(caller, text) == text
        wire.delay_s = 0.05
        before_s = time.monotonic()
        assert await echo_of(caller, b"later") == b"later"
        assert time.monotonic() - before_s >= 0.1


async def test_a_closed_wire_breaks_and_refuses() -> None:
    async with wired() as wire:
        caller = await call(wire)
        assert await echo_of(caller, b"one") == b"one"
        wire.set(WireState.CLOSED)
        assert await echo_of(caller, b"two") == b""
        assert await echo_of(await call(wire), b"three") == b""
        wire.set(WireState.OPEN)
        assert await echo_of(await call(wire), b"four") == b"four"
        wire.target = ""
        assert await echo_of(await call(wire), b"five") == b""


async def test_a_lossy_wire_reports_no_error_and_resets_its_connections_at_its_end() -> None:
    async with wired() as wire:
        before = await call(wire)
        assert await echo_of(before, b"one") == b"one"
        wire.set(WireState.LOSSY)
        during = await call(wire)
        # Else it might be served only when the wire is open again. The third: the first has two.
        while len(wire._writers) < 3:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0)
        waiting = [asyncio.create_task(echo_of(caller, b"two")) for caller in (before, during)]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert not done
        wire.set(WireState.OPEN)
        assert await asyncio.gather(*waiting) == [b"", b""]
        assert await echo_of(await call(wire), b"three") == b"three"


@pytest.mark.parametrize(
    ("person", "node", "state"),
    [
        ("inside", "n3", WireState.OPEN),
        ("inside", "n1", WireState.CLOSED),
        ("outside", "n3", WireState.CLOSED),
        ("outside", "n1", WireState.OPEN),
    ],
)
async def test_a_split_has_two_sides(person: str, node: str, state: WireState) -> None:
    network = Network()
    for who in ("inside", "outside"):
        for name in ("n1", "n3"):
            await network.open_wire(name, who)
    for name in ("n1", "n2", "n3"):
        await network.open_peer_wires(name, ("n1", "n2", "n3"))
    peers = [each for each in network._wires if each.listener == PEER]
    wire = await network.open_wire(node, person)
    network.split("n3", ["inside"])
    assert wire.state is state
    lossy = {(each.caller, each.node) for each in peers if each.state is WireState.LOSSY}
    assert lossy == {("n1", "n3"), ("n3", "n1"), ("n2", "n3"), ("n3", "n2")}
    network.place(person, "n3", inside=person == "outside")
    assert wire.state is (WireState.OPEN if state is WireState.CLOSED else WireState.CLOSED)
    network.heal()
    assert {each.state for each in (wire, *peers)} == {WireState.OPEN}
    await network.close()


SERVING = """
import sys, time
print("serving", file=sys.stderr, flush=True)
print('{"listen": "127.0.0.1:1"}', flush=True)
time.sleep(600)
"""
"""A program in the place of `storenode`, which takes any options."""

PARENT = f"""
import pathlib, sys, time
from chaos.node import NodeProcess
node = NodeProcess(pathlib.Path(sys.argv[1]) / "n1", program=(sys.executable, "-c", {SERVING!r}))
node.start()
print(node.pid, flush=True)
time.sleep(600)
"""


async def test_a_node_that_ends_by_itself_is_reported_with_its_log(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "n1", program=(sys.executable, "-c", SERVING))
    node.start()
    assert node.ready == {"listen": "127.0.0.1:1"}
    os.kill(node.pid, signal.SIGKILL)
    with pytest.raises(NodeFailedError) as failure:
        await node.watch()
    sentence = f"The node n1 was ended by SIGKILL: see {tmp_path / 'n1.log'}."
    assert (failure.value.sentence, failure.value.tail) == (sentence, "serving")


async def test_a_node_that_is_stopped_is_not_reported(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "n1", program=(sys.executable, "-c", SERVING))
    node.start()
    node.close()
    await node.watch()
    assert not node.running


async def test_a_node_that_does_not_start_is_reported(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "n1", program=(sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(NodeFailedError, match="n1 ended with code 3 while it started"):
        node.start()


def test_a_node_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    eventually(lambda: not psutil.pid_exists(pid))
