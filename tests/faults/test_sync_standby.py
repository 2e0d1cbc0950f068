"""What a peer is told to be stored must survive the promotion of the standby."""

from __future__ import annotations

import asyncio
import time

from reconcile.ids import SyncIds
from store.db.pool import Database
from store.db.reading.transfer_reads import TransferReader
from store.db.schema.partitions import PartitionMap
from store.db.writing.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.ports import Source
from store.messages.record import RecordBatch
from storenode.client.messages import new_message
from storenode.message.rules import Policy
from tests.faults.processes import until
from tests.support.acknowledged import PATIENCE_S, PUBSUB, TOPICS
from tests.support.admission import encoded
from tests.support.cluster import Pair
from tests.support.postgres import COMMITTING


def judged(payload: bytes) -> RecordBatch:
    """One message that may be stored."""
    admission = Admission(Policy(max_drift_ns=None), time.time_ns(), Source.CLIENT)
    admission.admit(encoded([new_message(payload, TOPICS[0], PUBSUB, time.time_ns())]))
    return admission.admitted.batch


async def test_what_came_another_way_is_answered_when_the_standby_has_it(pair: Pair) -> None:
    pair.synchronous()
    await until(lambda: pair.replicating() == "sync")
    batch = judged(b"held")
    ids = SyncIds.of(zip(batch.timestamps, batch.hashes, strict=True))
    database = await Database.open(pair.first.url)
    writer = DatabaseWriter(database, PartitionMap(time.time_ns))
    await writer.start()
    try:
        # So that partitions and the names of topics are there, and only a message is waited for.
        await writer.store(judged(b"another"), Source.CLIENT)
        assert await TransferReader(database).held(ids) == [False]
        pair.cut()
        await until(lambda: pair.replicating() is None)
        storing = asyncio.create_task(writer.store(batch, Source.CLIENT))
        await until(lambda: len(pair.first.ask(COMMITTING)) == 1)
        pair.first.ask("select pg_cancel_backend(%s)", pair.first.ask(COMMITTING)[0][0])
        # It is visible now, and would be lost with the primary.
        await until(lambda: pair.first.ask("select count(*) from storenode.messages") == [(2,)])
        looking = asyncio.create_task(TransferReader(database).held(ids))
        await until(lambda: len(pair.first.ask(COMMITTING)) == 2 or looking.done())
        assert not looking.done()
        pair.synchronous(on=False)
        async with asyncio.timeout(PATIENCE_S):
            assert await looking == [True]
            await storing
    finally:
        pair.synchronous(on=False)
        await writer.stop()
        await database.close()
