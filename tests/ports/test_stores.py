"""The simulator's store answers as the one on Postgres does, and both as a plain account."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest

from reconcile.ids import SyncId, SyncIds
from reconcile.view import NeedIds, Spans
from sim.messages import Message, message_of
from sim.node import drop_old
from sim.process import Process
from sim.scenario import Faults, GossipScenario, draw_with_gossip
from sim.store import SimFeed, SimIds, SimMessages, SimSds, SimStatements, SimStore, SimUnread
from sim.timeline import Timeline
from sim.world import World
from store.db.coverage import DatabaseOnlineTimes, DatabaseStatements
from store.db.gossip import GossipReads, UnreadRows
from store.db.messages import DatabaseReader
from store.db.reconciliation import DatabaseIds
from store.db.retention import prune
from store.db.sds import DatabaseSdsReader
from store.domain.admission import Admission
from store.domain.coverage import Statement, Statements
from store.domain.hub import START, CommitRow
from store.domain.partitioning import HOUR_NS
from store.domain.ports import HistoryEntry, SdsLookup, SdsLookups, Source, TopicFilter, Writer
from store.domain.retention import RetentionPolicy
from store.domain.unread import Confirmed
from store.domain.view import StoredIds
from store.gossip.driver.ports import Messages, UnreadTable
from store.gossip.limits import GossipLimits
from store.sync.transfer.transfer import TransferReads
from storenode.message.rules import Policy
from storenode.sds.codec import encode
from tests.integration.storage.node import RETENTION, running
from tests.integration.storage.world import DAY, NOW
from tests.support.polling import PAUSE_S

_T = TypeVar("_T")
USUAL_CONFIRMS: Final = 1
"""The number of stores that must confirm a new message, even if its publisher requests none."""

PUBSUB: Final = "/waku/2/rs/1/0"
CHANNEL: Final = "room"
OLD_NS: Final = NOW - RETENTION - 2 * DAY
MOMENTS: Final = [OLD_NS, OLD_NS + 1, *(NOW - number * HOUR_NS for number in range(40))]


@dataclass
class Store:
    """The ports of a store, and what its feed has reported."""

    writer: Writer
    transfers: TransferReads
    messages: Messages
    unread: UnreadTable
    sds: SdsLookups
    statements: Statements
    online: Any
    ids: StoredIds
    drop_old: Callable[[], Awaitable[object]]
    made: Callable[[Message], None] = lambda _: None
    commits: list[CommitRow] = field(default_factory=list)
    timeline: Timeline | None = None

    async def store(self, messages: Sequence[Message], min_confirms: int = 0) -> list[bool]:
        """Store messages of a client, and wait until the feed has reported their commit."""
        admission = Admission(Policy(max_drift_ns=None), NOW, Source.CLIENT)
        for message in messages:
            self.made(message)
        admission.admit([message.encoded for message in messages])
        found = await self.writer.store(admission.admitted.batch, Source.CLIENT, min_confirms)
        newest = (await self.ids.newest(START)).place
        while newest != START and (not self.commits or self.commits[-1].place != newest):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)
        return list(found)

    async def result_of(self, work: Awaitable[_T]) -> _T:
        """Return the result of some work, for which time passes in a simulation."""
        task = asyncio.ensure_future(work)
        while self.timeline is not None and not task.done():
            self.timeline.step()
            await asyncio.sleep(0)
        return await task


class Stores:
    """A simulated and a real store, which must give each call one answer."""

    def __init__(self, simulated: Store, real: Store) -> None:
        self.both = simulated, real

    async def ask(self, call: Callable[..., Awaitable[_T]], *arguments: object) -> _T:
        simulated, real = [await each.result_of(call(each, *arguments)) for each in self.both]
        assert simulated == real, f"simulated: {simulated!r}\nreal: {real!r}"
        return real


@asynccontextmanager
async def simulated() -> AsyncIterator[Store]:
    """Open a store of the simulator, whose timeline goes as fast as it can."""
    rng = random.Random(0)
    drawn = draw_with_gossip(rng, beside=True, nodes=2)
    gossip = GossipScenario(
        beside=True, limits=GossipLimits(), max_confirms=USUAL_CONFIRMS, min_confirms=(0,)
    )
    scenario = replace(drawn, faults=Faults(), gossip=gossip, partition_ns=DAY)
    world = World(scenario, rng)
    node = world.nodes[0]
    process = node.process = Process(node)
    store = SimStore(process)
    opened = Store(
        writer=store,
        transfers=store,
        messages=SimMessages(process),
        unread=SimUnread(process, lambda _: None),
        sds=SimSds(process),
        statements=SimStatements(process),
        online=store,
        ids=SimIds(process),
        drop_old=lambda: node.database.look(
            lambda: drop_old(process, RetentionPolicy(RETENTION), NOW)
        ),
        made=world.judge.make,
        timeline=world.timeline,
    )
    follower: Any = SimpleNamespace(start=lambda: None, commits=opened.commits.extend)
    feed = asyncio.create_task(SimFeed(process, [follower]).run())
    try:
        yield opened
    finally:
        feed.cancel()


@asynccontextmanager
async def on_postgres(url: str) -> AsyncIterator[Store]:
    commits: list[CommitRow] = []
    async with running(url, on_commits=commits.extend, max_confirms=USUAL_CONFIRMS) as node:
        database = node.database

        async def drop() -> None:
            async with await database.connect() as connection:
                await prune(connection, RetentionPolicy(RETENTION), NOW)

        yield Store(
            writer=node.writer,
            transfers=DatabaseReader(database),
            messages=GossipReads(database),
            unread=UnreadRows(database),
            sds=DatabaseSdsReader(database),
            statements=DatabaseStatements(database),
            online=DatabaseOnlineTimes(database),
            ids=DatabaseIds(database),
            drop_old=drop,
            commits=commits,
        )


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[Stores]:
    async with simulated() as one, on_postgres(database_url) as other:
        yield Stores(one, other)


def messages_of(rng: random.Random, count: int) -> list[Message]:
    return [
        message_of(PUBSUB, "/a/1/b/proto", rng.randbytes(rng.choice((2, 9, 300))), time_ns)
        for time_ns in rng.choices(MOMENTS, k=count)
    ]


def is_old(message: Message) -> bool:
    return message.timestamp_ns < NOW - RETENTION - DAY


async def test_messages_are_stored_once_and_read_by_position(stores: Stores) -> None:
    rng = random.Random(1)
    known = {message.digest: message for message in messages_of(rng, 120)}
    present: dict[bytes, Message] = {}
    for turn in range(12):
        part = list(
            {each.digest: each for each in rng.choices(list(known.values()), k=15)}.values()
        )
        new = await stores.ask(Store.store, part)
        assert new == [message.digest not in present for message in part]
        present |= {message.digest: message for message in part}
        if turn == 8:
            await stores.ask(dropped)
            present = {digest: each for digest, each in present.items() if not is_old(each)}
            known = {digest: each for digest, each in known.items() if not is_old(each)}
    here = [(each.timestamp_ns, digest) for digest, each in present.items()]
    absent = [(NOW, bytes(32)), *((time_ns + 1, digest) for time_ns, digest in here[:5])]
    ids = SyncIds.of(sorted([*here, *absent]))
    assert await stores.ask(lambda store: store.transfers.are_stored(ids)) == [
        at in here for at in ids.pairs()
    ]
    bodies = [present[at[1]].encoded if at in here else None for at in ids.pairs()]
    for most_bytes, count in ((1, 9), (2_000, len(ids)), (10**9, len(ids))):
        assert await stores.ask(all_bodies, ids[:count], most_bytes) == bodies[:count]
    hashes = [bytes(32), *present]
    wanted = [None, *(each.encoded for each in present.values())]
    for store in stores.both:
        found = list(await store.result_of(store.messages.load(hashes, 3_000)))
        assert found == wanted[: len(found)]
        assert sum(len(body or b"") for body in found) <= 3_000
        assert list(await store.result_of(store.messages.load(hashes[1:], 1))) == wanted[1:2]
    digests = await stores.ask(lambda store: store.messages.content_digests(hashes))
    assert [digest is not None for digest in digests] == [False, *(True for _ in present)]


async def dropped(store: Store) -> None:
    await store.drop_old()


async def all_bodies(store: Store, ids: SyncIds, most_bytes: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < len(ids):
        part = await store.transfers.load(ids[len(found) :], most_bytes)
        sizes = [len(body) for body in part if body is not None]
        assert part
        assert sum(sizes) <= most_bytes or len(sizes) == 1
        found += part
    return found


async def test_commits_are_reported_and_read_and_views_show_what_is_stored(stores: Stores) -> None:
    rng = random.Random(2)
    present: dict[SyncId, Message] = {}
    batches = [messages_of(rng, 8) for _ in range(6)]
    for batch in batches:
        await stores.ask(Store.store, batch)
        present |= {(each.timestamp_ns, each.digest): each for each in batch}
    await stores.ask(dropped)
    present = {at: each for at, each in present.items() if not is_old(each)}

    async def commits(store: Store) -> list[tuple[int, int, int]]:
        return [(each.messages, each.min_ts, each.max_ts) for each in store.commits]

    assert [each[0] for each in await stores.ask(commits)] == [len(batch) for batch in batches]

    async def added(store: Store) -> list[list[SyncId]]:
        return [sorted((await store.ids.ids_of([commit])).pairs()) for commit in store.commits]

    expected = [
        sorted(at for at in present if any(at[1] == each.digest for each in batch))
        for batch in batches
    ]
    assert await stores.ask(added) == expected

    async def arrived(store: Store) -> list[bytes]:
        return sorted((await store.messages.arrived(store.commits)).ids)

    assert await stores.ask(arrived) == sorted(digest for _, digest in present)

    async def is_served(store: Store) -> list[bool]:
        last = store.commits[-1].place
        places = [last, store.commits[0].place, (last[0], last[1] ^ 1), (last[0] + 1, 0)]
        found = [await store.ids.newest(place) for place in places]
        assert {each.place for each in found} == {last}
        return [each.served for each in found]

    assert await stores.ask(is_served) == [True, True, False, False]
    spans = Spans.of([((NOW - 9 * HOUR_NS, bytes(32)), (NOW - 2 * HOUR_NS, bytes(32)))])
    within = [at for at in sorted(present) if NOW - 9 * HOUR_NS <= at[0] < NOW - 2 * HOUR_NS]

    async def shown(store: Store) -> tuple[list[SyncId], list[bytes], object]:
        async with store.ids.open_cold() as view:
            found = await view.load(NeedIds(spans, 100))
            assert isinstance(found, SyncIds)
            contents = await view.contents(SyncIds.of(within))
            sums = await view.lattices([(0, NOW - DAY), (NOW - DAY, NOW + 1)])
            digests = [] if contents.digests is None else [bytes(each) for each in contents.digests]
            return list(found.pairs()), digests, sums and [each.digest() for each in sums]

    found, digests, _ = await stores.ask(shown)
    assert found == within
    assert len(digests) == len(within)


async def test_the_last_time_online_is_the_later_one_unless_it_is_ahead(stores: Stores) -> None:
    assert await stores.ask(lambda store: store.online.last()) == 0
    for online_ns, now_ns, kept_ns in (
        (NOW, NOW, NOW),
        (NOW - 1, NOW, NOW),
        (NOW + DAY, NOW + DAY, NOW + DAY),
        (NOW + 1, NOW + 2, NOW + 1),
    ):
        await stores.ask(lambda store, *times: store.online.note(*times), online_ns, now_ns)
        assert await stores.ask(lambda store: store.online.last()) == kept_ns


async def test_statements_replace_older_ones_about_the_same_time(stores: Stores) -> None:
    rng, first_ns = random.Random(4), NOW // HOUR_NS * HOUR_NS - 40 * HOUR_NS
    for turn in range(30):
        start = rng.randrange(30)
        statements = [
            Statement(
                first_ns + hour * HOUR_NS,
                first_ns + (hour + 1) * HOUR_NS,
                NOW + turn,
                rng.random() < 0.8,
                *rng.choice(((0, 0), (0, 0), (1, 0), (0, 2))),
                hour,
                bytes([hour]) * 32,
            )
            for hour in range(start, start + rng.randint(1, 8))
        ]
        name = f"store-{rng.randrange(3)}"
        await stores.ask(
            lambda store, *stated: store.statements.note(*stated), name, statements, NOW + turn
        )
        about = first_ns + start * HOUR_NS, first_ns + (start + 5) * HOUR_NS
        assert name in await stores.ask(between, *about)


async def between(store: Store, start_ns: int, end_ns: int) -> dict[str, list[Statement]]:
    found = await store.statements.between(start_ns, end_ns)
    return {name: list(statements) for name, statements in found.items()}


async def test_sds_ids_are_missing_that_no_stored_message_claims(stores: Stores) -> None:
    rng, channel = random.Random(6), CHANNEL.encode()
    proven, content = sha256(b"content").hexdigest(), {True: b"content", False: b"other"}
    present: list[tuple[str, Message]] = []
    for turn in range(8):
        names = [*(f"m{number}" for number in rng.sample(range(40), 5)), proven]
        payloads = [encode(CHANNEL, name, content=content[turn > 5]) for name in names]
        part = [
            (name, message_of(PUBSUB, "/a/1/b/proto", payload, rng.choice(MOMENTS)))
            for name, payload in zip(names, payloads, strict=True)
        ]
        await stores.ask(Store.store, [message for _, message in part])
        present += part
        if turn == 4:
            await stores.ask(dropped)
            present = [each for each in present if not is_old(each[1])]
        hints = [None, bytes(32), *(message.digest for _, message in present)]
        asked = [HistoryEntry(b"m%d" % number, rng.choice(hints)) for number in range(45)]
        entries = (*asked, HistoryEntry(proven.encode()))
        request = SdsLookup(channel, entries, TopicFilter(), prefer_proven=True)
        missing, unproven = await stores.ask(lambda store, it: store.sds.doubtful(it), request)
        claimed = {name.encode() for name, _ in present}
        assert list(missing) == [each for each in entries if each.message_id not in claimed]
        assert [each.message_id.decode() for each in unproven] == [proven] * (turn < 6)


async def test_unread_events_are_confirmed_and_expire(stores: Stores) -> None:
    rng = random.Random(5)
    messages = list({each.digest: each for each in messages_of(rng, 60)}.values())
    hashes = [each.digest for each in messages]
    events: dict[bytes, tuple[int, set[str]]] = {}
    stored: set[bytes] = set()
    for _ in range(60):
        match rng.randrange(5):
            case 0 | 1:
                part, asked = rng.sample(messages, 5), rng.randrange(3)
                new = await stores.ask(Store.store, part, asked)
                stored |= {each.digest for each in part}
                for digest, usual in zip((each.digest for each in part), new, strict=True):
                    needed, by = events.get(digest, (0, set()))
                    if needed := max(needed, asked, USUAL_CONFIRMS * usual):
                        events[digest] = needed, by
            case 2 | 3:
                pairs = [Confirmed(rng.choice(hashes), rng.choice("abcd")) for _ in range(9)]
                await stores.ask(lambda store, all_: store.unread.confirm(all_), pairs)
                for digest in {each.message_hash for each in pairs} & events.keys():
                    needed, by = events.pop(digest)
                    by = by | {each.store_id for each in pairs if each.message_hash == digest}
                    if len(by) < needed:
                        events[digest] = needed, by
        found = await stores.ask(rows)
        assert {digest: (needed, by) for digest, needed, by in found} == events
    gone = list(events)[:2]
    await stores.ask(lambda store: store.unread.expire(gone))
    left = await stores.ask(rows)
    assert {each[0] for each in left} == set(events) - set(gone)
    assert len(await stores.ask(rows, gone)) == len(gone)
    assert not await stores.ask(lambda store: store.unread.is_shared())


Row = tuple[bytes, int, set[str]]


async def rows(store: Store, hashes: Sequence[bytes] | None = None) -> list[Row]:
    reading = store.unread.newest(1_000) if hashes is None else store.unread.of(hashes)
    found = await reading
    return sorted((each.message_hash, each.needed, set(each.stores)) for each in found)
