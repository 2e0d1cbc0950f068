"""`storenode chat`: two people at their terminals, and pipes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import Command
from tests.support.node import COMMAND, NodeProcess, clean_environment

ROWS, COLUMNS = 30, 100
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78]|\r")
_PAUSE_S = 0.15
_LOCAL_FLAGS = 3


class Terminal:
    """Close it: the program is killed if it has not ended."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str],
        *,
        columns: int = COLUMNS,
        term: str = "xterm",
    ) -> None:
        self._master, slave = pty.openpty()
        self._width = self._columns = columns
        self._shown = b""
        self._resize()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": term, "COLORTERM": "", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._master, text.encode())

    def wait(self, found: Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """Wait until what was shown since the start is as wanted, and return it.

        The program is made to draw its prompt and what is below it again and again.
        """
        deadline = time.monotonic() + timeout_s
        while not found(text := self._screen()):
            assert time.monotonic() < deadline, f"the terminal shows\n{text}"
        return text

    def shows(self, *wanted: str) -> str:
        """Wait until all of some texts were shown."""
        return self.wait(lambda text: all(each in text for each in wanted))

    def _screen(self) -> str:
        # The program draws what has changed, but all of it when the window has another width.
        self._columns = self._width + (self._columns == self._width)
        self._resize()
        os.killpg(self.process.pid, signal.SIGWINCH)
        while data := self._read():
            self._shown += data
        return _CONTROL.sub(b"", self._shown).decode("utf-8", "replace")

    def left(self, timeout_s: float = 60.0) -> tuple[int, bytes, bool]:
        """Wait until it has ended: its code, what it wrote last, whether keys are echoed again."""
        code = self.process.wait(timeout_s)
        shown = b""
        while data := self._read(ended=True):
            shown += data
        return code, shown, bool(termios.tcgetattr(self._master)[_LOCAL_FLAGS] & termios.ECHO)

    def close(self) -> None:
        """Kill what runs, and let go of the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, *, ended: bool = False) -> bytes:
        """Return what is written before the program pauses, or what is left when it has ended."""
        if not select.select([self._master], [], [], _PAUSE_S)[0]:
            return b""
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the program has closed its end
            data = b""
        assert data or ended, "the program has ended"
        return data

    def _resize(self) -> None:
        size = struct.pack("HHHH", ROWS, self._columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)


@contextmanager
def chatting(
    node: NodeProcess, room: str, name: str, *more: str, columns: int = 100, term: str = "xterm"
) -> Iterator[Terminal]:
    command = [COMMAND, "chat", "--channel", room, "--name", name, *more]
    environment = clean_environment(STORENODE_NODE=node.listen)
    terminal = Terminal(command, environment, columns=columns, term=term)
    try:
        yield terminal
    finally:
        terminal.close()


def test_two_people_see_each_others_lines_and_whether_they_came(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    kept = ("--state", str(tmp_path / "alice.db"))
    with chatting(node, room, "alice", *kept) as alice, chatting(node, room, "bob") as bob:
        for each in (alice, bob):
            each.shows("up to date")
        for number in range(3):
            for name, terminal, other in (("alice", alice, bob), ("bob", bob, alice)):
                terminal.type(f"{name} says {number}\r")
                other.shows(f"{name}: {name} says {number}")
        # Bob's history has named what alice said: she sees the mark.
        alice.shows("✓ alice says 0")
        alice.type("\x03")
        assert alice.process.wait(60) == 0
    with chatting(node, room, "alice", *kept) as alice:
        # Also that bob has her first line is remembered.
        alice.shows("✓ alice: alice says 0", "alice says 2", "bob says 2")
        alice.process.send_signal(signal.SIGKILL)


def test_a_paste_commands_and_a_second_participant_of_one_name(
    node: NodeProcess, room: str
) -> None:
    family = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
    with chatting(node, room, "alice") as alice, chatting(node, room, "bob") as bob:
        for each in (alice, bob):
            each.shows("up to date")
        bob.type("hi\r")
        alice.shows("bob: hi")
        pasted = "\r".join(f"row {number} of it" for number in range(200))
        alice.type(f"\x1b[200~{pasted}\x1b[201~\r")
        # One message: its rows are below each other.
        bob.shows(f"alice: row 0 of it\n{' ' * 8}row 1 of it\n")
        bob.shows("row 199 of it\n")
        alice.type("Bob: look\r")
        bob.shows("alice: Bob: look")
        alice.type("/help\r/nonsense\r//literally\r")
        alice.shows("/missing", "There is no command /nonsense")
        alice.type("bo\t")
        alice.shows("> bob")
        alice.type(f": {family} come\x1b\rto dinner\r")
        said = ("alice: /literally", f"alice: bob: {family} come", "to dinner")
        shown = bob.shows(*said)
        assert "/help" not in shown
        assert "/nonsense" not in shown
        with chatting(node, room, "bob") as other:
            other.shows("bob (not here): hi")
            other.type("me too\r")
            reported = "Another participant writes as bob now"
            bob.shows(reported, "bob (not here): me too", "NAME USED TWICE")
        alice.type("/quit\r")
        assert alice.process.wait(60) == 0


def test_what_is_missing_is_said_in_words(node: NodeProcess, room: str) -> None:
    command = Command.of(node)
    with chatting(node, room, "alice") as alice:
        alice.shows("up to date")
        topic = ("--content-topic", f"/sds/1/{room}/proto", "--channel", room)
        named = ("--sender", "carol", "--message-id", "b", "--parent", "withheld")
        command.ok("publish", *topic, *named, "an answer")
        alice.shows("1 missing, being fetched")
        alice.type("/missing\r/names\r")
        reported = ("withheld, known by its ID alone", "Not shown until then: 1 message")
        alice.shows(*reported, "carol: last heard at")
        # It comes, and with it what waited.
        command.ok("publish", *topic, "--sender", "dora", "--message-id", "withheld", "a question")
        alice.shows("dora: a question", "carol: an answer", "up to date")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(
    node: NodeProcess, room: str, number: signal.Signals
) -> None:
    with chatting(node, room, "alice") as alice:
        alice.shows("up to date")
        alice.type("hello\r")
        alice.shows("alice: hello")
        alice.process.send_signal(number)
        code, _, echoes = alice.left()
        assert (code, echoes) == (0, True)


def test_who_leaves_without_a_node_learns_what_was_not_sent(node: NodeProcess, room: str) -> None:
    with chatting(node, room, "alice", "--node", "127.0.0.1:1", columns=80) as alice:
        reason = "No node could be reached at 127.0.0.1:1 (Connection refused)"
        reported = "Lines are sent when a node is reached."
        alice.wait(lambda text: reason in text and reported in " ".join(text.split()))
        alice.type("hello\r")
        alice.shows("1 not sent")
        alice.type("/quit\r")
        code, last, _ = alice.left()
        assert (code, b"storenode: 1 line not sent: No node could be" in last) == (3, True)


def test_a_terminal_whose_cursor_cannot_be_moved_gets_lines(node: NodeProcess, room: str) -> None:
    with chatting(node, room, "alice", term="dumb") as alice:
        alice.type("hello\n/names\n\x04")
        code, shown, _ = alice.left()
        assert (code, b"\x1b" in shown) == (0, False)
        assert b"alice: hello\r\n" in shown
        assert b"alice: /names\r\n" in shown


def said_in(node: NodeProcess, room: str) -> list[str]:
    """Return the lines of a room, without their times."""
    said = Command.of(node).ok("chat", "--channel", room, "--name", "bob").lines
    return [line.split("  ")[1] for line in said]


def test_closed_streams_are_empty_ones(node: NodeProcess, room: str) -> None:
    closed = '"$0" "$@" <&- >&- 2>&-'
    chat = ("chat", "--channel", room, "--name", "alice")
    for redirected in (closed, closed.replace("<&-", "")):
        shell = Command(Command.of(node).env, program=("sh", "-c", redirected, COMMAND))
        assert shell(*chat, stdin=b"hello\n").code == 0
    assert said_in(node, room) == ["alice: hello"]


def test_lines_of_a_pipe_learn_at_once_that_no_node_is_reachable(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    command = Command.of(node)
    chat = ("chat", "--channel", room, "--name", "alice")
    nowhere = ("--node", "127.0.0.1:1")
    lost = command(*chat, *nowhere, stdin=b"hello\n")
    assert (lost.code, lost.out) == (3, "")
    reason, ended = lost.err.splitlines()
    assert "127.0.0.1:1 (Connection refused)" in reason
    assert "Trying for 3 s" in reason
    assert ended.startswith("storenode: Nothing was sent: No node could be reached")
    state = ("--state", str(tmp_path / "alice.db"))
    kept = command(*chat, *nowhere, *state, stdin=b"hello\n")
    assert (kept.code, "1 line kept in the state" in kept.err) == (3, True)
    command.ok(*chat, *state)
    assert said_in(node, room) == ["alice: hello"]


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
