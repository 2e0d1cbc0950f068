"""The state of a participant, and reliable channels."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.common.errors import ArgumentError, ClientClosedError
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Events
from storenode.sds.aio.ledger import ParticipantLedger, revive
from storenode.sds.aio.reliable import (
    AssemblyFailed,
    Content,
    ContentDropped,
    ContentReader,
    Found,
    MessageDelivered,
    MessageDeliveryError,
    MessageReceived,
    MessageSendError,
    MessageSent,
    ReliableChannel,
    ReliableEvent,
    SegmentationConfig,
    SegmentRefused,
    _Requests,
)
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.state import SqliteState, StateBatch, StateError, StateTakenError
from storenode.sds.bloom import FilterShape
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, SdsMessage, decode_message, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    GaveUp,
    Message,
    NotStored,
    Packet,
    Sent,
    Signed,
)
from storenode.sds.limits import MAX_CANDIDATES, MAX_SETS
from storenode.sds.log import Key, MessageLog
from storenode.sds.segments import Revision, Segment, SegmentSet, content_hash, read_segment, split
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessageProto
from tests.support.bus import PATIENCE_S, ROUTE, Bus, fetched, has, joined, now_ms
from tests.unit.sds.worlds import SMALL, grows_when_written, wire

START_NS = 1_763_625_600_000_000_000
NS_PER_MS = 1_000_000
NOW_MS = START_NS // NS_PER_MS
SHAPE = FilterShape(40, 0.01)
WHO = "room", "alice"


def config_of(sender: str, **chosen: Any) -> ChannelConfig:  # noqa: ANN401 - its options
    usual: dict[str, Any] = {
        "filter": SHAPE,
        "lost_after_ms": 20_000,
        "resend_ms": 2_000,
        "resend_possible_ms": 4_000,
        "max_sends": 3,
    }
    return ChannelConfig("room", sender, **{**usual, **chosen})


def opened(path: Path, **chosen: Any) -> tuple[SqliteState, ParticipantLedger]:  # noqa: ANN401 - options
    state = SqliteState(path, *WHO)
    return state, revive(state, config_of("alice", **chosen), NOW_MS, Random(1))


def save(state: SqliteState, ledger: ParticipantLedger) -> StateBatch:
    """Commit what has changed."""
    batch = ledger.take()
    assert batch is not None
    state.commit(batch)
    return batch


def facets(core: MessageChannel) -> dict[str, object]:
    """Return what must outlive the process."""
    core.check()

    return {
        "log": [(each.key, each.sender_id, each.hint) for each in core.log.entries()],
        "filter": core.filter.encode(),
        "clock": core.clock.value,
        "sends": core.sends,
        "lost": set(core.lost),
        "outgoing": {
            key: (each.message, each.due_ms, each.sends, list(each.witnesses), each.error)
            for key, each in core.outgoing.by_id.items()
        },
        "waiting": {
            each.message.message_id: (each.message, each.hint, set(each.unmet))
            for each in core.incoming.waiting.values()
            if each.message.content
        },
        "wants": set(core.incoming.wants),
        "unproven": dict(core.claims.unproven),
    }


class World:
    """Alice, whose state is saved, and two others who talk over a network that loses."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now_ns = START_NS
        self.others = [
            MessageChannel(config_of(name, repair=None), NOW_MS, rng) for name in ("bob", "carol")
        ]
        self.late: list[Packet] = []

    @property
    def now_ms(self) -> int:
        return self.now_ns // NS_PER_MS

    def step(self, ledger: ParticipantLedger) -> None:
        self.now_ns += self.rng.randrange(1, 3_000) * NS_PER_MS
        self.rng.choice((self.own, self.other, self.other, self.other, self.tick))(ledger)

    def own(self, ledger: ParticipantLedger) -> None:
        hint = self.rng.randbytes(32)
        sent_id, _ = ledger.send(self.now_ns, self.rng.randbytes(20), None, bytes, lambda *_: hint)
        if self.rng.random() < 0.7:
            item = ledger.outbox[sent_id]
            for other in self.others:
                other.receive(self.now_ms, [Packet(item.payload, hint)])
            ledger.note(ledger.core.published(sent_id, hint))
            ledger.settle(sent_id)

    def other(self, ledger: ParticipantLedger) -> None:
        speaker, listener = self.rng.sample(self.others, 2)
        (sent,) = (
            each
            for each in speaker.send(self.now_ms, self.rng.randbytes(20))
            if isinstance(each, Broadcast)
        )
        packet = Packet(sent.payload, self.rng.randbytes(32))
        listener.receive(self.now_ms, [packet])
        if self.rng.random() < 0.4:
            self.late.append(packet)
            return
        given = [packet]
        if self.late and self.rng.random() < 0.4:
            given.append(self.late.pop(self.rng.randrange(len(self.late))))
        if self.rng.random() < 0.3:
            # Somebody claims the ID of one of them, earlier or later, and keeps its causes or not.
            victim = decode_message(self.rng.choice(given + self.late).payload)
            history = victim.history if self.rng.random() < 0.5 else (Entry("invented"),)
            false = replace(victim, content=b"forged", history=history)
            packet = Packet(encode_message(false), self.rng.randbytes(32))
            given.insert(self.rng.randrange(len(given) + 1), packet)
        ledger.note(ledger.core.receive(self.now_ms, given))

    def tick(self, ledger: ParticipantLedger) -> None:
        ledger.note(ledger.core.tick(self.now_ms, self.rng))
        wanted = [each.message_id for each in ledger.core.missing()]
        if wanted and self.rng.random() < 0.3:
            ledger.note(ledger.core.abandon(self.now_ms, wanted[:1]))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_a_revived_core_is_the_one_of_the_last_transaction(seed: int) -> None:
    rng = Random(seed)
    world = World(rng)
    with TemporaryDirectory() as directory:
        path = Path(directory, "alice.db")
        state, ledger = opened(path)
        for _ in range(rng.randrange(2, 5)):
            for _ in range(rng.randrange(1, 30)):
                world.step(ledger)
                if rng.random() < 0.05 and (batch := ledger.take()):
                    state.commit(batch)
            ledger.stand("node", rng.randbytes(8))
            batch = save(state, ledger)
            state.commit(batch)  # as after an answer that was lost
            saved = facets(ledger.core)
            cursors, outbox, serial = dict(ledger.cursors), dict(ledger.outbox), ledger.serial
            world.step(ledger)  # unsaved changes are lost
            state.close()

            state, ledger = opened(path)

            assert facets(ledger.core) == saved
            assert ledger.cursors == cursors
            assert dict(ledger.outbox) == outbox
            assert ledger.serial == serial
        state.close()


