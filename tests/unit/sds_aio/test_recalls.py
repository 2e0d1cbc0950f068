"""Participants answer repair requests from the log on disk: after a restart, and for old messages.

The bus remembers nothing, so that what is missing can be had from other participants only.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import Fetched
from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, decode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import RepairAnswered
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


class Hiding:
    """A bus whose feed to Carol loses what Alice publishes herself."""

    def __init__(self) -> None:
        self.by_alice = True
        self.bus = Bus(remembers=False, drops=self.drops)

    def drops(self, name: str, message: Fetched) -> bool:
        sent = decode_message(message.payload)
        return name == "carol" and self.by_alice and sent.sender_id == "alice"


async def test_after_a_restart_an_old_message_is_answered(tmp_path: Path) -> None:
    """Alice leaves; Bob, who has her messages on disk only, is asked for them by Carol."""
    hiding, path = Hiding(), tmp_path / "bob.db"
    bus = hiding.bus
    async with (
        joined(bus.transport("bob"), "bob", path) as bob,
        joined(bus.transport("carol"), "carol") as carol,
    ):
        async with joined(bus.transport("alice"), "alice") as alice:
            await alice.wait_for(lambda status: status.synced)
            first = await alice.send(b"the first")
            second = await alice.send(b"the second")
            await has(bob, 2)
        assert await carol.log() == []
    hiding.by_alice = False
    async with (
        joined(bus.transport("bob"), "bob", path) as bob,
        joined(bus.transport("carol"), "carol") as carol,
        bob.events() as told,
    ):
        await bob.send(b"they said something")
        await has(carol, 3)
        log = await carol.log()
        assert [each.message_id for each in log][:2] == [first, second]
        assert [each.content for each in log][:2] == [b"the first", b"the second"]
        assert {each.proof for each in log} == {Proof.MESSAGE}, "the messages as they were"
        answered: set[str] = set()
        async with asyncio.timeout(PATIENCE_S):
            while len(answered) < 2:
                event = await anext(told)
                if isinstance(event, RepairAnswered):
                    answered.add(event.message_id)
        assert answered == {first, second}


async def test_messages_whose_pages_left_memory_are_answered(tmp_path: Path) -> None:
    """Bob asks for the oldest message, which only Alice's file has."""
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
