"""Answers to repair requests: what a store holds is not published again, the rest as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.repair_responses import RepairResponder
from storenode.sds.aio.transport import Fetched, Link, Outbound, Rotation, TransportError
from storenode.sds.codec import Entry, SdsMessage, encode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Broadcast, Packet, Reason
from tests.support.bus import Bus
from tests.unit.sds.worlds import NOW, QUICK_REPAIR, channel, make_rng, of, take, wire
from tests.unit.sds_aio.test_bus import PATIENCE_S, ROUTE, Reversing
from tests.unit.sds_aio.test_publishing import S, Strict

HINT, COPY_HINT = b"h" * 32, b"c" * 32
THEIRS = wire("theirs", sender="ann", content=bytes(5_000))
COPY = wire("theirs", sender="ann", content=bytes(5_000), asks=["something"])
FORGED = wire("theirs", sender="ann", content=b"forged")


@dataclass
class Store:
    """A link that holds messages under hints and IDs; only their absence can be asked for."""

    hints: frozenset[bytes] = frozenset()
    copies: tuple[bytes, ...] = ()
    fails: bool = False
    asked: list[str] = field(default_factory=list)

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        self.asked.append("holds")
        if self.fails:
            raise TransportError("It is away.")
        return set(hints) & self.hints

    async def by_id(self, _: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        self.asked.append("by_id")
        yield [Fetched(each, b"other", NOW) for each in self.copies]


@pytest.mark.parametrize(
    ("stores", "published", "charged"),
    [
        ([Store(hints=frozenset({HINT}))], False, False),
        ([Store(hints=frozenset({COPY_HINT}))], False, False),
        ([Store(copies=(COPY,))], False, True),
        ([Store(copies=(FORGED, b"noise"))], True, True),
        ([Store()], True, True),
        ([Store(fails=True), Store(hints=frozenset({HINT}))], False, False),
        ([Store(fails=True)], False, True),
    ],
    ids=[
        "held",
        "held as our copy",
        "held as a copy",
        "forged",
        "not held",
        "held by the next",
        "none answers",
    ],
)
async def test_what_a_store_holds_is_not_published_again(
    stores: list[Store], *, published: bool, charged: bool
) -> None:
    core = channel(repair=QUICK_REPAIR)
    core.receive(NOW, [Packet(THEIRS, HINT)])
    take(core, wire("ask", sender="carol", content=None, asks=["theirs"]))
    (answer,) = of(Broadcast, core.tick(NOW + 400, make_rng()))[:1]
    assert (answer.reason, answer.requester) == (Reason.REPAIR, "carol")
    found: list[tuple[Broadcast, bytes | None, int | None]] = []

    async def read(_: Sequence[str]) -> list[dict[str, Any]]:
        return []

    answering = RepairResponder(
        core,
        Rotation([cast("Link", each) for each in stores]),
        read=read,
        found=lambda _: None,
        publish=lambda *given: found.append(given),
        readable=True,
    )
    answering.note([Fetched(THEIRS, HINT, 7)])
    answering.copied("theirs", COPY_HINT)
    await answering.answer([answer])
    assert found == ([(answer, HINT, 7)] if published else [])
    assert core.answers is not None
    assert core.answers.budget.spent_bytes == (len(answer.payload) if charged else 0)


@pytest.mark.parametrize("age_s", [10, 60])
@pytest.mark.parametrize("whole", [False, True])
async def test_what_no_store_holds_is_published_as_it_was_while_nodes_take_that(
    age_s: int, *, whole: bool
) -> None:
    """Use a bus that stores nothing and, like a node, refuses messages older than 20 s."""
    strict = Strict(Bus(remembers=False))
    config = ChannelConfig(
        "room",
        "alice",
        repair=RepairConfig(50, 200),
        resend_ms=3_600_000,
        resend_possible_ms=3_600_000,
        sync_min_ms=3_600_000,
        sync_max_ms=3_600_000,
    )
    cipher = Reversing(whole=whole)
    async with (
        Channel.join(
            strict, "room", "alice", config=config, clock=lambda: strict.now_ns, cipher=cipher
        ) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        await alice.send(b"the first message of a run carries a filter")
        said = await alice.send(b"hello")
        await alice.wait_for(lambda status: not status.unpublished and status.live)
        _, first = strict.offered
        strict.now_ns += age_s * S
        request = encode_message(
            SdsMessage("room", "ask", "bob", NOW, repair_request=(Entry(said),))
        )
        sealed = cipher.seal(request) if whole else request
        strict.bus.add(ROUTE, Fetched(sealed, b"ask", strict.now_ns))
        expected = 3 if age_s == 10 else 4
        while len(strict.offered) < expected:
            await strict.bus.news()
        assert strict.offered[2] == first, "the same bytes and time, so the same hash"
        assert strict.offered[3:] == (
            [] if age_s == 10 else [Outbound(first.payload, strict.now_ns)]
        )