def test_a_long_log_is_revived_with_its_old_part_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageLog.__init__, "__defaults__", (10,))
    state, ledger = opened(tmp_path / "alice.db")
    # The clocks of others decide what comes last in the log, and not what stays in memory.
    far = [Packet(wire(f"far{number}", lamport=2**63 + number)) for number in range(600)]
    ledger.note(ledger.core.receive(NOW_MS, far))
    bob = MessageChannel(config_of("bob", max_outgoing=10_000), NOW_MS, Random(2))
    for number in range(600):
        sent = bob.send(NOW_MS + number, b"%d" % number)[0]
        assert isinstance(sent, Broadcast)
        ledger.note(ledger.core.receive(NOW_MS + number, [Packet(sent.payload)]))
    assert len(save(state, ledger).log) == 1_200
    state.close()

    state, again = opened(tmp_path / "alice.db")
    again.core.log.check()
    assert len(again.core.log) == 1_200
    newest = [each.key for each in bob.log.entries()][-10:]
    assert [each.key for each in again.core.log.entries()][-10:] == newest
    assert all(each.message_id in again.core.log for each in bob.log.entries())
    state.close()


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    path = tmp_path / "alice.db"
    state, ledger = opened(path)
    ledger.gap(None)
    save(state, ledger)
    script = (
        "import sys\n"
        "from storenode.sds.aio.state import SqliteState, StateTakenError\n"
        "try:\n"
        "    SqliteState(sys.argv[1], 'room', 'alice').open()\n"
        "except StateTakenError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "in use by another process: end that one, or give this one a state of its own" in said
    state.close()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


def test_a_process_that_lost_the_state_writes_nothing_more(tmp_path: Path) -> None:
    # As on a database without a lock that ends with its holder.
    path = tmp_path / "alice.db"
    state, ledger = opened(path)
    state.close()
    other, _ = opened(path)
    other.close()
    ledger.gap(7)
    with pytest.raises(StateTakenError, match="in use by another process"):
        save(state, ledger)


async def test_a_call_that_waits_for_a_failing_state_ends_when_the_channel_is_left(
    tmp_path: Path,
) -> None:
    path = tmp_path / "alice.db"
    state, ledger = opened(path)
    state.close()
    path.unlink()
    path.mkdir()
    failed = asyncio.Event()
    saver = Saver(ledger, state, None, lambda *_: None, lambda _: failed.set())
    saving = asyncio.create_task(saver.run())
    ledger.send(START_NS, b"hello", None, bytes, lambda *_: b"")
    waiting = asyncio.create_task(saver.saved())
    async with asyncio.timeout(60):
        await failed.wait()
        assert not waiting.done()
        saving.cancel()
        await asyncio.wait({saving})
        saver.fail(ClientClosedError("The channel was left."))
        with pytest.raises(ClientClosedError):
            await waiting


def test_anothers_state_and_another_version_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "alice.db"
    opened(path)[0].close()
    with (
        closing(SqliteState(path, "room", "bob")) as state,
        pytest.raises(StateError, match="is of channel 'room' and sender 'alice'"),
    ):
        state.open()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update sds_participant set version = 7")
    with pytest.raises(StateError, match=r"has version 7, .* reads 3: begin a new state"):
        opened(path)


@pytest.mark.parametrize("where", ["/no/such/folder/x.db", "postgresql://me:secret@127.0.0.1:1/x"])
def test_a_state_that_cannot_be_opened_is_named(where: str) -> None:
    with pytest.raises(StateError, match="The state") as caught:
        SqliteState(where, *WHO).open()
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alice.db"
    path.write_bytes(b"something else entirely" * 400)
    with pytest.raises(StateError, match="cannot be used"):
        opened(path)


def test_a_message_that_grows_when_it_is_written_is_read_again(tmp_path: Path) -> None:
    payload = grows_when_written(f"c{number}" for number in range(200))
    state, ledger = opened(tmp_path / "alice.db", filter=SMALL)
    ledger.note(ledger.core.receive(NOW_MS, [Packet(payload, b"h")]))
    save(state, ledger)
    state.close()
    state, ledger = opened(tmp_path / "alice.db", filter=SMALL)
    assert list(ledger.core.incoming.ids) == ["full"]
    state.close()


def test_a_copy_that_takes_the_place_of_one_that_waits_does_so_on_disk(tmp_path: Path) -> None:
    now_ms, message_id = NOW_MS, sha256(b"yes").hexdigest()
    waits = SdsMessage("room", message_id, "eve", now_ms, (Entry("invented"),), content=b"yes")
    for each in (waits, replace(waits, sender_id="bob", history=())):
        state, ledger = opened(tmp_path / "alice.db")
        ledger.note(ledger.core.receive(now_ms, [Packet(encode_message(each))]))
        save(state, ledger)
        state.close()
    state, revived = opened(tmp_path / "alice.db")
    assert facets(revived.core) == facets(ledger.core)
    assert [each.sender_id for each in revived.core.log.entries()] == ["bob"]
    assert not revived.core.incoming.waiting
    state.close()


def test_ids_of_any_text_are_kept_in_order(tmp_path: Path) -> None:
    names = ["\0", "a\0b", "\ue000", "\U0001f600", "é", "z"]
    state, ledger = opened(tmp_path / "alice.db")
    bob = MessageChannel(config_of("bob\0"), NOW_MS, Random(2))
    for name in names:
        bob.clock.value = NOW_MS - 1
        sent = bob.send(NOW_MS, b"x", name)[0]
        assert isinstance(sent, Broadcast)
        bob.log = MessageLog(bytes(16))  # none of them depends on another
        ledger.note(ledger.core.receive(NOW_MS, [Packet(sent.payload)]))
    save(state, ledger)
    state.close()
    state, ledger = opened(tmp_path / "alice.db")
    rows = state.page(10, after=(0, ""), before=None, committed=1)
    assert [row["message_id"].decode() for row in rows] == sorted(names)
    assert [each.message_id for each in ledger.core.log.entries()] == sorted(names)
    (last,) = state.page(1, after=None, before=(NOW_MS, "\ue000"), committed=1)
    assert last["message_id"].decode() == "é"
    state.close()


COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(COUNTS, st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3))), st.randoms())
def test_a_request_is_sent_and_then_delivered_or_not_once(
    counts: list[int], lost: set[tuple[int, int]], rng: random.Random
) -> None:
    requests = _Requests()
    steps: list[Sent | NotStored | Acknowledged | GaveUp] = []
    for number, count in enumerate(counts):
        # All contents are equal: what belongs together follows from the order alone.
        whole = SegmentSet(bytes(32), count)
        for index in range(count):
            name = f"{number}-{index}"
            requests.unsent.add(name)
            requests.open.add(name)
            requests.add(name, Segment(whole, index, b""))
            end = GaveUp(name, 2) if (number, index) in lost else Acknowledged(name)
            steps += [Sent(name, None), end, Sent(name, None)]
    rng.shuffle(steps)
    reported = [event for step in steps for event in requests.take(step)]
    for number, count in enumerate(counts):
        mine = [event for event in reported if event.request_id == f"{number}-0"]
        failed = any((number, index) in lost for index in range(count))
        end_of = MessageDeliveryError if failed else MessageDelivered
        assert [type(each) for each in mine] == [MessageSent, end_of]
    assert not requests.of


