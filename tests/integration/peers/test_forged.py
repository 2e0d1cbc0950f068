"""Sets that the fingerprint of WAKU-SYNC cannot tell apart, at nodes that run as processes."""

from __future__ import annotations

import time

from sim.messages import CANDIDATES, forged_halves
from storenode.client.messages import hash_of
from storenode.client.types import WakuMessageAndTopic
from storenode.connection.channel import TlsIdentity
from tests.integration.peers.test_processes import events
from tests.integration.run.helpers import get
from tests.support.fleet import Fleet, hashes, held, made, publish, synchronize
from tests.support.node import NodeProcess

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


async def test_forged_sets_are_found_in_clear_text(fleet: Fleet) -> None:
    # In several hours of two days, long before the index begins.
    first = fleet.start("--sync-range", "1m")
    second = fleet.start("--sync-range", "1m", peers=[first.peer])
    everything = await forged_at(first, second, 30 * 3_600, 50 * 60 * MINUTE_NS)
    differences = len(everything) - SHARED
    assert differences > 100
    ended, report = synchronize(second, "--from", "0")

    assert ended.code == 0, ended
    assert held(first) == held(second) == hashes(everything)
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

    _, report = synchronize(second, "--from", "0")
    assert (report["in_sync"], report["equality"], report["hidden"]) == (True, "keyed", 0)
    assert report["round_trips"] == 1
