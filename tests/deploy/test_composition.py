"""The composition at work: its processes, as `compose.yaml` has them, and what they exchange."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.soak.postgres import ClusterServer
from storenode.client.node import connect
from storenode.client.types import PublishResult
from storenode.connection.channel import TlsIdentity
from tests.deploy.composition.arrangement import Composition
from tests.integration.run.helpers import get
from tests.support import polling
from tests.support.fleet import made

DATABASES = ("db-a-1", "db-b-1")
STANDBYS = ("db-a-2", "db-b-2")


@contextmanager
def database(composition: Composition, service: str) -> Iterator[None]:
    """Run a server in the place of a service, which Patroni runs in the composition."""
    server = ClusterServer(composition.place(service))
    server.leased_port = composition.port(service, 5432)
    server.create()
    server.start()
    try:
        yield
    finally:
        server.stop()


@pytest.mark.timeout(900)  # a minute where several tests share a small machine
async def test_nodes_of_the_composition_exchange_what_they_are_given(tmp_path: Path) -> None:
    if os.getuid() != 0:
        # Only root gives secrets to the containers' user: test_compose.py.
        return
    with (
        Composition(tmp_path, [*DATABASES, *STANDBYS, "etcd"]) as composition,
        database(composition, "db-a-1"),
        database(composition, "db-b-1"),
    ):
        for service in ("node-a", "node-b", "gateway"):
            composition.start(service)
            assert get(composition.address(service, 7422), "/metrics")[0] == 200
        token = (composition.secrets / "app.token").read_text().strip()
        tls = TlsIdentity(ca=(composition.secrets / "ca.pem").read_bytes())
        a, b = (composition.address(node, 7420) for node in ("node-a", "node-b"))
        async with connect(a, token=token, tls=tls) as client:
            messages = made(20, time.time_ns(), span_s=5)
            results = [each async for _, each in client.publish_all(messages)]
        assert [each.outcome for each in results] == [PublishResult.STORED] * len(messages)
        async with connect(b, token=token, tls=tls) as client:

            async def all_there() -> bool:
                stored = {
                    each.message_hash async for page in client.scan() for each in page.messages
                }
                return stored.issuperset(each.message_hash for each in results)

            await polling.until(all_there)
