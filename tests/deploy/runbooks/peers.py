"""Runbooks of two nodes that are peers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from chaos.ports import ReservedPort
from sim.messages import CANDIDATES, forged_halves
from storenode.client.messages import hash_of, new_message, new_request
from storenode.connection.channel import TlsIdentity
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.deploy.runbooks.scene import World, database_url, environment, execute, metric, superuser
from tests.integration.peers.test_gossip_hostile import stream
from tests.integration.peers.test_processes import events
from tests.support.credentials import Pki
from tests.support.fleet import CONTENT, PUBSUB, made, publish, synchronize
from tests.support.node import NodeProcess
from tests.support.polling import eventually

ABSENT = "storenode_peer_absent_since_timestamp_seconds"
CALLS = 3
"""Sessions that fail: scheduled ones would wait longer and longer for each other."""
OPTIONS = ("--max-clock-drift", "off", "--log-level", "info", "--log-format", "json")


def peers(world: World) -> None:
    """Run two nodes: the peer is away, of another cluster, silent, then not confirming."""
    here, there = (
        NodeProcess(world.directory / name, OPTIONS, world.new_store())
        for name in ("here", "there")
    )
    try:
        there.start()
        here.args = (*OPTIONS, "--max-confirms", "1", "--peer", there.peer)
        here.start()
        _unreachable(world, here, there)
        _refused(world, here, there)
        _silent(world, here, there)
        _unconfirmed(world, here, there)
        _cut_off(world, here)
    finally:
        for node in (here, there):
            node.close()


def _unreachable(world: World, here: NodeProcess, there: NodeProcess) -> None:
    Pki(world.directory).issue("here.example")
    values = {"node.pem": str(world.directory / "node.pem")}
    eventually(lambda: not metric(here, ABSENT))
    with world.incident("peer-unreachable", here, values=values) as away:
        there.terminate()
        for _ in range(CALLS):
            assert synchronize(here)[0].code != 0
        away.fires()
        assert "could not be reached" in away.do("storenode status").out
        assert "here.example" in away.do("openssl").out
        there.start()
        assert "in sync" in away.do("storenode sync").out
        eventually(lambda: not metric(here, ABSENT))


def _refused(world: World, here: NodeProcess, there: NodeProcess) -> None:
    own = there.args
    with world.incident("sync-refused", here) as refused:
        there.terminate()
        there.args = (*own, "--cluster", "2")
        there.start()
        for _ in range(CALLS):
            assert synchronize(here)[0].code != 0
        refused.fires()
        assert "cluster" in refused.do("storenode status").out
        there.terminate()
        there.args = own
        there.start()
        assert "in sync" in refused.do("storenode sync").out


def _silent(world: World, here: NodeProcess, there: NodeProcess) -> None:
    """Let nothing be scheduled for hours after a session."""
    ended, _ = synchronize(here)
    assert ended.code == 0
    details: dict[str, Any] = {"before_min": 5, "after_min": 5}
    values = {"ID@HOST:PORT": there.peer}
    with world.incident("peer-silent", here, values=values, **details) as silent:
        silent.fires(3 * 60)
        silent.do("storenode status")
        assert silent.do("storenode sync --peer").code == 0


def _unconfirmed(world: World, here: NodeProcess, there: NodeProcess) -> None:
    message = new_message(b"wanted", CONTENT, PUBSUB, time.time_ns())
    with (
        world.incident("unread-events-ageing", here) as waiting,
        grpc.insecure_channel(here.listen) as channel,
    ):
        there.terminate()
        StoreStub(channel).Publish(new_request([message]))
        eventually(lambda: metric(here, "storenode_unread_events"))
        execute(
            superuser(here),
            "update storenode.unread set began_at = began_at - interval '6 minutes'",
        )
        eventually(lambda: metric(here, "storenode_unconfirmed_oldest_seconds") > 300)
        waiting.fires()
        waiting.do("storenode status")
        there.start()
        eventually(lambda: not metric(here, "storenode_unconfirmed_oldest_seconds"))


def _cut_off(world: World, here: NodeProcess) -> None:
    """Send what is no frame, as a stranger; that it is no peer any more ends it."""

    async def garble() -> None:
        async with stream(here.peer, "garbler") as garbler:
            await garbler.send(b"\xff" * 40)
            await garbler.ending()

    with world.incident("gossip-peer-cut-off", here) as cut_off:
        asyncio.run(garble())
        cut_off.fires()
        assert "garbler" in cut_off.do("storenode status").out
        cut_off.do("storenode db check")
        here.terminate()
        here.start()


def sets(world: World) -> None:
    """Run two nodes with certificates: forged sets, then one announces what it has lost."""
    pki = Pki(world.directory)
    alone = (*OPTIONS, "--sync-interval", "0", "--gossip", "off")
    first, second = (NodeProcess(world.directory / name, (), world.new_store()) for name in "ab")
    try:
        port = ReservedPort()
        known = pki.peer("a.example", "--allow-peer", "b.example", "--peer-listen", port.address)
        first.args = (*alone, *known)
        first.start()
        named = f"a.example@{first.peer}"
        second.args = (*alone, *pki.peer("b.example", "--allow-peer", "a.example", "--peer", named))
        second.start()
        identity = TlsIdentity(pki.authority.cert_pem.bytes())
        env = environment(second) | {"STORENODE_TLS_CA": str(pki.ca)}
        _forged(world, (first, second), env, identity)
        _lost(world, (first, second), env, identity)
    finally:
        for node in (first, second):
            node.close()


def _forged(
    world: World, nodes: tuple[NodeProcess, NodeProcess], env: dict[str, str], tls: TlsIdentity
) -> None:
    with world.incident("forged-fingerprint", nodes[1], env=env) as forged:
        messages = asyncio.run(_publish_forged(nodes, tls))
        assert forged.do("storenode sync").code == 0
        forged.fires()
        (said,) = events(nodes[1], "fingerprint_forged")
        times = sorted(each.message.timestamp for each in messages)
        forged.do("storenode query --hash", HASH=said["hashes"][0])
        forged.do("storenode query --from", FIRST=str(times[0]), LAST=str(times[-1]))
        forged.do("storenode db check")


async def _publish_forged(
    nodes: tuple[NodeProcess, NodeProcess], tls: TlsIdentity
) -> list[WakuMessageAndTopic]:
    """Publish some messages at both nodes, and at each one half of a forged set."""
    newest_ns = time.time_ns() - 60 * 10**9
    messages, candidates = made(200, newest_ns, seed=1), made(CANDIDATES, newest_ns, 600.0, seed=2)
    shared = tuple(messages)
    for node, half in zip(nodes, forged_halves(list(map(hash_of, candidates))), strict=True):
        own = [candidates[place] for place in half]
        await publish(node, [*shared, *own], tls)
        messages += own
    return messages


def _lost(
    world: World, nodes: tuple[NodeProcess, NodeProcess], env: dict[str, str], tls: TlsIdentity
) -> None:
    """Delete from a database a message that the peer still announces."""
    there, here = nodes
    differing = world.incident("differences-not-shrinking", here, env=env)
    differing.values = {"ID@HOST:PORT": f"a.example@{there.peer}"}
    differing.do("storenode sync --peer")
    with differing:
        (lost,) = made(1, time.time_ns() - 60 * 10**9, seed=99)
        asyncio.run(publish(there, [lost], tls))
        lose = f"where ts = {lost.message.timestamp}"
        execute(
            superuser(there),
            *(f"delete from storenode.{table} {lose}" for table in ("messages", "hashes")),
        )
        ended = differing.do("storenode sync --peer", codes=(0, 1))
        assert "withheld" in ended.out, ended
        differing.fires(4 * 60)
        differing.env = env | {"STORENODE_DATABASE_URL": database_url(there)}
        assert differing.do("storenode db check", codes=(1,)).code == 1
        differing.do("storenode db resummarize")
        differing.env = env
        there.terminate()
        there.start()
        differing.do("storenode sync --peer")
