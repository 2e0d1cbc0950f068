"""Sets that the fingerprint of WAKU-SYNC cannot tell apart, at nodes that run as processes."""

from __future__ import annotations

import time
from pathlib import Path

from sim.messages import CANDIDATES, forged_halves
from store.sync.limits import COMPACT_FROM_IDS
from storenode.client.messages import hash_of
from storenode.client.types import WakuMessageAndTopic
from storenode.connection.channel import TlsIdentity
from tests.integration.peers.test_processes import events
from tests.integration.run.helpers import get
from tests.support.command import Command
from tests.support.fleet import Fleet, hashes, held, made, publish, synchronize
from tests.support.node import NodeProcess
from tests.support.secured import Pki

MINUTE_NS = 60 * 10**9
SHARED = 200


async def forged_at(
    first: NodeProcess,
    second: NodeProcess,
    span_s: float,
    tls: TlsIdentity | None = None,
    ago_ns: int = MINUTE_NS,
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


async def test_forged_sets_are_found_over_tls(tmp_path: Path, fleet: Fleet) -> None:
    pki = Pki(tmp_path)
    first = fleet.start(*pki.peer("a.example", "--allow-peer", "b.example"))
    second = fleet.start(
        *pki.peer("b.example", "--allow-peer", "a.example"), peers=[f"a.example@{first.peer}"]
    )
    everything = await forged_at(
        first, second, span_s=600.0, tls=TlsIdentity(pki.authority.cert_pem.bytes())
    )
    differences = len(everything) - SHARED
    assert differences > 100

    ended, report = synchronize(second, "--tls-ca", str(pki.ca))

    assert ended.code == 0, ended
    assert held(first) == held(second) == hashes(everything)
    assert (report["in_sync"], report["equality"]) == (True, "keyed")
    assert report["hidden"] == report["missing_here"] + report["missing_there"] == differences
    assert "hidden from those of WAKU-SYNC" in report["notes"][0]
    forged = hashes(everything[SHARED:])
    for node in (first, second):
        (said,) = events(node, "fingerprint_forged")
        assert said["differences"] == differences
        assert 0 < len(said["hashes"]) <= 16
        assert {bytes.fromhex(each) for each in said["hashes"]} <= forged
        sample = f"storenode_sync_hidden_differences_total {float(differences)}"
        assert sample in get(node.metrics, "/metrics")[1]

    _, report = synchronize(second, "--tls-ca", str(pki.ca))
    assert (report["in_sync"], report["equality"], report["hidden"]) == (True, "keyed", 0)
    assert report["round_trips"] == 1


async def test_forged_sets_below_what_is_in_memory_are_found_by_lattice_sums(
    tmp_path: Path, fleet: Fleet
) -> None:
    """In several hours of two days, long before the ranges in memory begin."""
    pki = Pki(tmp_path)
    own = ("--sync-range", "1m")
    first = fleet.start(*pki.peer("a.example", "--allow-peer", "b.example"), *own)
    second = fleet.start(
        *pki.peer("b.example", "--allow-peer", "a.example"), *own, peers=[f"a.example@{first.peer}"]
    )
    identity = TlsIdentity(pki.authority.cert_pem.bytes())
    everything = await forged_at(first, second, 30 * 3_600, identity, ago_ns=50 * 60 * MINUTE_NS)
    whole = ("--from", "0", "--tls-ca", str(pki.ca))

    ended, report = synchronize(second, *whole)

    assert ended.code == 0, ended
    assert held(first) == held(second) == hashes(everything)
    assert (report["in_sync"], report["equality"]) == (True, "keyed")
    assert report["hidden"] == len(everything) - SHARED
    for node in (first, second):
        (said,) = events(node, "fingerprint_forged")
        assert said["differences"] == report["hidden"]
    _, report = synchronize(second, *whole)
    assert (report["in_sync"], report["equality"], report["hidden"]) == (True, "keyed", 0)
    assert report["round_trips"] == 1


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
    assert held(first) == held(second) == hashes(messages)
    assert (report["in_sync"], report["equality"], report["compact"]) == (True, "keyed", True)
    assert (report["missing_here"], report["missing_there"], report["round_trips"]) == (20, 20, 2)
    assert 'storenode_sync_modes_total{mode="compact"} 1.0' in get(first.metrics, "/metrics")[1]
    again = Command.of(second).ok("sync", "--tls-ca", str(pki.ca)).out
    assert "mode      compact\n" in again
    _, report = synchronize(second, "--tls-ca", str(pki.ca))
    assert (report["in_sync"], report["equality"], report["compact"]) == (True, "keyed", False)
