"""Conflicts that gossip meets, and unread events in a database that is away or has lost some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast
from unittest.mock import AsyncMock, MagicMock, call

import pytest

from store.domain.ports import StoreUnavailableError
from store.domain.unread import Confirmed, UnreadEvent
from store.gossip.driver import database
from store.gossip.driver.confirmations import ConfirmationWaits
from store.gossip.driver.database import WriteBehind
from store.gossip.driver.ports import UnreadTable
from store.gossip.events import (
    Bodies,
    Committed,
    Confirm,
    Conflicting,
    Effect,
    Expire,
    GossipCounter,
    LookUp,
    PersistBatch,
)
from store.gossip.machine import Gossip
from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame
from tests.support.virtual_time import virtual_time
from tests.unit.gossip.gossip_world import Single, frames, ids, inv, of, records, sync_leaves

OWN, OTHER = b"own content 1234", b"other content 12"


def single() -> Single:
    made = Single(max_confirms=1)
    made.join("b")
    return made


def bodies(digests: Sequence[bytes], content: bytes) -> Bodies:
    batch: RecordBatch = records(digests)
    batch.content_digests = [content] * len(digests)
    return Bodies(batch, (), 100)


def conflicts(effects: list[Effect]) -> list[tuple[str, Conflict]]:
    return [(each.peer, each.conflict) for each in of(Conflicting, effects)]


@pytest.mark.parametrize("kind", [inv, sync_leaves])
def test_an_announcement_of_other_content_is_a_conflict_and_confirms_nothing(
    kind: Callable[..., RawGossipFrame],
) -> None:
    node, (one,) = single(), ids(1)
    node.answer(node.step(Gossip.commit, Committed([one], content_digests=[OWN])), [one])
    effects = node.receive("b", kind([one], [OTHER]))
    assert conflicts(effects) == [("b", Conflict(one, OWN, OTHER))]
    assert node.counts[GossipCounter.CONFLICTS] == 1
    assert not of(Confirm, effects)
    again = node.receive("b", inv([one], [OTHER]))
    assert not conflicts(again), "it is reported once"
    confirmed = of(Confirm, node.receive("b", inv([one], [OWN])))
    assert [each.ids for each in confirmed] == [[one]]


@pytest.mark.parametrize("digests", [(), [b""]])
def test_an_announcement_without_a_digest_counts_by_its_hash(digests: Sequence[bytes]) -> None:
    node, (one,) = single(), ids(1)
    node.answer(node.step(Gossip.commit, Committed([one], content_digests=[OWN])), [one])
    assert of(Confirm, node.receive("b", inv([one], digests)))


def test_a_body_with_other_content_is_not_stored_and_confirms_nothing() -> None:
    node, (one,) = single(), ids(1)
    node.answer(node.step(Gossip.commit, Committed([one], content_digests=[OWN])), [one])
    effects = node.receive("b", bodies([one], OTHER))
    assert conflicts(effects) == [("b", Conflict(one, OWN, OTHER))]
    assert not of(Confirm, effects)
    assert not of(PersistBatch, effects)


def test_while_a_body_is_being_stored_another_one_is_a_conflict() -> None:
    node, (one,) = single(), ids(1)
    node.join("c")
    (persist,) = of(PersistBatch, node.receive("b", bodies([one], OWN)))
    for frame in (bodies([one], OTHER), inv([one], [OTHER])):
        effects = node.receive("c", frame)
        assert not of(PersistBatch, effects)
    effects = node.step(Gossip.persisted, persist.token, [True])
    assert [each.store_id for each in of(Confirm, effects)] == ["store of b"]


def test_what_turns_out_to_be_a_conflict_in_the_database_is_not_confirmed_by_its_sender() -> None:
    node, (one,) = single(), ids(1)
    (persist,) = of(PersistBatch, node.receive("b", bodies([one], OTHER)))
    node.answer(node.step(Gossip.persisted, persist.token, [False], {0: OWN}), [one])
    effects = node.step(Gossip.want, [one], 1, [OWN])
    assert not of(Confirm, effects)
    assert inv([one], [OWN]) in frames(effects)


def test_an_unread_message_of_the_database_is_confirmed_only_by_its_content() -> None:
    node, (one,) = single(), ids(1)
    node.step(Gossip.restore, [UnreadEvent(one, OWN, 1)])
    assert not of(Confirm, node.receive("b", inv([one], [OTHER])))
    assert of(Confirm, node.receive("b", inv([one], [OWN])))


def test_a_message_that_is_looked_up_is_compared_with_what_was_announced() -> None:
    node, (one,) = single(), ids(1)
    (look_up,) = of(LookUp, node.receive("b", inv([one], [OTHER])))
    effects = node.step(Gossip.looked_up, look_up.token, [True], [OWN])
    assert conflicts(effects) == [("b", Conflict(one, OWN, OTHER))]
    assert not of(Confirm, node.step(Gossip.want, [one], 1, [OWN]))


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
    assert len(writes._queue) == 4
    table.away = False
    await table.done.wait()
    running.cancel()
    kept = [Confirmed(digest, "s") for digest in hashes[3:-1]]
    assert table.taken == [*kept, hashes[-1]]
    assert log.mock_calls == [call.warning("gossip_writes_dropped", count=4)]


@virtual_time
async def test_a_row_that_is_gone_means_confirmed_unless_its_message_is_gone_too() -> None:
    hashes = there, lost, untracked = ids(3)
    stored = {there: OWN, untracked: OWN}
    database = MagicMock(of=AsyncMock(return_value=()))
    database.content_digests = AsyncMock(side_effect=lambda asked: list(map(stored.get, asked)))
    tracked = there, lost
    waits = ConfirmationWaits(
        database, database, reach=lambda: None, unread_hashes=tracked, want=MagicMock()
    )
    found = await waits.confirmed(hashes, [OWN] * 3, [True] * 3, 2, 1.0)
    assert sorted(database.content_digests.call_args_list[0].args[0]) == sorted(tracked)
    assert [each.confirms for each in found] == [2, 0, 0]
    waits.stop()