@pytest.mark.parametrize("given_up", [False, True])
def test_a_request_of_the_last_life_goes_on_under_its_id(given_up: bool) -> None:
    # Two of three segments were acknowledged before, or one given up, and nodes hold all.
    requests, whole = _Requests(open=["m1"]), SegmentSet(bytes(32), 3)
    for index in range(3):
        segment = Segment(whole, index, b"")
        requests.add(f"m{index}", segment, acknowledged=index == 2 or (index == 0 and not given_up))
    requests.loaded()
    assert requests.take(Sent("m1", None)) == []
    (end,) = requests.take(Acknowledged("m1"))
    if given_up:
        assert isinstance(end, MessageDeliveryError)
        assert "1 of 3 segments" in end.error
    else:
        assert end == MessageDelivered("m0")
    assert not requests.of


def test_a_refusal_is_reported_once() -> None:
    requests = _Requests(["m0", "m1"], ["m0", "m1"])
    for index in range(2):
        requests.add(f"m{index}", Segment(SegmentSet(bytes(32), 2), index, b""))
    assert requests.take(NotStored("m1", "too large")) == [MessageSendError("m0", "too large")]
    assert requests.take(NotStored("m0", "too large")) == []
    assert requests.take(NotStored("unknown", "too large")) == []


CONTENT = random.Random(1).randbytes(8 * 256)
COUNT = 8
MIDDLE = 4


