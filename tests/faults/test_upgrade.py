"""Two real versions: the one before hands its data over, and works beside this one until then."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storenode.client.node import connect
from tests.faults.conftest import PATIENT
from tests.support.acknowledged import (
    Follower,
    Ledger,
    Publisher,
    check_node,
    following,
    hashes_of,
    publishing,
    scanned,
)
from tests.support.cluster import copy_cluster
from tests.support.command import Command
from tests.support.fleet import NS_PER_S, exchanging, hashes, held, made, publish, synchronize
from tests.support.node import NodeProcess
from tests.support.pages import ROOT, blocks
from tests.support.polling import eventually
from tests.support.postgres import PostgresServer
from tests.support.release import VERSION, Release, unpack

NOW = importlib.metadata.version("storenode")
TOPIC = ("--content-topic", "/upgrade/1/lobby/proto")
CHANNEL = "upgraded"
PAGE = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")

# A participant of either version: it says lines, and prints its log when all of it is published, or
# ends at once like a killed one.
PARTICIPANT = """
import asyncio, json, os, sys
from importlib import import_module

package, node, channel_id, name, state, how, *lines = sys.argv[1:]
Channel = import_module(f"{package}.channel").Channel

async def main():
    async with Channel.join(node, channel_id, name, state=state) as channel:
        if how == "stay":
            await channel.wait_for(lambda status: status.synced)
        for line in lines:
            await channel.send(line.encode())
        if how == "stay":
            await channel.wait_for(lambda status: status.synced and not status.unpublished)
        log = await channel.log()
        told = [[each.lamport, each.message_id, each.content.decode()] for each in log]
        print(json.dumps(told), flush=True)
        if how == "die":
            os._exit(0)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The version before."""
    return Release.installed(tmp_path_factory.mktemp("before"))


@pytest.fixture
def nodes() -> Iterator[ExitStack]:
    """Closes the nodes that a test enters."""
    with ExitStack() as stack:
        yield stack


def newer(node: NodeProcess) -> NodeProcess:
    """A node of this version in the place of one that has ended."""
    assert not node.running
    return NodeProcess(node.data_dir, node.args, node.database_url, ports=node.ports)


def calling(command: Command, node: NodeProcess) -> Command:
    """A command of either version, set to call a node."""
    called = {"STORENODE_NODE": node.listen, "STORENODE_ADMIN": node.admin}
    return replace(command, env={**command.env, **called})


def version_of(node: NodeProcess) -> str:
    """What a node says of itself."""
    (status,) = calling(Command(), node).ok("status", "--json").objects
    return str(status["version"])


def participant(
    node: str, name: str, state: str, how: str, *lines: str, release: Release | None = None
) -> list[Any]:
    """Run a participant of a version; its log."""
    package, env = ("storenode.sds.aio", {}) if release is None else ("sds.aio", release.env)
    program = Command(env, (sys.executable, "-c", PARTICIPANT))
    ended = program.ok(package, node, f"{CHANNEL}-{name}", name, state, how, *lines)
    (log,) = ended.objects
    return list(log)


def said(log: Sequence[Any]) -> list[str]:
    """The contents of a log."""
    return [content for _, _, content in log]


def follow_cursor(command: Command) -> str:
    """Follow to the end; the cursor to go on from."""
    shown = command.ok("follow", "--from-beginning", "--until-live").err
    found = re.search(r"--cursor ([0-9a-f]+)", shown)
    assert found is not None, shown
    return found[1]


def first_page(command: Command, messages: int) -> tuple[list[bytes], str]:
    """The hashes of the first page of a scan, and its cursor."""
    shown = command.start("scan", "--json", "--cursors", "--page-size", str(messages))
    assert shown.stdout is not None
    lines = [json.loads(shown.stdout.readline()) for _ in range(messages + 1)]
    shown.kill()
    shown.communicate()
    return [bytes.fromhex(each["message_hash"]) for each in lines[:-1]], lines[-1]["cursor"]


def renamed() -> dict[str, str]:
    """The imports of the version before, and those of this one, as the page lists them."""
    table = PAGE.partition("**In an application,**")[2].partition("\n\nThe state")[0]
    rows = [re.findall(r"`([a-z.]+)`", row) for row in table.splitlines() if row.startswith("| `")]
    return {
        old: new
        for names in rows
        for old, new in zip(names[: len(names) // 2], names[len(names) // 2 :], strict=True)
    }


def test_imports_were_and_are_as_the_page_says(before: Release) -> None:
    names = renamed()
    assert len(names) == 6
    for env, wanted in ((before.env, names.keys()), ({}, names.values())):
        program = (sys.executable, "-c", f"import {', '.join(wanted)}")
        assert Command(env, program, before.packages).ok().err == ""


def test_what_is_installed_is_the_version_before(before: Release) -> None:
    assert before.command.ok("--version").out == f"storenode {VERSION}\n"
    assert NOW != VERSION
    inside = (sys.executable, "-c", "import store, sds; print(store.__file__, sds.__file__)")
    places = Command(before.env, inside, before.packages)().out.split()
    assert all(place.startswith(str(before.packages)) for place in places)


def test_a_clone_without_that_version_is_told_what_to_fetch(tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    cloning = ["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(shallow)]
    subprocess.run(cloning, check=True)
    with pytest.raises(pytest.fail.Exception, match=f"version {VERSION}: fetch the whole history"):
        unpack(tmp_path / "source", shallow)


async def test_a_data_directory_is_taken_over_with_cursors_and_participants(
    before: Release, nodes: ExitStack, tmp_path: Path, postgres: PostgresServer
) -> None:
    in_postgres = postgres.url(postgres.create_database())
    states = {
        "alice": str(tmp_path / "alice.db"),
        "bob": in_postgres.replace("postgresql:", "postgresql+psycopg:"),
    }
    old = before.node(tmp_path / "data")
    nodes.callback(old.close)
    old.start()
    assert version_of(old) == VERSION
    command = calling(before.command, old)
    lines = "".join(f"line {number}\n" for number in range(300))
    command.ok("publish", *TOPIC, "--lines", stdin=lines.encode())
    for name, parents in (("a", ()), ("b", ("--parent", "a"))):
        sds = ("--channel", CHANNEL, "--sender", "tool", "--message-id", name, *parents)
        command.ok("publish", *TOPIC, *sds, name)
    logs = {
        name: participant(old.listen, name, state, "stay", "one", "two", release=before)
        for name, state in states.items()
    }
    cursor = follow_cursor(command)
    page, scan_cursor = first_page(command, 100)
    published = held(old)
    assert old.terminate() == 0, old.log_tail()
    for name, state in states.items():
        after = participant(old.listen, name, state, "die", "while away", release=before)
        assert said(after) == ["one", "two", "while away"]

    node = newer(old)
    nodes.callback(node.close)
    node.start()

    assert version_of(node) == NOW
    command = calling(Command(), node)
    async with connect(node.listen) as client:
        assert set(await scanned(client)) == published
        rest = [
            each
            async for part in client.scan(cursor=bytes.fromhex(scan_cursor))
            for each in hashes_of(part)
        ]
    assert sorted([*page, *rest]) == sorted(published)
    assert "b" in command.ok("causal-history", "--channel", CHANNEL, "b").out
    assert command.ok("follow", "--cursor", cursor, "--until-live").out == ""
    command.ok("publish", *TOPIC, "after")
    assert command.ok("follow", "--cursor", cursor, "--until-live").lines[0].endswith("  after")
    for name, state in states.items():
        whole = participant(node.listen, name, state, "stay", "three")
        assert whole[:2] == logs[name]
        assert said(whole) == ["one", "two", "while away", "three"]
        assert whole == sorted(whole)
        ids = [message_id for _, message_id, _ in whole]
        got = command.ok("get", "--channel", f"{CHANNEL}-{name}", *ids).out
        assert all(f"{name}: {content}" in got for content in said(whole))
    command.ok("db", "check", "--data-dir", str(node.data_dir))


async def test_nodes_on_one_database_are_replaced_while_clients_publish(
    before: Release, nodes: ExitStack, tmp_path: Path, empty_database_url: str
) -> None:
    ledger = Ledger()
    url = ("--database-url", empty_database_url)
    before.command.ok("db", "upgrade", *url)
    old = [before.node(tmp_path / name, *PATIENT, database_url=url[1]) for name in ("a", "b")]
    for each in old:
        nodes.callback(each.close)
        each.start()
    assert [version_of(each) for each in old] == [VERSION] * 2
    follower = Follower(old[1].listen)
    publishers = [
        Publisher(each.listen, ledger, Random(number), messages=3)
        for number, each in enumerate(old)
    ]
    before.command.ok("db", "check", *url)
    async with following(follower):
        async with publishing(publishers):
            await ledger.more(100)
            await asyncio.to_thread(Command().ok, "db", "upgrade", "--before-restart", *url)
            await ledger.more(100)
            for index, each in enumerate(old):
                assert await asyncio.to_thread(each.terminate) == 0, each.log_tail()
                await ledger.more(100)
                node = newer(each)
                nodes.callback(node.close)
                await asyncio.to_thread(node.start)
                assert await asyncio.to_thread(version_of, node) == NOW
                if index == 0:
                    assert await asyncio.to_thread(version_of, old[1]) == VERSION
                await ledger.more(100)
            await asyncio.to_thread(Command().ok, "db", "upgrade", *url)
            await ledger.more(100)
        for each in old:
            kept = await check_node(each.listen, ledger)
            assert kept == ledger.sent
        await follower.has_all(ledger.sent)
    Command().ok("db", "check", *url)
    (body,) = blocks(PAGE, "sh")
    shown = [line.split("#")[0].strip() for line in body.splitlines() if line[0] != "#"]
    assert shown == [
        "storenode db check",
        "storenode db upgrade --before-restart",
        "storenode db upgrade",
        "storenode db check",
    ]


@pytest.mark.parametrize("caller", ["before", "now"])
async def test_peers_of_two_versions_exchange_and_reconcile(
    before: Release, nodes: ExitStack, tmp_path: Path, caller: str
) -> None:
    """Whoever calls: what either side lacks comes by reconciliation, what is new by gossip."""
    options = ("--max-clock-drift", "off", "--sync-interval", "0")
    old = before.node(tmp_path / "old", *options)
    new = NodeProcess(copy_cluster(tmp_path / "new"), options)
    for each in (old, new):
        nodes.callback(each.close)
    called, calls = (new, old) if caller == "before" else (old, new)
    called.start()
    calls.args = (*options, "--peer", called.peer, "--gossip", "off")
    calls.start()
    assert (version_of(old), version_of(new)) == (VERSION, NOW)
    settled_ns = time.time_ns() - 60 * NS_PER_S
    lacking = [made(400, settled_ns, seed=seed) for seed in (1, 2)]
    for node, messages in zip((old, new), lacking, strict=True):
        await publish(node, messages)
    ended, report = synchronize(calls)
    assert ended.code == 0, ended
    assert report["in_sync"]
    assert (report["missing_here"], report["missing_there"]) == (400, 400)
    both = hashes([*lacking[0], *lacking[1]])
    assert held(old) == held(new) == both

    assert calls.terminate() == 0, calls.log_tail()
    calls.args = (*options, "--peer", called.peer)
    calls.start()
    exchanging(calls, 1)
    for node, seed in ((old, 3), (new, 4)):
        messages = made(50, time.time_ns(), span_s=1, seed=seed)
        both |= hashes(messages)
        await publish(node, messages)
    assert eventually(lambda: held(old) == held(new) == both)
