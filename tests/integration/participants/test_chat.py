"""`storenode chat`: two people at their terminals, and pipes."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from storenode.cli.chat import plain
from storenode.cli.chat.limits import MAX_SHOWN_LINES
from storenode.cli.chat.plain import PlainChat
from storenode.cli.chat.transcript import Mark, Transcript
from storenode.cli.client.output import Output
from storenode.sds.aio.bus import Bus
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Message, Repaired
from storenode.sds.events import Acknowledged, GaveUp, PossiblyAcknowledged, Sent
from tests.support.command import Command
from tests.support.node import COMMAND, NodeProcess, clean_environment
from tests.support.terminal import Terminal


@contextmanager
def chatting(node: NodeProcess, room: str, name: str, *more: str) -> Iterator[Terminal]:
    command = [COMMAND, "chat", "--channel", room, "--name", name, *more]
    terminal = Terminal(command, clean_environment(STORENODE_NODE=node.listen))
    try:
        yield terminal
    finally:
        terminal.close()


def contains(wanted: str, text: str) -> bool:
    return wanted in text


def test_two_people_see_each_others_lines_in_the_same_order(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    kept = ("--state", str(tmp_path / "alice.db"))
    with chatting(node, room, "alice", *kept) as alice, chatting(node, room, "bob") as bob:
        for each in (alice, bob):
            each.wait(lambda text: "synced at" in text)
        said = []
        for number in range(3):
            for name, terminal, other in (("alice", alice, bob), ("bob", bob, alice)):
                line = f"{name} says {number}"
                said.append(f"{name}: {line}")
                terminal.type(line + "\r")
                other.wait(partial(contains, f": {line}"))
        for terminal in (alice, bob):
            shown = terminal.wait(lambda text: all(line in text for line in said))
            # What is drawn last is the whole screen.
            places = [shown.rindex(line) for line in said]
            assert places == sorted(places)
        # Bob's history has named what alice said: she sees the mark.
        alice.wait(lambda text: re.search(r"✓ \S+ \S+  alice: alice says 0", text) is not None)
        alice.type("\x03")
        assert alice.process.wait(60) == 0
    with chatting(node, room, "alice", *kept) as alice:
        alice.wait(lambda text: "alice says 2" in text and "bob says 2" in text)
        alice.process.send_signal(signal.SIGKILL)


def test_pipes_say_lines_and_print_what_was_said(node: NodeProcess, room: str) -> None:
    command = Command.of(node)
    chat = ("chat", "--channel", room)
    first = command.ok(*chat, "--name", "alice", stdin=b"one\n\ntwo \x1b[31m\n")
    assert [line.split("  ")[1] for line in first.lines] == ["alice: one", r"alice: two \x1b[31m"]
    second = command.ok(*chat, "--name", "bob", stdin=b"three\n")
    assert [line.split("  ")[1] for line in second.lines] == [
        "alice: one",
        r"alice: two \x1b[31m",
        "bob: three",
    ]
    assert f"connected to {node.listen}" in second.err


async def test_where_lines_come_from_is_said_before_them_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what came while the log was read."""
    shown: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(plain, "note", shown.put_nowait)
    monkeypatch.setattr(Output, "line", lambda _, text: shown.put_nowait(text))
    bus = Bus()

    async def read_late(channel: Channel, count: int) -> list[Message]:
        await channel.wait_for(lambda status: status.synced)
        return await read(channel, count)

    async with Channel.join(bus.transport("there"), "room", "alice") as alice:
        await alice.send(b"hello")
        await alice.wait_for(lambda status: not status.unpublished)
        async with Channel.join(bus.transport("here"), "room", "bob") as bob:
            read = Channel.log
            monkeypatch.setattr(Channel, "log", read_late)
            async with bob.events() as events:
                printing = asyncio.create_task(PlainChat(bob)._print(events))
                assert await shown.get() == "connected to here"
                assert (await shown.get()).endswith("alice: hello")
                await alice.send(b"again")
                assert (await shown.get()).endswith("alice: again")
                events.close()
                await printing
    assert shown.empty()


def test_what_is_wrong_is_said_in_a_sentence(node: NodeProcess, room: str, tmp_path: Path) -> None:
    command = Command.of(node)
    chat = ("chat", "--channel", room, "--name", "alice")
    nowhere = command(*chat, "--node", "nowhere")
    assert (nowhere.code, nowhere.out) == (2, "")
    assert "'nowhere' is not the address of a node" in nowhere.err
    nameless = command("chat", "--channel", room)
    assert (nameless.code, "--name" in nameless.err) == (2, True)
    folder = command(*chat, "--state", str(tmp_path))
    assert (folder.code, "cannot be used" in folder.err) == (1, True)
    empty = command("chat", "--channel", "", "--name", "alice")
    assert (empty.code, "channel_id has 0 bytes" in empty.err) == (2, True)


def own(name: str, lamport: int) -> Message:
    return Message(name, "alice", lamport, name.encode(), own=True, published=False)


def test_marks_never_go_back() -> None:
    transcript = Transcript()
    line = transcript.take(own("a", 1))
    assert line is not None
    seen = [line.mark]
    for event in (
        Sent("a", None),
        PossiblyAcknowledged("a", 1, 0.1),
        Sent("a", None),
        Acknowledged("a"),
        GaveUp("a", 3),
    ):
        transcript.take(event)
        seen.append(line.mark)
    assert seen[:3] == [Mark.WAITING, Mark.STORED, Mark.POSSIBLY]
    assert seen[3:] == [Mark.POSSIBLY, Mark.ACKNOWLEDGED, Mark.ACKNOWLEDGED]


def test_late_lines_are_put_in_their_place_and_remarks_stay_where_they_were() -> None:
    transcript = Transcript()
    transcript.take(own("first", 1))
    transcript.take(own("third", 3))
    transcript.take(Repaired(2, 1, 1))
    transcript.take(own("second", 2))
    transcript.take(own("second", 2))
    assert [line.text.rpartition(": ")[2] for line in transcript.lines] == [
        "first",
        "second",
        "third",
        "1 of 2 came, in 1 calls",
    ]


def test_old_lines_make_room() -> None:
    transcript = Transcript()
    for number in range(MAX_SHOWN_LINES + 10):
        transcript.take(own(str(number), number))
    assert len(transcript.lines) == MAX_SHOWN_LINES
    assert transcript.lines[0].key == (10, "10")
    # The largest clock there is has no date, and is a line all the same.
    assert transcript.take(own("far", 2**64 - 1)) is not None