def of_alice(name: str, content: bytes, lamport: int, causes: Sequence[str] = ()) -> Message:
    history = tuple(map(Entry, causes))
    return Message(name, "alice", lamport, content, proof=Proof.MESSAGE, history=history)


def genuine() -> list[Message]:
    """Return the segments of a sender: each names the one before and another cause."""
    parts = split(CONTENT, 256, Revision.PUBLISHED)
    return [
        of_alice(f"m{number}", part, number, ["other", f"m{number - 1}"])
        for number, part in enumerate(parts)
    ]


def forged(
    count: int, index: int = MIDDLE, causes: Sequence[str] = (), **fields: int | bytes
) -> Sequence[Message]:
    made = []
    for number in range(count):
        segment = SegmentMessageProto(
            entire_message_hash=content_hash(CONTENT),
            data_segment_index=index,
            data_segment_count=COUNT,
            payload=b"forged %d" % number,
        )
        for name, value in fields.items():
            setattr(segment, name, value)
        name = f"f{index}-{number}-{len(causes)}"
        made.append(of_alice(name, segment.SerializeToString(), index, causes))
    return made


class Log:
    """The log of a channel, as a reader uses it."""

    def __init__(self) -> None:
        self.messages: dict[Key, Message] = {}

    async def at(self, key: Key) -> Message | None:
        """Return the message at a place."""
        return self.messages.get(key)


async def read(messages: Sequence[Message], noted: Sequence[Message] = ()) -> list[Found]:
    log = Log()
    reader = ContentReader(cast("Channel", log), 86_400_000)
    found: list[Found] = []
    for message in noted:
        log.messages[message.key] = message
        reader.note(0, message, read_segment(message.content))
    for message in messages:
        log.messages[message.key] = message
        found += await reader.take(0, message)
        reader._reassembly.check()
    return found


