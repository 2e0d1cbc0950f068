"""Commits while the synchronous standby is away: errors in bounded time, no acknowledgement.

One server serves all tests but the last: its commits wait while it names a standby that does not
exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count

import grpc
import pytest

from chaos.checker.clients import PUBSUB, TOPICS
from chaos.soak.postgres import ClusterServer, Pair
from reconcile.ids import SyncIds
from store.db.coverage import DatabaseOnlineTimes, DatabaseStatements
from store.db.messages import DatabaseReader
from store.db.partitions import PartitionMap
from store.db.pool import Database, PoolSettings
from store.db.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.coverage import BLOCK_NS, Interval, Statement
from store.domain.ports import Source, StoreUnavailableError
from store.messages.record import RecordBatch
from storenode.client.messages import new_message, new_request
from storenode.client.types import NodeStatus
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.faults.processes import metrics, until
from tests.integration.run.helpers import get
from tests.support.admission import encoded
from tests.support.command import Command
from tests.support.fleet import await_status
from tests.support.node import NodeProcess
from tests.support.polling import PATIENCE_S
from tests.support.postgres import COMMITTING, running_server

COMMIT_PATIENCE_S = 2.0
STORED = "select count(*) from storenode.messages where hash = %s"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def judged(number: int) -> RecordBatch:
    admission = Admission(Policy(max_drift_ns=None), time.time_ns(), Source.CLIENT)
    admission.admit(encoded([new_message(b"%d" % number, TOPICS[0], PUBSUB, time.time_ns())]))
    return admission.admitted.batch


@contextmanager
def missing_standby(server: ClusterServer) -> Iterator[None]:
    """Let commits wait for a standby that does not exist."""
    try:
        server.reload(synchronous_standby_names="nobody")
        yield
    finally:
        server.reload(synchronous_standby_names="")


@asynccontextmanager
async def writing(
    url: str, settings: PoolSettings | None = None
) -> AsyncIterator[tuple[Database, DatabaseWriter]]:
    """Run a writer on a database."""
    database = await Database.open(url, settings or PoolSettings())
    writer = DatabaseWriter(database, PartitionMap(time.time_ns))
    await writer.start()
    try:
        yield database, writer
    finally:
        await writer.stop()
        await database.close()


async def stuck(
    writer: DatabaseWriter, server: ClusterServer
) -> tuple[RecordBatch, asyncio.Task[object]]:
    """Store messages until the commit of one waits for the standby, and return that one."""
    for number in count():
        batch = judged(number)
        storing = asyncio.create_task(writer.store(batch, Source.CLIENT))
        await until(lambda: server.ask(COMMITTING) or storing.done())  # noqa: B023 - awaited here
        if not storing.done():
            return batch, storing
        with contextlib.suppress(StoreUnavailableError):
            await storing
    raise AssertionError


async def stored(writer: DatabaseWriter, batch: RecordBatch) -> Sequence[bool]:
    """Store a batch for certain: a slow machine may need longer than the writer is patient."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                return await writer.store(batch, Source.CLIENT)


async def test_an_answer_comes_in_time_and_nothing_is_cut_short(server: ClusterServer) -> None:
    settings = PoolSettings(commit_patience_s=COMMIT_PATIENCE_S)
    async with writing(server.url, settings) as (_, writer):
        await stored(writer, judged(-1))
        with missing_standby(server):
            batch, storing = await stuck(writer, server)
            with pytest.raises(StoreUnavailableError, match="has not committed within 2 s"):
                await storing
            with pytest.raises(StoreUnavailableError):
                await writer.store(batch, Source.CLIENT)
            # A wait that was cut short would show a message that the standby lacks.
            assert server.ask(STORED, batch.hashes[0]) == [(0,)]
        assert await stored(writer, batch) == [False]
        assert server.ask(STORED, batch.hashes[0]) == [(1,)]


