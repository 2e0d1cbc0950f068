"""Own messages that a node refuses, answers to repair requests, and a channel that was left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storenode.common.errors import ClientClosedError
from storenode.sds.aio.channel import Channel, Channels
from storenode.sds.aio.events import NotStored
from storenode.sds.aio.ledger import revive
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.repair import RepairResponder
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.state import SqliteState
from storenode.sds.aio.transport import (
    Fetched,
    Link,
    Outbound,
    PublishResult,
    Rotation,
    Route,
    TransportError,
)
from storenode.sds.codec import Entry, SdsMessage, encode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Broadcast, Packet, Recall, Sent
from storenode.sds.log import MessageLog
from tests.support.bus import Bus, BusLink, BusTransport
from tests.unit.sds.worlds import NOW, QUICK_REPAIR, config, make_rng, of, take, wire
from tests.unit.sds_aio.test_bus import ROUTE, Reversing, has

PATIENCE_S = 60.0
S = 1_000_000_000
START_NS = 1_763_625_600 * S
CONFIG = ChannelConfig("room", "alice", resend_ms=3_600_000, resend_possible_ms=3_600_000)


class Strict(BusTransport):
    """A bus that refuses, like a node, what is more than 20 seconds old, and one word."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, "strict")
        self.now_ns = START_NS
        self.offered: list[Outbound] = []
        self.is_silent = False

    def open(self, route: Route) -> StrictLink:
        return StrictLink(self, route)


class StrictLink(BusLink):
    """A link of it."""

    def __init__(self, transport: Strict, route: Route) -> None:
        super().__init__(transport, route)
        self.strict = transport

    async def publish(self, batch: Sequence[Outbound]) -> Sequence[PublishResult]:
        self._check("publish")
        self.strict.offered += batch
        if self.strict.is_silent:
            await asyncio.Event().wait()
        return [await self._judge(each) for each in batch]

    async def _judge(self, message: Outbound) -> PublishResult:
        if b"forbidden" in message.payload:
            return PublishResult(stored=False, hint=b"", reason="That word is not allowed.")
        if self.strict.now_ns - message.timestamp_ns > 20 * S:
            return PublishResult(stored=False, hint=b"", reason="It is too old.")
        return (await super().publish([message]))[0]


