"""Tests of what a participant's state holds is what its core held at the last transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.common.errors import ClientClosedError
from storenode.sds.aio.ledger import ParticipantLedger, revive
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.state import SqliteState, StateBatch, StateError, StateTakenError
from storenode.sds.bloom import FilterShape
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import Entry, SdsMessage, decode_message, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Broadcast, Packet
from storenode.sds.log import MessageLog
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
    state._drop_connection()
    other, _ = opened(path)
    other._drop_connection()
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