async def test_claims_wait_for_no_standby(server: ClusterServer) -> None:
    database = await Database.open(server.url, PoolSettings())
    online, now_ns = DatabaseOnlineTimes(database), time.time_ns()
    statement = Statement(0, BLOCK_NS, now_ns, False, 0, 0, 0, bytes(32))
    with missing_standby(server):
        await online.note(0, now_ns, Interval(now_ns - 1, now_ns, resumed=False))
        await online.note(now_ns, now_ns)
        await DatabaseStatements(database).note("other", [statement], now_ns)
        assert not server.ask(COMMITTING)
        assert await online.last() == now_ns
    await database.close()


def publish_once(node: NodeProcess, timeout_s: float) -> grpc.StatusCode:
    """Publish with a deadline, as a client in another language does."""
    request = new_request([new_message(b"x", TOPICS[0], PUBSUB, time.time_ns())])
    with grpc.insecure_channel(node.listen) as channel:
        try:
            StoreStub(channel).Publish(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_a_stop_of_publishing_is_reported_until_it_ends_and_keeps_no_node_from_ending(
    server: ClusterServer, node: NodeProcess
) -> None:
    cause = (
        "commits wait for synchronous replication: synchronous_standby_names is 'nobody', and 0"
        " standbys are connected"
    )

    def is_reported(status: NodeStatus) -> bool:
        return any(each.name == "nothing-commits" for each in status.problems)

    node.database_url, node.args = server.url, ("--drain-timeout", "1s")
    node.start()
    with missing_standby(server):
        code = await asyncio.to_thread(publish_once, node, 3.0)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: metrics(node)["storenode_publishes_abandoned_total",] == 1)
        await asyncio.to_thread(await_status, node, is_reported)
        shown = Command.of(node)("status", "--check").out
        assert "CRITICAL nothing-commits: nothing has been committed for" in shown
        assert cause in shown
        status, reason = get(node.metrics, "/readyz")
        assert (status, cause in reason) == (503, True)
        assert any(
            name == "storenode_commit_age_seconds" and labels == [cause] and age > 10
            for (name, *labels), age in metrics(node).items()
        )
    await until(lambda: get(node.metrics, "/readyz")[0] == 200)
    await asyncio.to_thread(await_status, node, lambda status: not is_reported(status))
    ended = json.loads(get(node.metrics, "/status.json")[1])["ended"]
    assert "nothing-commits" in [each["name"] for each in ended]
    assert await asyncio.to_thread(publish_once, node, 60.0) is grpc.StatusCode.OK
    with missing_standby(server):
        publishing = asyncio.create_task(asyncio.to_thread(publish_once, node, 60.0))
        await until(lambda: server.ask(COMMITTING) or publishing.done())
        assert await asyncio.to_thread(node.terminate) == 0
        assert await publishing is not grpc.StatusCode.OK


async def test_a_transfer_waits_until_the_standby_has_the_message(pair: Pair) -> None:
    pair.synchronous()
    batch = judged(1)
    ids = SyncIds.of(zip(batch.timestamps, batch.hashes, strict=True))
    async with writing(pair.first.url) as (database, writer), AsyncExitStack() as stack:
        # Makes partitions and the names of topics, so that only a message is waited for.
        await writer.store(judged(2), Source.CLIENT)
        assert await DatabaseReader(database).are_stored(ids) == [False]
        stack.callback(pair.synchronous, on=False)
        pair.cut()
        storing = asyncio.create_task(writer.store(batch, Source.CLIENT))
        await until(lambda: len(pair.first.ask(COMMITTING)) == 1)
        pair.first.ask("select pg_cancel_backend(%s)", pair.first.ask(COMMITTING)[0][0])
        # It is visible now, and would be lost with the primary.
        await until(lambda: pair.first.ask("select count(*) from storenode.messages") == [(2,)])
        looking = asyncio.create_task(DatabaseReader(database).are_stored(ids))
        await until(lambda: len(pair.first.ask(COMMITTING)) == 2 or looking.done())
        assert not looking.done()
        pair.synchronous(on=False)
        async with asyncio.timeout(PATIENCE_S):
            assert await looking == [True]
            await storing
