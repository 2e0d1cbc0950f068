"""Participants answer repair requests from the log on disk.

The bus remembers nothing, so that what is missing can be had from other participants only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storenode.sds.aio.channel import Channel
from storenode.sds.codec import Entry
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.log import OPEN_ENTRIES
from storenode.sds.pages import PAGE_ENTRIES
from tests.support.bus import Bus, BusTransport
from tests.unit.sds_aio.test_bus import has

PATIENCE_S = 60.0
QUICK = RepairConfig(50, 200)


def joined(transport: BusTransport, sender: str, state: Path | None = None, **more: Any) -> Any:  # noqa: ANN401
    config = ChannelConfig(
        "0",
        sender,
        repair=more.pop("repair", QUICK),
        sync_min_ms=100,
        sync_max_ms=200,
        sync_at_least_ms=500,
        resend_ms=60_000,
        resend_possible_ms=60_000,
        behind_after_ms=None,
        **more,
    )
    return Channel.join(transport, sender_id=sender, state=state, config=config)


async def test_messages_whose_pages_left_memory_are_answered(tmp_path: Path) -> None:
    # Bob asks for the oldest message, which only Alice's file has.
    count = OPEN_ENTRIES + 3 * PAGE_ENTRIES
    bus, path = Bus(remembers=False), tmp_path / "alice.db"
    transport = bus.transport("alice")
    async with joined(transport, "alice", path, keep_entries=1) as alice:
        sent = await alice.send_all([b"%d" % number for number in range(count)])
    async with (
        joined(transport, "alice", path, keep_entries=1) as alice,
        joined(bus.transport("bob"), "bob", lost_after_ms=None) as bob,
    ):
        core = alice._participant.core
        assert core.log.pruned >= PAGE_ENTRIES
        assert sent[0] in core.log
        assert sent[0] not in [entry.message_id for entry in core.log.entries()]
        await bob.wait_for(lambda status: status.live)
        # As a message of somebody who has them names it.
        asked = bob._participant.core
        assert asked.requests is not None
        asked.requests.add(Entry(sent[0]), bob._participant._now_ms())
        await has(bob, 1)
        (message,) = await bob.log()
        assert (message.message_id, message.content) == (sent[0], b"0")
