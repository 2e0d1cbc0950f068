"""Postgres has no connection left to give, and a node loses some that it had."""

from __future__ import annotations

from random import Random

from chaos.checker.history import History
from chaos.soak.postgres import ClusterServer
from tests.faults.processes import logged, metrics, until
from tests.integration.run.helpers import get
from tests.support.clients import acknowledged, check_nodes, publisher, publishing
from tests.support.node import NodeProcess
from tests.support.postgres import MONITORING, WRITING

NONE_TO_GIVE = "alter role storenode connection limit 1"
ENOUGH = "alter role storenode connection limit -1"
LOST = f"""
select count(pg_terminate_backend(pid)) from pg_stat_activity
where usename = 'storenode' and ({MONITORING} or {WRITING})
"""
"""The connections that check the database, that write, and that maintain."""

MONITORED = f"""
select count(*) from pg_stat_activity where usename = 'storenode' and {MONITORING}
"""


def refusals(node: NodeProcess) -> list[str]:
    """Return why the node gets no further connection, as its metrics show it."""
    found = metrics(node).items()
    return [
        cause for (name, *causes), _ in found if "connections_refused" in name for cause in causes
    ]


async def test_a_node_goes_on_with_the_connections_that_it_has(
    server: ClusterServer, node: NodeProcess, rng: Random
) -> None:
    history = History()
    node.database_url = server.url
    node.start()
    client = publisher(node.listen, history, rng)
    async with publishing([client]):
        await acknowledged(history, 300)
    await until(lambda: server.ask(MONITORED) == [(1,)])
    server.ask(NONE_TO_GIVE)
    assert server.ask(LOST)[0][0] >= 2
    for _ in range(3):
        assert await client.attempt() is None
    await logged(node, "database_connection_failed")
    assert await client.attempt() is None
    assert get(node.metrics, "/readyz") == (200, "ready\n")
    # Many at the same time, although hardly a connection is left.
    async with publishing([publisher(node.listen, history, Random(seed)) for seed in range(8)]):
        await acknowledged(history, 2_000)
    assert "database_away" not in node.log()
    (cause,) = refusals(node)
    assert cause.startswith("the database has no free connection for this node")
    server.ask(ENOUGH)
    await until(lambda: server.ask(MONITORED) == [(1,)])
    await until(lambda: not refusals(node))
    assert await check_nodes(history, node.listen) == history.published.keys()
