"""The Python programs of the pages and the examples of docstrings run as they stand there."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import trustme

import storenode
from storenode.client import Admin, AsyncAdmin, Client, Message
from storenode.client.sds_messages import sds_payload
from storenode.sds.aio.channel import Channels
from storenode.sds.aio.reliable import ReliableChannel
from tests.support.node import NodeProcess, clean_environment, running_node
from tests.support.pages import ROOT, as_shown, blocks, files, fragments, matches, steps
from tests.support.postgres import copy_cluster

NODE, SECOND_NODE, ADMIN = "127.0.0.1:7420", "127.0.0.1:7430", "127.0.0.1:7421"
PROGRAM_TIMEOUT_S = 120
SDS_PAGES = ("sds.md", "reliable-channel.md", "sds-protocol.md")
README, TUTORIAL, CLIENT = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/tutorial.md", "docs/client.md")
)
TUTORIAL_TOPIC = "/readings/1/kitchen/proto"
CHECKS = """
assert refused == []
assert count == len(hashes) > 10_000
assert len(page.messages) == len(older.messages) == 20
try:
    async with asyncio.timeout(60):
        following = asyncio.create_task(follow(client))
        while not Path("position").exists():
            await client.publish(Message(b"more", TOPIC))
finally:
    following.cancel()
assert Path("position").read_bytes()
"""
"""Checks that follow the lines of the client's page."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(copy_cluster(tmp_path_factory.mktemp("programs") / "node")) as process:
        yield process


@pytest.fixture
def own(tmp_path: Path, database_url: str) -> Iterator[NodeProcess]:
    """Yield a node that a test may kill, with an empty database."""
    with running_node(tmp_path / "own", database_url=database_url) as process:
        yield process


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readings")


def save(folder: Path, page: str, node: NodeProcess) -> None:
    """Make the files of a page, which call a node that runs elsewhere."""
    for name, body in files(page).items():
        (folder / name).write_text(body.replace(NODE, node.listen))


def start(folder: Path, *command: str, stderr: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=clean_environment(PYTHONPATH=str(ROOT), PYTHONFAULTHANDLER="1"),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def ended(folder: Path, name: str) -> tuple[int, str, str]:
    """Run a program to its end; return its exit code and what it printed."""
    with start(folder, name, stderr=subprocess.PIPE) as process:
        printed, errors = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    return process.returncode, printed, errors


def run(folder: Path, name: str) -> str:
    code, printed, errors = ended(folder, name)
    assert code == 0, errors
    return printed


@contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of the page until the block ends."""
    with start(folder, *command) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def interrupted(process: subprocess.Popen[str]) -> int:
    """Return the exit code of a program after Ctrl-C; one that continues prints its stacks."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(PROGRAM_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        return process.wait()


def publish(node: NodeProcess, *texts: str) -> None:
    with Client(node.listen) as client:
        for text in texts:
            client.publish(Message(text.encode(), TUTORIAL_TOPIC))


def test_the_lines_of_the_readme(folder: Path, node: NodeProcess) -> None:
    (program,) = blocks(README, "python")
    assert len([text for text in program.splitlines() if text]) == 5
    (folder / "five.py").write_text(program.replace(NODE, node.listen))
    assert run(folder, "five.py").endswith("b'hello'\n")
    assert len(README.split()) <= 900


def test_publishing_catching_up_and_following_through_kills_of_either_side(
    folder: Path, own: NodeProcess, node: NodeProcess
) -> None:
    save(folder, TUTORIAL, own)
    assert len(steps(TUTORIAL)) == 5
    as_shown(steps(TUTORIAL), {}, folder)
    with running(folder, "follow.py") as follower:
        publish(own, "1", "2")
        assert [line(follower), line(follower)] == ["1", "2"]
        publish(own, "3")
        assert line(follower) == "3", "the page before it is processed, and its cursor kept"
    publish(own, "4")
    with running(folder, "follow.py") as follower:
        # A page whose cursor was not yet kept is delivered again.
        first = line(follower)
        assert first in {"3", "4"}
        assert first == "4" or line(follower) == "4"
        own.kill()
        own.start()
        publish(own, "5")
        assert line(follower) == "5"
        assert interrupted(follower) == -signal.SIGINT
    for stop, shown in ((NodeProcess.terminate, "draining"), (NodeProcess.kill, "connection lost")):
        (folder / "position").unlink(missing_ok=True)
        with running(folder, "errors.py") as program:
            assert line(program) == "21.5"
            stop(own)
            rest = [text for text in iter(partial(line, program), "") if ": " in text]
            assert [text.partition(": ")[0] for text in rest] == [shown]
        if stop is NodeProcess.terminate:
            own.start()
    assert run(folder, "errors.py").startswith("unreachable: ")
    own.start()
    run(folder, "catch_up.py")
    save(folder, TUTORIAL, node)
    assert run(folder, "errors.py").startswith("cursor refused: ")
    code, _, errors = ended(folder, "follow.py")
    assert (code, "The position is kept in position." in errors) == (1, True)
    (folder / "position").unlink()
    publish(node, "elsewhere")
    with running(folder, "follow.py") as follower:
        assert line(follower) == "elsewhere"


def test_two_participants_hear_each_other_and_what_they_missed(
    folder: Path, node: NodeProcess
) -> None:
    save(folder, TUTORIAL, node)
    kettle, way = "alice: the kettle is on", "bob: on my way"
    with (
        running(folder, "room.py", "bob", "on my way") as bob,
        running(folder, "room.py", "alice", "the kettle is on") as alice,
    ):
        for participant in (alice, bob):
            assert {line(participant), line(participant)} == {kettle, way}
    with running(folder, "room.py", "alice") as alice:
        assert {line(alice), line(alice)} == {kettle, way}


def test_the_lines_of_the_clients_page_are_a_program(
    folder: Path, tmp_path: Path, database_url: str
) -> None:
    with (
        running_node(tmp_path / "a", database_url=database_url) as first,
        running_node(tmp_path / "b", database_url=database_url) as second,
    ):
        trustme.CA().cert_pem.write_to_path(str(folder / "ca.pem"))
        _publish_a_conversation(first)
        program = _program_of_the_clients_page()
        for documented, real in (
            (NODE, first.listen), (SECOND_NODE, second.listen), (ADMIN, first.admin),
        ):  # fmt: skip
            program = program.replace(documented, real)
        (folder / "page.py").write_text(program)
        printed = run(folder, "page.py")
        assert "0 copies elsewhere" in printed
        assert "['a1', 'b1', 'c1'] [('lost', None)]" in printed
        assert "RESOURCE_EXHAUSTED" in printed or "QUERY_4" in printed, printed
        save(folder, CLIENT, first)
        assert run(folder, "blocking.py") == "1001\n"


def _publish_a_conversation(node: NodeProcess) -> None:
    """Publish the messages of the channel ``lobby`` that the page looks up."""
    with Client(node.listen) as client:
        for name, *parents in (("a1",), ("b1", "a1"), ("c1", "b1", "lost")):
            payload = sds_payload(
                "lobby", name, b"x", sender_id="me", parents=[(each, None) for each in parents]
            )
            client.publish(Message(payload, "/my-app/1/lobby/proto"))


def _program_of_the_clients_page() -> str:
    """Return the page's lines as one function, with checks of their results."""
    body = "\n".join((*fragments(CLIENT, "python"), CHECKS))
    body = textwrap.indent(body, "    ")
    return f"import asyncio\n\nasync def main():\n{body}\nasyncio.run(main())\n"


def test_the_programs_of_the_pages_about_sds(folder: Path, own: NodeProcess) -> None:
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in SDS_PAGES]
    for page in pages:
        save(folder, page, own)
    for lines in (1, 2):
        assert run(folder, "hello.py") == "alice: hello\n" * lines, "it continues from its state"
    before = {*folder.glob("*.db")}
    assert run(folder, "many.py") == "3 channels\n"
    assert len({*folder.glob("*.db")} - before) == 3
    assert run(folder, "protocol.py") == "[b'hello']\n"
    for page, name in zip(pages, ("signatures.py", "album.py"), strict=False):
        (step,) = steps(page)
        assert step.command == f"python {name}"
        output = run(folder, name)
        assert matches(step.output, output), output


