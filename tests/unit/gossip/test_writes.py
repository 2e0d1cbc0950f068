"""Writes to the table of unread events while the database does not take them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast
from unittest.mock import MagicMock, call

import pytest

from store.domain.ports import StoreUnavailableError
from store.domain.unread import Confirmed
from store.gossip.driver import database
from store.gossip.driver.database import WriteBehind
from store.gossip.driver.ports import UnreadTable
from store.gossip.events import Confirm, Expire
from tests.support.virtual_time import virtual_time
from tests.unit.gossip.gossip_world import ids


class Table:
    """Takes nothing while it is ``away``; keeps what it has taken, in order."""

    def __init__(self) -> None:
        self.away = True
        self.taken: list[object] = []
        self.asked = asyncio.Event()
        self.done = asyncio.Event()

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        self.asked.set()
        if self.away:
            raise StoreUnavailableError("away")
        self.taken += confirmed

    async def expire(self, hashes: Sequence[bytes]) -> None:
        self.taken += hashes
        self.done.set()


@virtual_time
async def test_writes_that_wait_are_bounded_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "MAX_QUEUED_WRITES", 4)
    table, log, (first, *hashes) = Table(), MagicMock(), ids(8)
    writes = WriteBehind(cast("UnreadTable", table), log)
    writes.add(Confirm("s", [first], [1]))
    running = asyncio.create_task(writes.run())
    await table.asked.wait()
    for digest in hashes[:-1]:
        writes.add(Confirm("s", [digest], [1]))
    writes.add(Expire(hashes[-1:]))
    assert len(writes) == 4
    table.away = False
    await table.done.wait()
    running.cancel()
    kept = [Confirmed(digest, "s") for digest in hashes[3:-1]]
    assert table.taken == [*kept, hashes[-1]]
    assert log.mock_calls == [call.warning("gossip_writes_dropped", count=4)]
