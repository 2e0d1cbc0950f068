"""Commands and files of the pages run as they are shown: the tour, peers, databases, backups."""

from __future__ import annotations

import os
import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest

from chaos.soak.postgres import choose_programs
from store.domain.access import parse_token_file
from storenode.client import Client, Message, TlsIdentity
from tests.support import grpcurl
from tests.support.command import Command
from tests.support.fleet import NS_PER_S, database_of, exchanging, hashes, made, publish
from tests.support.node import COMMAND, NodeProcess, running_node
from tests.support.pages import (
    ROOT,
    Step,
    as_shown,
    blocks,
    matches,
    run_in_one_shell,
    section,
    steps,
)
from tests.support.postgres import copy_cluster


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_commands_on_a_database(database_url: str) -> None:
    outputs = run_in_one_shell(steps(page("database.md")), {"STORENODE_DATABASE_URL": database_url})
    assert len(outputs) == 7
    assert all("Found no fault" in outputs[n] for n in (3, 4)), outputs


def test_an_upgrade_step_by_step(empty_database_url: str) -> None:
    env = {"STORENODE_DATABASE_URL": empty_database_url}
    run_in_one_shell([Step("storenode db upgrade", "")], env)
    (body,) = blocks(page("upgrading.md"), "sh")
    todo = [Step(line, "") for line in body.splitlines() if not line.startswith("#")]
    assert len(todo) == 3
    outputs = run_in_one_shell(todo, env)
    assert "already" in outputs[1], outputs


def test_a_session_between_two_machines(tmp_path: Path) -> None:
    text = page("peers.md")
    certificates = re.sub(r"10\.0\.0\.\d", "127.0.0.1", blocks(text, "sh")[0])
    run_in_one_shell([Step(certificates, "")], {}, tmp_path)
    ca = tmp_path / "peers-ca.pem"

    def node(name: str, *more: str) -> AbstractContextManager[NodeProcess]:
        tls = (f"--tls-cert={tmp_path / name}.pem", f"--tls-key={tmp_path / name}.key")
        quiet = ("--sync-interval=0", "--gossip=off", "--max-clock-drift=off")
        listening = ("--peer-listen=127.0.0.1:0", f"--tls-ca={ca}")
        return running_node(copy_cluster(tmp_path / name), *tls, *listening, *quiet, *more)

    with (
        node("node-a", "--allow-peer=node-b.example") as a,
        node("node-b", f"--peer=node-a.example@{a.peer}") as b,
        Client(a.listen, tls=TlsIdentity(ca=ca.read_bytes())) as client,
    ):
        now_ns = time.time_ns() - 60 * NS_PER_S
        client.publish_many([Message(b"", "/a/1/b/proto", timestamp=now_ns + n) for n in range(9)])
        step = steps(text)[0]
        (printed,) = run_in_one_shell([step], {"STORENODE_ADMIN": b.admin}, tmp_path)
    assert matches(_without_numbers(step.output), _without_numbers(printed)), printed


def _without_numbers(text: str) -> str:
    return re.sub(r"[0-9][0-9,.:TZ-]*", "N", text)


def test_the_token_file_of_the_page_is_one() -> None:
    (body,) = blocks(page("access.md"), "toml")
    clients = (parse_token_file(body).clients or {}).values()
    assert [client.name for client in clients] == ["chat-app", "operator"]


def test_the_configuration_file_of_the_page_is_one(tmp_path: Path) -> None:
    (body,) = blocks(page("configuration.md"), "toml")
    config = tmp_path / "storenode.toml"
    config.write_text(body)
    # Everything in it is read; the first thing that is wrong is not there on this machine.
    ended = Command()("run", "--config", str(config), "--data-dir", str(tmp_path / "node"))
    assert (ended.code, "/etc/storenode/ca.pem" in ended.err) == (2, True), ended


