"""The driver of a transfer, where a read ignores its cancellation."""

from __future__ import annotations

import asyncio
from typing import cast

from reconcile.ids import SyncIds
from store.domain.ports import SyncObserver, TransferReads, Writer
from store.observe.metrics import Metrics
from store.runtime.services import system_environment
from store.sync.transfer.core import Transfer
from store.sync.transfer.driver import TransferWork, transfer
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.message.rules import Policy


class Deaf:
    """A stream whose read loses its cancellation, and says that the peer is done instead."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()

    async def read(self) -> bytes | None:
        self.reading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return None
        raise AssertionError("nothing sets it")

    async def write(self, frame: bytes) -> None:
        assert frame

    async def half_close(self) -> None:
        raise AssertionError("the transfer has not ended")


async def test_a_cancelled_transfer_ends_though_its_reader_has_more_to_say() -> None:
    stream = Deaf()
    machine = Transfer(
        "x", SyncIds.of([]), SyncIds.of([(1, bytes(32))]), memory=PolicyMemory(), peer="b"
    )
    work = TransferWork(
        reads=cast("TransferReads", None),
        writer=cast("Writer", None),
        policy=lambda: Policy(max_drift_ns=None),
        observer=cast("SyncObserver", None),
        environment=system_environment("test", Metrics("1")),
    )
    task = asyncio.create_task(transfer(machine, stream, work))
    async with asyncio.timeout(30):
        await stream.reading.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=30)
    assert task.cancelled()
