"""The composition at work: its processes, a failover by hand, and the alerts of Prometheus."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random

import pytest

from storenode.client.node import connect
from storenode.connection.channel import TlsIdentity
from tests.deploy.composition.arrangement import Composition
from tests.deploy.composition.prometheus import Prometheus
from tests.faults.processes import until
from tests.support import polling
from tests.support.cluster import Pair
from tests.support.ledger import (
    Ledger,
    Publisher,
    check_node,
    publishing,
    scanned,
)

DATABASES = {"db-a-1": "db-a-2", "db-b-1": "db-b-2"}
UNREACHABLE, STANDBY_MISSING = "StorenodeDatabaseUnreachable", "StorenodeStandbyMissing"


def pair_of(composition: Composition, first: str, directory: Path) -> Pair:
    """Make two servers in the places of two services, which Patroni runs in the composition."""
    pair = Pair(directory)
    pair.first.leased_port = composition.port(first, 5432)
    pair.second.leased_port = composition.port(DATABASES[first], 5432)
    return pair


def replicate(pair: Pair) -> None:
    """Replicate synchronously and visibly to the node, as `patroni.yml` and `bootstrap.sh` do."""
    pair.first.ask("grant pg_read_all_stats to storenode")
    pair.synchronous()


@pytest.mark.timeout(900)  # a minute where several tests share a small machine
async def test_the_composition_outlives_a_primary(tmp_path: Path) -> None:
    """Make its standby the primary by hand, and the old primary the standby of that one."""
    if os.getuid() != 0:
        # Only root gives secrets to the containers' user: test_compose.py.
        return
    given = [*DATABASES, *DATABASES.values(), "etcd"]
    with (
        Composition(tmp_path, given) as composition,
        pair_of(composition, "db-a-1", tmp_path) as pair,
        pair_of(composition, "db-b-1", tmp_path) as other,
    ):
        replicate(pair)
        replicate(other)
        await until(lambda: pair.replicating() == "sync")
        for service in ("node-a", "node-b", "gateway"):
            composition.start(service)
        await _fail_over(composition, Prometheus(composition), pair)


async def _fail_over(composition: Composition, prometheus: Prometheus, pair: Pair) -> None:
    a, b = (composition.address(node, 7420) for node in ("node-a", "node-b"))
    watched = composition.address("node-a", 7422)
    token = (composition.secrets / "app.token").read_text().strip()
    tls = TlsIdentity(ca=(composition.secrets / "ca.pem").read_bytes())
    ledger = Ledger()
    publisher = Publisher(a, ledger, Random(1), messages=5, token=token, tls=tls)

    async def fires(alert: str, *, again: bool = True) -> None:
        await until(lambda: prometheus.firing(alert, watched) == again)

    await until(lambda: prometheus.holds('sum(up{job=~"storenode.*"}) == 3'))
    await until(
        lambda: prometheus.holds(f'storenode_database_standbys{{instance="{watched}"}} == 1')
    )
    assert not prometheus.firing(UNREACHABLE, watched)
    async with publishing([publisher]):
        await ledger.more(200)
        await asyncio.to_thread(pair.first.kill)
        await fires(UNREACHABLE)
        await asyncio.to_thread(pair.promote)
        await ledger.more(200)
    # Nobody publishes any more: what comes now is waited for, and takes its time.
    await fires(UNREACHABLE, again=False)
    await fires(STANDBY_MISSING)
    await asyncio.to_thread(pair.rebuild)
    await fires(STANDBY_MISSING, again=False)
    stored = await check_node(a, ledger, token, tls)
    assert stored == ledger.sent
    await _has_all(b, stored, token, tls)


async def _has_all(node: str, wanted: set[bytes], token: str, tls: TlsIdentity) -> None:
    async with connect(node, token=token, tls=tls) as client:

        async def all_there() -> bool:
            return wanted <= set(await scanned(client))

        await polling.until(all_there)