# The examples of public classes, in the form of their class

CLASSES: list[type] = [
    *(getattr(storenode, name) for name in storenode.__all__ if name[0] != "_"),
    *(Admin, AsyncAdmin, Channels, ReliableChannel),
]
BLOCKING: set[type] = {storenode.Client, storenode.Channel, Admin}
EXAMPLE = re.compile(r"( +)```python\n(.*?)\n\1```", re.DOTALL)
CONNECTED: dict[type, str] = {
    storenode.Client: 'with Client("127.0.0.1:7420") as client:',
    storenode.AsyncClient: 'async with AsyncClient("127.0.0.1:7420") as client:',
}
ENDLESS = ("in feed", ".messages()", "in events")
EXAMPLE_TIMEOUT_S = 60.0


def examples(text: str | None) -> list[str]:
    return [dedent(code) for _, code in EXAMPLE.findall(text or "")]


def execute(code: str, names: dict[str, Any]) -> None:
    if "async " not in code and "await " not in code:
        exec(code, names)
        return
    exec(f"async def main():\n{indent(code, '    ')}", names)

    async def limited() -> None:
        async with asyncio.timeout(EXAMPLE_TIMEOUT_S):
            await names["main"]()

    asyncio.run(limited())


@pytest.mark.parametrize("kind", CLASSES, ids=[kind.__name__ for kind in CLASSES])
def test_the_examples_of_a_class_and_of_its_methods_run(
    kind: type, node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = examples(kind.__doc__)
    assert own
    members = [getattr(kind, name) for name in vars(kind) if name[0] != "_"]
    calls = [code for each in members for code in examples(getattr(each, "__doc__", None))]
    assert not calls or kind in CONNECTED
    wait = "await " if kind not in BLOCKING else ""
    message = 'Message(b"hello", "/my-app/1/chat/proto")'
    for code in [*own, *calls]:
        assert kind not in BLOCKING or not re.search("async |await ", code)
        printed: list[tuple[object, ...]] = []

        def show(*values: object, code: str = code, printed: Any = printed) -> None:  # noqa: ANN401
            printed.append(values)
            if any(each in code for each in ENDLESS):
                raise EOFError  # it would never end

        names: dict[str, Any] = {each.__name__: each for each in CLASSES}
        names |= {"datetime": datetime, "timedelta": timedelta, "UTC": UTC, "print": show}
        names |= {"readings": [b"1", b"2"], "picture": bytes(300_000)}
        whole = code
        if code in calls:
            body = f"result = {wait}client.publish({message})\n{code}"
            whole = f"{CONNECTED[kind]}\n{indent(body, '    ')}"
        for documented, address in (("7420", node.listen), ("7421", node.admin)):
            whole = whole.replace(f"127.0.0.1:{documented}", address)
        with suppress(EOFError):
            execute(whole, names)
        assert bool(printed) == ("print(" in code)