G = genuine()
BEFORE, AFTER = G[:MIDDLE], G[MIDDLE + 1 :]
CASES: dict[str, Callable[[], Sequence[Message]]] = {
    "three for a later index first": lambda: [*forged(3), *G],
    "three for each index first": lambda: [
        *(each for index in range(COUNT) for each in forged(3, index)),
        *G,
    ],
    "many that name the segment before": lambda: [*BEFORE, *forged(99, causes=["m3"]), *G[MIDDLE:]],
    "many in the place of one that comes late": lambda: [
        *BEFORE,
        *AFTER,
        *forged(999, causes=["m3"]),
        G[MIDDLE],
    ],
    "fewer than are kept between the genuine ones": lambda: [
        *G[: MIDDLE + 1],
        *forged(MAX_CANDIDATES - 1, causes=["m3"]),
        *AFTER,
    ],
    "one for the last index that names the one before": lambda: [
        *G[:-1],
        *forged(20, COUNT - 1, causes=["m6"]),
        G[-1],
    ],
    "another count": lambda: [*forged(99, data_segment_count=COUNT + 1), *G],
    "another hash": lambda: [*forged(99, entire_message_hash=content_hash(b"other")), *G],
    "each twice": lambda: [each for message in G for each in (message, message)],
    "in reverse": lambda: [*forged(3), *reversed(G)],
}


@pytest.mark.parametrize("case", CASES)
async def test_forged_segments_keep_no_content_away(case: str) -> None:
    found = await read(CASES[case]())
    assert [each.content for each in found if isinstance(each, Content)] == [CONTENT]


async def test_what_the_segments_of_an_earlier_run_completed_is_not_reported_again() -> None:
    copy = of_alice("copy", G[0].content, COUNT)
    assert await read([copy], noted=G) == []


async def test_a_failed_assembly_is_reported_at_once() -> None:
    messages = [*BEFORE, *AFTER, *forged(1)]
    assert await read(messages) == [AssemblyFailed("alice", COUNT, 1)]


async def test_parity_and_segments_past_the_count_are_refused_one_by_one() -> None:
    found = await read([*forged(1, is_parity=True), *forged(1, data_segment_index=COUNT), *G])
    assert [type(each) for each in found] == [SegmentRefused, SegmentRefused, Content]


async def test_a_signed_segment_is_tried_before_forged_ones() -> None:
    signed = [
        Message(each.message_id, "alice", each.lamport, each.content, signed=Signed.VALID)
        for each in G
    ]
    later = forged(99, causes=["m3"])
    found = await read([*signed[: MIDDLE + 1], *later, *signed[MIDDLE + 1 :]])
    assert [type(each) for each in found] == [Content]


async def test_a_content_that_never_has_its_hash_is_dropped_in_the_end() -> None:
    messages = [*BEFORE, *AFTER]
    for number in range(99):
        messages += forged(1, causes=["m3", *["x"] * number])
        last = SegmentMessageProto.FromString(G[-1].content).SerializeToString()
        messages.append(of_alice(f"last{number}", last, 99 + number, ["m6"]))
    messages[MIDDLE] = of_alice("m5", G[MIDDLE + 1].content, 5, [f"f4-0-{n}" for n in range(1, 9)])
    found = await read(messages)
    assert not [each for each in found if isinstance(each, Content)]
    assert sum(each.attempts for each in found if isinstance(each, AssemblyFailed)) == 64 + 16
    assert [type(each) for each in found if not isinstance(each, AssemblyFailed)] == [
        ContentDropped
    ]


async def test_contents_dropped_for_lack_of_space_are_reported() -> None:
    endless = [
        SegmentMessageProto(
            entire_message_hash=number.to_bytes(32), data_segment_count=255, payload=b"x"
        ).SerializeToString()
        for number in range(MAX_SETS + 2)
    ]
    sent = [of_alice(f"e{number}", each, number) for number, each in enumerate(endless)]
    dropped = ContentDropped("alice", 1, 255)
    assert (await read([of_alice("plain", b"no segment", 0), *sent]))[1:] == [dropped, dropped]


# Reliable channels on a bus


def quick(sender: str) -> ChannelConfig:
    """Return options of a participant that acknowledges at once."""
    return ChannelConfig("room", sender, sync_min_ms=100, sync_max_ms=200, filter_every=1)


async def next_of(
    events: Events[ReliableEvent], kind: type[ReliableEvent], count: int
) -> list[Any]:
    """Return the next events of a kind."""
    return [
        await anext(each async for each in events if isinstance(each, kind)) for _ in range(count)
    ]