async def test_what_was_away_for_too_long_is_published_with_a_new_time(tmp_path: Path) -> None:
    bus = Bus()
    strict = Strict(bus)
    strict.away = True
    async with (
        Channel.join(
            strict,
            "room",
            "alice",
            state=tmp_path / "alice.db",
            config=CONFIG,
            clock=lambda: strict.now_ns,
        ) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        events = alice.events()
        said = await alice.send(b"hello")
        (own,) = await alice.log()
        assert not strict.offered
        strict.now_ns += 60 * S
        strict.away = False
        sent = await anext(each async for each in events if isinstance(each, Sent))
        first, *_, last = strict.offered
        assert (first.timestamp_ns, last.timestamp_ns) == (START_NS, strict.now_ns)
        assert first.payload == last.payload
        assert sent.message_id == said
        assert sent.hint not in (None, own.hint)
        assert (await alice.log())[0].hint == sent.hint, "others are told where it is now"


async def test_refused_messages_are_reported_and_stay_in_the_log() -> None:
    strict = Strict(Bus())
    async with (
        Channel.join(strict, "room", "alice", config=CONFIG, clock=lambda: strict.now_ns) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        events = alice.events()
        said = await alice.send(b"forbidden")
        async for event in events:
            if isinstance(event, NotStored):
                assert event == NotStored(said, "That word is not allowed.")
                break
        assert len(strict.offered) == 1
        assert alice.status.unpublished == 0
        assert [m.message_id for m in await alice.log()] == [said]


async def test_a_channel_that_was_left_says_so() -> None:
    async with Channel.join(Bus().transport(), "room", "alice", config=CONFIG) as alice:
        events = alice.events()
        await alice.send(b"hello")
    assert [event async for event in events], "what is queued can still be read"
    with pytest.raises(ClientClosedError, match="was left"):
        await alice.send(b"too late")
    with pytest.raises(ClientClosedError, match="was left"):
        await alice.send_ephemeral(b"too late")
    with pytest.raises(ClientClosedError, match="was left"):
        await alice.wait_for(lambda status: status.lost > 0)


async def test_leaving_that_is_cancelled_ends_the_participant_and_frees_its_state(
    tmp_path: Path,
) -> None:
    silent, state = Strict(Bus()), tmp_path / "alice.db"
    silent.is_silent = True
    async with Channels.open(silent) as channels, asyncio.timeout(PATIENCE_S):
        alice = await channels.join("room", "alice", state=state, config=CONFIG)
        await alice.wait_for(lambda status: status.live)
        said = await alice.send(b"hello")
        leaving = asyncio.create_task(channels.leave(alice))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert leaving.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        again = await channels.join("room", "alice", state=state, config=CONFIG)
        assert again.unpublished() == {said}
        silent.away = True
        await again.wait_for(lambda status: status.node is None)


async def test_leaving_while_offline_takes_no_time_when_nothing_is_forgotten(
    tmp_path: Path,
) -> None:
    transport = Bus().transport()
    transport.away = True
    state = tmp_path / "alice.db"
    async with asyncio.timeout(PATIENCE_S):
        async with Channel.join(transport, "room", "alice", state=state, config=CONFIG) as alice:
            said = await alice.send(b"later")
        transport.away = False
        async with Channel.join(transport, "room", "alice", state=state, config=CONFIG) as alice:
            await alice.wait_for(lambda status: status.synced and not status.unpublished)
    (stored,) = transport.bus.stored(Route("room", "/waku/2/rs/1/0", "/sds/1/room/proto"))
    assert said.encode() in stored.payload


async def test_the_next_store_is_given_what_the_last_one_may_not_have_passed_on() -> None:
    one, two = Bus().transport("one"), Bus().transport("two")
    route = Route("room", "/waku/2/rs/1/0", "/sds/1/room/proto")
    async with (
        Channel.join([one, two], "room", "alice", config=CONFIG) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        said = await alice.send(b"hello")
        await alice.wait_for(lambda status: not status.unpublished)
        (stored,) = one.bus.stored(route)
        assert said.encode() in stored.payload
        one.away = True
        await alice.send(b"to the second")
        while len(two.bus.stored(route)) < 2:
            await two.bus.news()
        assert stored in two.bus.stored(route), "the same bytes, time and hash"


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

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        if self.fails:
            raise TransportError("It is away.")
        return set(hints) & self.hints

    async def by_id(self, _: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
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
        ([Store(fails=True)], False, False),
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
    tmp_path: Path, stores: list[Store], *, published: bool, charged: bool
) -> None:
    state = SqliteState(tmp_path / "me.db", "room", "me")
    ledger = revive(state, config(repair=QUICK_REPAIR), NOW, make_rng())
    ledger.note(ledger.core.receive(NOW, [Packet(THEIRS, HINT)]))
    batch = ledger.take()
    assert batch is not None
    state.commit(batch)
    core = ledger.core
    take(core, wire("ask", sender="carol", content=None, asks=["theirs"]))
    (recall,) = of(Recall, core.tick(NOW + 400, make_rng()))
    found: list[tuple[Broadcast, bytes | None, int | None]] = []
    participant = SimpleNamespace(
        core=core,
        ledger=ledger,
        saver=Saver(ledger, state, None, lambda *_: None, lambda _: None),
        rotation=Rotation([cast("Link", each) for each in stores]),
        publish_answer=lambda *given: found.append(given),
        tell=lambda _: None,
        readable=True,
    )
    answering = RepairResponder(cast("Participant", participant))
    answering.note([Fetched(THEIRS, HINT, 7)])
    answering.copied("theirs", COPY_HINT)
    await answering.answer(recall.message_ids)
    state.close()
    assert [(each.payload, *rest) for each, *rest in found] == [(THEIRS, HINT, 7)] * published
    assert core.answers.spent.total() == len(THEIRS) * charged


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


async def test_messages_that_left_memory_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bob asks for the oldest message, which only Alice's file has.
    monkeypatch.setattr(MessageLog.__init__, "__defaults__", (10,))
    bus, path = Bus(remembers=False), tmp_path / "alice.db"
    transport = bus.transport("alice")
    async with joined(transport, "alice", path) as alice:
        sent = await alice.send_all([b"%d" % number for number in range(600)])
    async with (
        joined(transport, "alice", path) as alice,
        joined(bus.transport("bob"), "bob", lost_after_ms=None) as bob,
    ):
        log = alice._participant.core.log
        assert sent[0] in log
        assert log.recent(sent[0]) is None
        await bob.wait_for(lambda status: status.live)
        # As a message of somebody who has them names it.
        asked = bob._participant.core
        asked.incoming.want(Entry(sent[0]), bob._participant.now_ms(), "alice")
        await has(bob, 1)
        (message,) = await bob.log()
        assert (message.message_id, message.content) == (sent[0], b"0")
