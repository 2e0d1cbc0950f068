"""Commands and files of the pages for operators, run as they are shown."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

from store.domain.access import parse_token_file
from storenode.client import Client, Message, TlsIdentity
from tests.support.command import Command
from tests.support.fleet import NS_PER_S
from tests.support.node import NodeProcess, running_node
from tests.support.pages import ROOT, Step, blocks, matches, run_in_one_shell, steps
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
    assert [client.name for client in parse_token_file(body).clients()] == ["chat-app", "operator"]


def test_the_configuration_file_of_the_page_is_one(tmp_path: Path) -> None:
    (body,) = blocks(page("configuration.md"), "toml")
    config = tmp_path / "storenode.toml"
    config.write_text(body)
    # Everything in it is read; the first thing that is wrong is not there on this machine.
    ended = Command()("run", "--config", str(config), "--data-dir", str(tmp_path / "node"))
    assert (ended.code, "/etc/storenode/ca.pem" in ended.err) == (2, True), ended