async def test_a_large_content_comes_whole_over_a_link_that_loses_half() -> None:
    rng, content = random.Random(0), random.Random(1).randbytes(200_000)
    bus = Bus(drops=lambda name, _: name == "b" and rng.random() < 0.5)
    small = SegmentationConfig(segment_bytes=1_024)
    async with (
        asyncio.timeout(PATIENCE_S),
        ReliableChannel.join(
            bus.transport("a"), "room", "alice", config=quick("alice"), segmentation=small
        ) as alice,
        ReliableChannel.join(
            bus.transport("b"), "room", "bob", config=quick("bob"), segmentation=small
        ) as bob,
    ):
        for each in (alice, bob):
            await each.channel.wait_for(lambda status: status.synced)
        reported, ends, arrivals = alice.events(), alice.events(), bob.events()
        ids = [await alice.send(content), await alice.send(b"")]
        came = [each.content for each in await next_of(arrivals, MessageReceived, 2)]
        expected = [(ids[0], "alice", content, False), (ids[1], "alice", b"", False)]
        assert [(c.request_id, c.sender_id, c.content, c.own) for c in came] == expected
        # Each once, and nothing else of a request.
        assert await next_of(reported, MessageSent, 2) == [MessageSent(each) for each in ids]
        delivered = await next_of(ends, MessageDelivered, 2)
        assert set(delivered) == {MessageDelivered(each) for each in ids}
        for channel in (alice, bob):
            messages = channel.messages()
            log = [await anext(messages) for _ in range(2)]
            assert [each.content for each in log] == [content, b""]
            assert [each.own for each in log] == [channel is alice] * 2


async def test_a_receiver_that_restarts_between_segments_has_the_content_once(
    tmp_path: Path,
) -> None:
    bus, state = Bus(), tmp_path / "bob.db"
    segments = split(b"0123456789" * 100, 256, Revision.NIM)
    async with asyncio.timeout(PATIENCE_S), joined(bus.transport("a"), "alice") as alice:
        await alice.send_all(segments[:4])
        async with (
            joined(bus.transport("b"), "bob", state=state) as channel,
            ReliableChannel.over(channel),
        ):
            await has(channel, 4)
        async with (
            joined(bus.transport("b"), "bob", state=state) as channel,
            ReliableChannel.over(channel) as bob,
        ):
            arrivals = bob.events()
            await alice.send_all(segments[4:])
            await alice.send_all(split(b"next", 256, Revision.PUBLISHED))
            came = await next_of(arrivals, MessageReceived, 2)
            assert [each.content.content for each in came] == [b"0123456789" * 100, b"next"]


async def test_what_no_node_takes_and_what_no_participant_acknowledges_is_reported() -> None:
    config = ChannelConfig("room", "alice", resend_ms=200, resend_possible_ms=400, max_sends=2)
    async with (
        asyncio.timeout(PATIENCE_S),
        ReliableChannel.join(Bus().transport(), "room", "alice", config=config) as alice,
    ):
        reported, ends = alice.events(), alice.events()
        with pytest.raises(ArgumentError, match="content is str, not bytes"):
            await alice.send("text")  # type: ignore[arg-type]
        refused = await alice.send(b"forbidden")
        expected = MessageSendError(refused, "That word is not allowed.")
        assert await next_of(reported, MessageSendError, 1) == [expected]
        taken = await alice.send(b"nobody is there")
        assert await next_of(reported, MessageSent, 1) == [MessageSent(taken)]
        given_up = await next_of(ends, MessageDeliveryError, 2)
        assert {each.request_id for each in given_up} == {refused, taken}


async def test_a_segment_published_under_our_name_is_no_request_of_ours() -> None:
    bus = Bus()
    forged_segment = fetched(
        SdsMessage("room", "forged", "alice", now_ms(), content=forged(1)[0].content)
    )
    async with (
        joined(bus.transport("a"), "alice") as channel,
        ReliableChannel.over(channel) as alice,
    ):
        await channel.wait_for(lambda status: status.synced)
        bus.add(ROUTE, forged_segment)
        await has(channel, 1)
        events = alice.events()
        request = await alice.send(b"content")
        async with asyncio.timeout(PATIENCE_S):
            assert await anext(events) == MessageSent(request)
        assert len(alice._requests.of) == 1