def lines(*abouts: str) -> list[Step]:
    """Return the commands of the blocks of the page that contain one of some words."""
    shells = blocks((ROOT / "docs" / "backup.md").read_text(encoding="utf-8"), "sh")
    found = [body for about in abouts for body in shells if about in body]
    assert len(found) == len(abouts)
    return [Step(line, "") for body in found for line in body.splitlines()]


def postgres_path() -> str:
    """Return a `PATH` with the command and with Postgres's programs."""
    return f"{choose_programs().bin_dir}:{Path(COMMAND).parent}:{os.environ['PATH']}"


async def test_a_dump(tmp_path: Path, database_url: str, empty_database_url: str) -> None:
    messages = made(300, time.time_ns() - 60 * NS_PER_S)
    options = ("--max-clock-drift", "off")
    with running_node(tmp_path / "node", *options, database_url=database_url) as node:
        await publish(node, messages)
    for about, url in (("pg_dump", database_url), ("pg_restore", empty_database_url)):
        todo = [Step(step.command.replace("/backup", str(tmp_path)), "") for step in lines(about)]
        run_in_one_shell(todo, {"STORENODE_DATABASE_URL": url, "PATH": postgres_path()})
    with psycopg.connect(empty_database_url) as connection:
        rows = connection.execute("select hash from storenode.messages").fetchall()
    assert {row[0] for row in rows} == hashes(messages)


async def test_a_copy_of_the_embedded_database(tmp_path: Path) -> None:
    messages = made(300, time.time_ns() - 60 * NS_PER_S)
    with running_node(copy_cluster(tmp_path / "node"), "--max-clock-drift=off") as node:
        await publish(node, messages)
    node.data_dir.rename(tmp_path / "storenode-data")
    run_in_one_shell(lines("tar --create", "tar --extract"), {"PATH": postgres_path()}, tmp_path)
    node.data_dir = tmp_path / "storenode-data"
    with database_of(node) as connection:
        rows = connection.execute("select hash from storenode.messages").fetchall()
    assert {row[0] for row in rows} == hashes(messages)


TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
SEVERAL_NODES = (ROOT / "docs" / "several-nodes.md").read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a search path with the command, this Python and our grpcurl."""
    tools = tmp_path / "tools"
    tools.mkdir()
    return grpcurl.installed(tools)


def test_the_tour_is_as_the_page_shows_it(tmp_path: Path, path: str) -> None:
    todo = steps(TOUR)
    assert len(todo) == 19
    with running_node(copy_cluster(tmp_path / "node"), "--max-clock-drift", "off") as node:
        addresses = {"STORENODE_NODE": node.listen, "STORENODE_ADMIN": node.admin}
        as_shown(todo, {"PATH": path, **addresses})


def test_several_nodes_share_a_database_as_the_page_shows_it(
    empty_database_url: str, tmp_path: Path, path: str
) -> None:
    text = section(SEVERAL_NODES, "Several nodes on one Postgres")
    (setup,) = blocks(text, "sh")
    assert "\nstorenode db upgrade\n" in setup
    Command().ok("db", "upgrade", STORENODE_DATABASE_URL=empty_database_url)
    with (
        running_node(tmp_path / "node-a", STORENODE_DATABASE_URL=empty_database_url) as a,
        running_node(tmp_path / "node-b", STORENODE_DATABASE_URL=empty_database_url) as b,
    ):
        assert a.ready["database"] == b.ready["database"] == "external"
        as_shown(steps(text), {"PATH": path, "A": a.listen, "B": b.listen})


def test_two_stores_are_peers_as_the_page_shows_it(tmp_path: Path, path: str) -> None:
    own_schedule = ("--sync-interval", "0")
    with (
        running_node(copy_cluster(tmp_path / "a"), *own_schedule) as a,
        running_node(copy_cluster(tmp_path / "b"), *own_schedule, "--peer", a.peer) as b,
    ):
        env = {"PATH": path, "A": a.listen, "B": b.listen, "ADMIN_B": b.admin}
        for node in (a, b):
            exchanging(node, 1)
        as_shown(steps(section(SEVERAL_NODES, "A first peer")), env)
