"""Publishing while the synchronous standby is away: an answer in bounded time, and never a yes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from itertools import count

import pytest

from store.db.maintenance.online import DatabaseOnlineTimes
from store.db.pool import Database, PoolSettings
from store.db.schema.partitions import PartitionMap
from store.db.summaries.statements import DatabaseStatements
from store.db.writing.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.coverage import MINUTE_NS, Interval, Statement
from store.domain.ports import Source, StoreUnavailable
from store.messages.record import RecordBatch
from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.client.retry import Retry
from storenode.connection.errors import NodeError
from storenode.message.rules import Policy
from tests.faults.processes import until
from tests.support.acknowledged import PATIENCE_S, PUBSUB, TOPICS
from tests.support.admission import encoded
from tests.support.cluster import ClusterServer
from tests.support.node import NodeProcess
from tests.support.postgres import COMMITTING

COMMIT_PATIENCE_S = 2.0
STORED = "select count(*) from storenode.messages where hash = %s"


def judged(number: int) -> RecordBatch:
    """One message that may be stored."""
    admission = Admission(Policy(max_drift_ns=None), time.time_ns(), Source.CLIENT)
    admission.admit(encoded([new_message(b"%d" % number, TOPICS[0], PUBSUB, time.time_ns())]))
    return admission.admitted.batch


def wait_for(server: ClusterServer, standby: str) -> None:
    """Make commits wait for a standby; none when its name is empty."""
    server.set(synchronous_standby_names=standby)
    server.ask("select pg_reload_conf()")


async def stuck(
    writer: DatabaseWriter, server: ClusterServer
) -> tuple[RecordBatch, asyncio.Task[object]]:
    """Store messages until the commit of one waits for the standby; that one."""
    for number in count():
        batch = judged(number)
        storing = asyncio.create_task(writer.store(batch, Source.CLIENT))
        await until(lambda: server.ask(COMMITTING) or storing.done())  # noqa: B023 - awaited here
        if not storing.done():
            return batch, storing
        with contextlib.suppress(StoreUnavailable):
            await storing
    raise AssertionError


async def stored(writer: DatabaseWriter, batch: RecordBatch) -> Sequence[bool]:
    """Store a batch for certain: a slow machine may need longer than the writer is patient."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return await writer.store(batch, Source.CLIENT)


async def test_an_answer_comes_in_time_and_nothing_is_cut_short(server: ClusterServer) -> None:
    database = await Database.open(server.url, PoolSettings(commit_patience_s=COMMIT_PATIENCE_S))
    writer = DatabaseWriter(database, PartitionMap(time.time_ns))
    await writer.start()
    try:
        await stored(writer, judged(-1))
        wait_for(server, "nobody")
        batch, storing = await stuck(writer, server)
        with pytest.raises(StoreUnavailable, match="has not committed within 2 s"):
            await storing
        with pytest.raises(StoreUnavailable):
            await writer.store(batch, Source.CLIENT)
        # A wait that was cut short would show a message that the standby lacks.
        assert server.ask(STORED, batch.hashes[0]) == [(0,)]
        wait_for(server, "")
        assert await stored(writer, batch) == [False]
        assert server.ask(STORED, batch.hashes[0]) == [(1,)]
    finally:
        wait_for(server, "")
        await writer.stop()
        await database.close()


async def test_claims_wait_for_no_standby(server: ClusterServer) -> None:
    database = await Database.open(server.url, PoolSettings())
    online, now_ns = DatabaseOnlineTimes(database), time.time_ns()
    statement = Statement(0, MINUTE_NS, now_ns, False, 0, 0, 0, bytes(32))
    wait_for(server, "nobody")
    try:
        await online.record(Interval(now_ns - 1, now_ns, resumed=False))
        await online.note(now_ns, now_ns)
        await DatabaseStatements(database).note("other", [statement], now_ns)
        assert not server.ask(COMMITTING)
        assert await online.last() == now_ns
    finally:
        wait_for(server, "")
        await database.close()


async def test_a_node_ends_while_commits_wait_for_the_standby(
    server: ClusterServer, node: NodeProcess
) -> None:
    node.database_url, node.args = server.url, ("--drain-timeout", "1s")
    node.start()
    wait_for(server, "nobody")
    try:
        async with connect(node.listen, retry=Retry(attempts=1)) as client:
            message = new_message(b"late", TOPICS[0], PUBSUB, time.time_ns())
            publishing = asyncio.create_task(client.publish([message]))
            await until(lambda: server.ask(COMMITTING) or publishing.done())
            assert await asyncio.to_thread(node.terminate) == 0
            with pytest.raises(NodeError):
                await publishing
    finally:
        wait_for(server, "")
