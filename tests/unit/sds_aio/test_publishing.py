"""Own messages that nodes refuse, answers to repair requests, and searches for missed messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.limits import START_NS
from sim.timeline import Timeline
from storenode.common.errors import ClientClosedError
from storenode.sds.aio.channel import Channels
from storenode.sds.aio.events import NotStored
from storenode.sds.aio.feed import ChannelFeed
from storenode.sds.aio.ledger import ParticipantLedger, revive
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.repair import Repair, RepairResponder
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.state import SqliteState
from storenode.sds.aio.transport import Fetched, Link, Outbound, Rotation, TransportError
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import Entry, SdsMessage, encode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Broadcast, Packet, Recall, Sent
from storenode.sds.limits import MAX_PUBLISH_MESSAGES
from tests.support.bus import PATIENCE_S, ROUTE, Bus, BusTransport, Reversing, joined
from tests.support.virtual_time import run_virtually
from tests.unit.sds.worlds import NOW, QUICK_REPAIR, channel, config, make_rng, of, take, wire

S = 1_000_000_000
CONFIG = ChannelConfig("room", "alice", resend_ms=3_600_000, resend_possible_ms=3_600_000)


class Strict(BusTransport):
    """A bus that refuses, like a node, what is more than 20 seconds old, and one word."""

    now_ns = START_NS
    is_silent = False

    async def refusal(self, message: Outbound) -> str:
        if self.is_silent:
            await asyncio.Event().wait()
        if b"forbidden" in message.payload:
            return "That word is not allowed."
        return "It is too old." if self.now_ns - message.timestamp_ns > 20 * S else ""


async def test_what_was_away_for_too_long_is_published_with_a_new_time(tmp_path: Path) -> None:
    bus = Bus()
    strict = Strict(bus)
    strict.away = True
    async with (
        joined(
            strict, "alice", state=tmp_path / "alice.db", config=CONFIG, clock=lambda: strict.now_ns
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
        joined(strict, "alice", config=CONFIG, clock=lambda: strict.now_ns) as alice,
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
    async with joined(Bus().transport(), "alice", config=CONFIG) as alice:
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
        async with joined(transport, "alice", state=state, config=CONFIG) as alice:
            said = await alice.send(b"later")
        transport.away = False
        async with joined(transport, "alice", state=state, config=CONFIG) as alice:
            await alice.wait_for(lambda status: status.synced and not status.unpublished)
    (stored,) = transport.bus.stored(ROUTE)
    assert said.encode() in stored.payload


async def test_the_next_store_is_given_what_the_last_one_may_not_have_passed_on() -> None:
    one, two = Bus().transport("one"), Bus().transport("two")
    async with (
        joined([one, two], "alice", config=CONFIG) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        said = await alice.send(b"hello")
        await alice.wait_for(lambda status: not status.unpublished)
        (stored,) = one.bus.stored(ROUTE)
        assert said.encode() in stored.payload
        one.away = True
        await alice.send(b"to the second")
        while len(two.bus.stored(ROUTE)) < 2:
            await two.bus.news()
        assert stored in two.bus.stored(ROUTE), "the same bytes, time and hash"


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
        notify=lambda _: None,
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
    config = replace(
        CONFIG, repair=RepairConfig(50, 200), sync_min_ms=3_600_000, sync_max_ms=3_600_000
    )
    cipher = Reversing(whole=whole)
    async with (
        joined(strict, "alice", config=config, clock=lambda: strict.now_ns, cipher=cipher) as alice,
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


async def test_a_refused_cursor_is_forgotten_and_the_channel_goes_on(tmp_path: Path) -> None:
    transport, state = Bus(remembers=False).transport(), tmp_path / "alice.db"
    for count in (MAX_PUBLISH_MESSAGES + 1, 1):
        async with (
            joined(transport, "alice", state=state, config=CONFIG) as alice,
            asyncio.timeout(PATIENCE_S),
        ):
            await alice.wait_for(lambda status: status.live)
            await alice.send_all([b"%d" % number for number in range(count)])
            await alice.wait_for(lambda status: not status.unpublished)


# Scans for messages that were missed: wanted until one node was read to its end

MESSAGES = tuple(Fetched(b"%d" % number, b"", number * 10) for number in range(1, 9))
PAGE = 2


class ScannedStore:
    """A link that can only be scanned, and whose scans fail after ``fails_after`` pages."""

    def __init__(self, *fails_after: int) -> None:
        self.name = "store"
        self.fails_after = list(fails_after)
        self.scans: list[int] = []

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        self.scans.append(since_ns)
        left = self.fails_after.pop(0) if self.fails_after else len(MESSAGES)
        found = [each for each in MESSAGES if each.timestamp_ns >= since_ns]
        for start in range(0, len(found), PAGE):
            if start >= left * PAGE:
                raise TransportError("The line is cut.")
            yield found[start : start + PAGE]
        if not left:
            raise TransportError("The line is cut.")


class Receiver:
    """A receiver without room for one message until it was relieved so often."""

    def __init__(self, refuses: Fetched | None = None, until: int = 0) -> None:
        self.came: dict[Fetched, None] = {}
        self.relieved = 0
        self._refuses, self._until = refuses, until

    async def take(self, messages: Sequence[Fetched]) -> int | None:
        for each in messages:
            if each == self._refuses and self.relieved < self._until:
                return each.timestamp_ns
            self.came[each] = None
        return None

    async def relieve(self) -> None:
        self.relieved += 1


def searched(stores: Sequence[Any], receiver: Receiver, seconds: int, *since_ns: int) -> None:
    """Request scans, and let virtual time pass."""
    timeline = Timeline(START_NS)

    async def run() -> None:
        core = MessageChannel(ChannelConfig("room", "alice"), 0, random.Random(1))
        participant = SimpleNamespace(
            ledger=ParticipantLedger(core),
            rotation=Rotation(stores),
            links=stores,
            take=receiver.take,
            relieve=receiver.relieve,
        )
        feed = ChannelFeed(cast("Participant", participant))
        task = asyncio.create_task(feed.searches())
        for each in since_ns:
            feed.search(each)
        await asyncio.sleep(seconds)
        task.cancel()

    run_virtually(timeline, run())


@pytest.mark.parametrize(
    ("fails_after", "relieved", "since_ns", "scans"),
    [
        # It continues from the last page that came, and ends with the first scan that is complete.
        ((0, 1, 0, 0, 2), 0, (10,), [10, 10, 20, 20, 20, 50]),
        # Without room it is relieved, and continues from the refused message.
        ((), 3, (0,), [0, 50, 50, 50]),
        # Requests of one moment are one scan of the longest time.
        ((), 0, (50, 10, 30), [10]),
    ],
)
def test_a_search_is_tried_again_until_it_is_complete(
    fails_after: tuple[int, ...], relieved: int, since_ns: tuple[int, ...], scans: list[int]
) -> None:
    store, receiver = ScannedStore(*fails_after), Receiver(MESSAGES[4], until=relieved)
    searched([store], receiver, 60, *since_ns)
    assert (tuple(receiver.came), store.scans) == (MESSAGES, scans)


def test_a_search_goes_to_the_next_node_at_once() -> None:
    silent, store, receiver = ScannedStore(*[0] * 100), ScannedStore(), Receiver()
    searched([silent, store], receiver, 60, 10)
    assert (silent.scans, store.scans, tuple(receiver.came)) == ([10], [10], MESSAGES)


def test_a_search_that_cannot_succeed_is_tried_every_few_seconds() -> None:
    store, receiver = ScannedStore(), Receiver(MESSAGES[4], until=10_000)
    searched([store], receiver, 600, 0)
    assert 100 < len(store.scans) < 200


def test_missing_messages_are_asked_for_less_and_less() -> None:
    core = channel()
    take(core, wire("b", after=["a"]))
    asked_s: list[float] = []

    async def nothing(*_: object) -> AsyncGenerator[Sequence[Fetched], None]:
        asked_s.append(asyncio.get_running_loop().time())
        yield []

    async def run() -> None:
        participant = SimpleNamespace(
            core=core,
            rotation=Rotation([cast("Link", SimpleNamespace(by_id=nothing))]),
            feed=SimpleNamespace(quiet=SimpleNamespace(wait=partial(asyncio.sleep, 0))),
            readable=True,
            take=Receiver().take,
            notify=lambda _: None,
            ledger=ParticipantLedger(core),
            now_ms=lambda: NOW,
        )
        repair = Repair(cast("Participant", participant))
        repair.wake()
        task = asyncio.create_task(repair.run())
        await asyncio.sleep(200)
        task.cancel()

    run_virtually(Timeline(START_NS), run())
    pauses = [round(after - before) for before, after in pairwise(asked_s)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
