"""The library alone, as an application has it: its name, its weight, its commands, its types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storenode.cli.main import COMMANDS
from tests.install.environment import VERSION, Environment
from tests.support.command import Command
from tests.support.node import NodeProcess
from tests.support.pages import ROOT, files

MAX_INSTALLED_BYTES = 60 * 1024 * 1024
OF_THE_NODE = {name: command.extra for name, command in COMMANDS.items() if command.extra}
TOPIC = ("--content-topic", "/installed/1/lobby/proto")
IMPORT_EVERYTHING = """
import importlib, json, pkgutil, sys
import storenode
for module in pkgutil.walk_packages(storenode.__path__, "storenode."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
HEAVY = {"alembic", "numpy", "pandas", "psycopg", "pyspark", "reconcile", "sqlalchemy", "store"}

FOREIGN_MODULES = (
    *("demo", "gossip", "message", "migrations", "pipeline"),
    *("reconcile", "sds", "sim", "store", "wire"),
)
"""Names that an application may well have for modules of its own."""

APPLICATION = """
import asyncio
import sys

from storenode.client import AsyncClient, Client, Message, Outcome
from storenode.sds.aio.channel import Channel
from storenode.sds.events import Message as Said

TOPIC = "/installed/1/app/proto"


def publish(node: str) -> bytes:
    with Client(node) as client:
        message = Message(b"typed", TOPIC)
        published = client.publish(message)
        assert published.outcome is Outcome.STORED
        assert published.hash == message.hash
        return message.hash


async def stored(node: str) -> set[bytes]:
    async with AsyncClient(node) as client, client.scan(TOPIC) as messages:
        return {message.hash async for message in messages}


async def first(channel: Channel) -> Said:
    async for message in channel.messages():
        return message
    raise AssertionError("the channel ended")


async def main(node: str, state: str) -> None:
    assert await asyncio.to_thread(publish, node) in await stored(node)
    async with Channel.join(node, "installed-app", "alice", state=state) as channel:
        message_id: str = await channel.send(b"hello")
        await channel.wait_for(lambda status: status.synced and not status.unpublished)
        assert (await first(channel)).message_id == message_id


asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.fixture(scope="session")
def command(library: Environment, node: NodeProcess) -> Command:
    """Return the installed command, set to call the shared node."""
    return library.calling(node)


def names_of(folder: Path) -> set[str]:
    """Return the top-level names that an installed distribution has put there."""
    listed = (folder / "RECORD").read_text(encoding="utf-8").splitlines()
    tops = {line.partition(",")[0].partition("/")[0] for line in listed}
    return {top for top in tops if top != ".." and not top.endswith(".dist-info")}


def test_one_name_is_installed(library: Environment) -> None:
    (folder,) = library.site_packages.glob("storenode*.dist-info")
    assert folder.name == f"storenode-{VERSION}.dist-info"
    assert names_of(folder) == {"storenode"}


def test_it_is_light(library: Environment) -> None:
    files = [path for path in library.site_packages.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_INSTALLED_BYTES


def test_no_module_imports_what_only_the_node_needs(library: Environment) -> None:
    ended = library.run("-c", IMPORT_EVERYTHING)
    assert ended.code == 0, ended.err
    imported = set(json.loads(ended.out))
    assert {"storenode", "grpc"} <= imported
    assert not imported & HEAVY


def test_commands_publish_read_and_chat(command: Command) -> None:
    published = command.ok("publish", *TOPIC, "--lines", stdin=b"one\ntwo\n")
    assert [line.split()[0] for line in published.lines] == ["STORED"] * 2
    assert [line.split()[-1] for line in command.ok("scan", *TOPIC).lines] == ["one", "two"]
    assert f'"version": "{VERSION}"' in command.ok("status", "--json").out
    chat = ("chat", "--channel", "installed-chat")
    command.ok(*chat, "--name", "alice", stdin=b"hello\n")
    said = command.ok(*chat, "--name", "bob", stdin=b"welcome\n").lines
    assert [line.split("  ")[1] for line in said] == ["alice: hello", "bob: welcome"]


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--no-such-option",)])
def test_commands_of_the_node_say_what_to_install(
    library: Environment, arguments: tuple[str, ...]
) -> None:
    ended = library.storenode("run", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "storenode: The command `run` comes with the node, which is not installed: install it"
        f" by `pip install 'storenode[{OF_THE_NODE['run']}]'`.\n"
    )


def test_help_lists_them_apart(library: Environment) -> None:
    here, missing = library.storenode.ok("--help").out.split("Commands of the node, not installed:")
    for name, command in COMMANDS.items():
        assert f"\n  {name} " in (missing if command.extra else here)
    for extra in OF_THE_NODE.values():
        assert f"(pip install 'storenode[{extra}]')" in " ".join(missing.split())


def test_a_configuration_file_of_a_node_serves_clients_too(
    command: Command, library: Environment, node: NodeProcess
) -> None:
    config = library.elsewhere / "storenode.toml"
    config.write_text(
        f'node = "{node.listen}"\nretention = "7d"\n\n'
        '[run]\nlisten = "127.0.0.1:7420"\nsync-interval = "5m"\n\n[db.prune]\nretention = "7d"\n\n'
        '[scan]\ncontent-topic = ["/installed/1/configured/proto"]\n'
    )
    command.ok("publish", "--content-topic", "/installed/1/configured/proto", "configured")
    scanned = library.storenode.ok("scan", "--config", str(config))
    assert [line.split()[-1] for line in scanned.lines] == ["configured"]
    config.write_text("[scan]\nno-such-option = 1\n")
    ended = library.storenode("scan", "--config", str(config))
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert "no-such-option in [scan], which is no option of storenode" in ended.err


def test_applications_and_examples_are_checked_strictly(library: Environment) -> None:
    folder = library.elsewhere / "typed"
    folder.mkdir()
    example = "examples/git_history.py"
    programs = {"application.py": APPLICATION, Path(example).name: (ROOT / example).read_text()}
    for page in ("docs/tutorial.md", "docs/client.md"):
        programs |= files((ROOT / page).read_text())
    names = [name for name in programs if name.endswith(".py")]
    assert len(names) == 8
    for name in names:
        (folder / name).write_text(programs[name])
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--python-executable", library.python),
            *("--cache-dir", os.devnull, "--config-file", "", *names),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_application_may_have_modules_of_any_other_name(
    library: Environment, node: NodeProcess
) -> None:
    folder = library.elsewhere / "named"
    folder.mkdir()
    for name in FOREIGN_MODULES:
        (folder / f"{name}.py").write_text(
            f"raise ImportError('{name} is the application's own')\n"
        )
    script = folder / "application.py"
    script.write_text(APPLICATION)
    ended = library.run(str(script), node.listen, str(folder / "alice.db"))
    assert (ended.code, ended.err) == (0, "")
