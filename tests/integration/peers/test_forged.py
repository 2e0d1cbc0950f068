"""Sets that the fingerprint of WAKU-SYNC cannot tell apart, at nodes that run as processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sim.messages import CANDIDATES, forged_halves
from store.sync.limits import COMPACT_FROM_IDS
from storenode.client import AsyncClient
from storenode.client.messages import hash_of
from storenode.client.types import WakuMessageAndTopic
from storenode.connection.channel import TlsIdentity
from storenode.wire.storenode.v1.store_pb2 import StoreCoverage
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.integration.peers.test_processes import events
from tests.integration.run.helpers import get
from tests.support.command import Command
from tests.support.credentials import Pki
from tests.support.fleet import Fleet, hashes, holdings, made, publish, synchronize
from tests.support.node import NodeProcess
from tests.support.polling import until

MINUTE_NS = 60 * 10**9
SHARED = 200


async def forged_at(
    first: NodeProcess,
    second: NodeProcess,
    span_s: float,
    ago_ns: int = MINUTE_NS,
    tls: TlsIdentity | None = None,
) -> list[WakuMessageAndTopic]:
    """Publish `SHARED` messages at both, and at each one half of a forged set."""
    newest_ns = time.time_ns() - ago_ns
    shared = made(SHARED, newest_ns, seed=1)
    candidates = made(CANDIDATES, newest_ns, span_s, seed=2)
    halves = forged_halves([hash_of(each) for each in candidates])
    messages = [[candidates[place] for place in half] for half in halves]
    for node, own in zip((first, second), messages, strict=True):
        await publish(node, [*shared, *own], tls)
    return [*shared, *messages[0], *messages[1]]


@pytest.mark.parametrize("is_in_memory", [True, False])
async def test_forged_sets_are_found_in_clear_text(fleet: Fleet, *, is_in_memory: bool) -> None:
    # In the index, or in several hours of two days, long before it begins.
    own = () if is_in_memory else ("--sync-range", "1m")
    first = fleet.start(*own)
    second = fleet.start(*own, peers=[first.peer])
    span_s, ago_ns = (600.0, MINUTE_NS) if is_in_memory else (30 * 3_600, 50 * 60 * MINUTE_NS)
    everything = await forged_at(first, second, span_s, ago_ns)
    differences = len(everything) - SHARED
    assert differences > 100
    window = () if is_in_memory else ("--from", "0")

    ended, report = synchronize(second, *window)

    assert ended.code == 0, ended
    assert holdings(first) == holdings(second) == hashes(everything)
    assert (report["in_sync"], report["equality"]) == (True, "keyed")
    assert report["hidden"] == report["missing_here"] + report["missing_there"] == differences
    assert any("hidden from the fingerprints of WAKU-SYNC" in note for note in report["notes"])
    forged = hashes(everything[SHARED:])
    for node in (first, second):
        (said,) = events(node, "fingerprint_forged")
        assert said["differences"] == differences
        assert 0 < len(said["hashes"]) <= 16
        assert {bytes.fromhex(each) for each in said["hashes"]} <= forged
        sample = f"storenode_sync_hidden_differences_total {float(differences)}"
        assert sample in get(node.metrics, "/metrics")[1]

    _, report = synchronize(second, *window)
    assert (report["in_sync"], report["equality"], report["hidden"]) == (True, "keyed", 0)
    assert report["round_trips"] == 1


async def test_two_contents_of_one_hash_are_a_conflict_and_not_in_sync(fleet: Fleet) -> None:
    first = fleet.start()
    second = fleet.start(peers=[first.peer])
    # Long enough ago that its whole minute is compared.
    at_ns = time.time_ns() - 2 * MINUTE_NS
    one, other = (
        WakuMessageAndTopic(
            pubsub_topic="/waku/2/rs/1/0",
            message=WakuMessage(payload=payload, content_topic=topic, timestamp=at_ns),
        )
        for payload, topic in (
            (b"transfer 10 to bob/al", "pha/1/x/proto"),
            (b"transfer 10 to bob", "/alpha/1/x/proto"),
        )
    )
    assert hash_of(one) == hash_of(other)
    shared = made(SHARED, at_ns, seed=1)
    await publish(first, [*shared, one])
    await publish(second, [*shared, other])

    for _ in range(2):
        ended, report = synchronize(second)

        assert ended.code == 1, ended
        assert not report["in_sync"]
        assert (report["missing_here"], report["missing_there"], report["hidden"]) == (0, 0, 0)
        assert report["conflicts"] == 1
        (conflict,) = report["shown_conflicts"]
        assert conflict["own_digest"] != conflict["peer_digest"]
        assert "different contents under one hash" in report["notes"][0]
    for node in (first, second):
        said = events(node, "content_conflict")[0]
        assert said["hash"] == hash_of(one).hex()
        assert said["own_digest"] != said["peer_digest"]
    left = 'storenode_peer_differences{peer="' + first.peer + '",window="recent"} 1.0'
    assert left in get(second.metrics, "/metrics")[1]

    async def differs() -> bool:
        async with AsyncClient(second.listen) as client:
            steps = [each async for each in client.coverage(start=at_ns, end=at_ns + 1)]
        states = [each.state for step in steps for each in step.stores]
        return states == [StoreCoverage.DIFFERS]

    await until(differs)  # statements of a session are written after its report


async def test_the_session_after_one_that_differed_is_compact(tmp_path: Path, fleet: Fleet) -> None:
    pki = Pki(tmp_path)
    first = fleet.start(*pki.peer("a.example", "--allow-peer", "b.example"))
    second = fleet.start(
        *pki.peer("b.example", "--allow-peer", "a.example"), peers=[f"a.example@{first.peer}"]
    )
    identity = TlsIdentity(pki.authority.cert_pem.bytes())
    newest_ns = time.time_ns() - MINUTE_NS
    messages = made(COMPACT_FROM_IDS + 40, newest_ns, seed=3)
    for node, own in ((first, messages[:-20]), (second, messages[20:])):
        await publish(node, own, identity)

    ended, report = synchronize(second, "--tls-ca", str(pki.ca))

    assert ended.code == 0, ended
    assert holdings(first) == holdings(second) == hashes(messages)
    assert (report["in_sync"], report["equality"], report["compact"]) == (True, "keyed", True)
    assert (report["missing_here"], report["missing_there"], report["round_trips"]) == (20, 20, 2)
    assert 'storenode_sync_modes_total{mode="compact"} 1.0' in get(first.metrics, "/metrics")[1]
    again = Command.of(second).ok("sync", "--tls-ca", str(pki.ca)).out
    assert "mode      compact\n" in again
    _, report = synchronize(second, "--tls-ca", str(pki.ca))
    assert (report["in_sync"], report["equality"], report["compact"]) == (True, "keyed", False)
