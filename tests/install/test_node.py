"""The library with the node, from the wheels: a node in a folder that is not the repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.soak.small_disk import READ_ONLY
from store.db.migrate import head
from store.observe.http import STATUS_PATH
from tests.install.environment import VERSION, Dist, Environment, library_of
from tests.integration.run.helpers import get
from tests.support.command import Command
from tests.support.node import NodeProcess

TOPIC = ("--content-topic", "/installed/1/node/proto")
KERNEL = "from reconcile import kernel; print(kernel.usable() is not None)"
STATUS_FILES = (STATUS_PATH, "/status.css", "/status.js", "/status.svg", "/status.json")


def started(command: Command, database_url: str | None = None) -> Iterator[NodeProcess]:
    """Yield a node of an environment, which must end cleanly."""
    assert command.cwd is not None
    node = NodeProcess(
        command.cwd / "data",
        database_url=database_url,
        env=dict(command.env),
        program=command.program,
        cwd=command.cwd,
    )
    try:
        yield node.start()
        assert node.terminate() == 0, node.log_tail()
    finally:
        node.close()


def homeless(command: Command) -> Command:
    """Return a command whose user's home is empty and read-only."""
    assert command.cwd is not None
    home = command.cwd / "home"
    home.mkdir(exist_ok=True)
    program = [*READ_ONLY, str(home), *command.program]
    return replace(command, env={**command.env, "HOME": str(home)}, program=program)


@pytest.fixture(scope="module")
def serving(installed_node: Environment) -> Iterator[NodeProcess]:
    """Yield a node from the wheels, whose user has a home that is read-only."""
    yield from started(homeless(installed_node.storenode))


@pytest.fixture(scope="module")
def bare(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return the node without a Postgres, from its source distribution, without a compiler."""
    environment = Environment.made(tmp_path_factory.mktemp("bare"))
    source = f"storenode-node @ {dist.node_source.as_uri()}"
    environment.install(dist, library_of(dist, "[node]"), source, CC="/bin/false")
    return environment


def serves(command: Command, payload: str) -> None:
    """Check that a node takes a message and returns it."""
    assert command.ok("publish", *TOPIC, payload).out.startswith("STORED")
    assert payload in command.ok("follow", *TOPIC, "--from-beginning", "--until-live").out


def test_it_serves_with_its_kernel_migrations_and_pages(
    installed_node: Environment, serving: NodeProcess
) -> None:
    assert serving.ready["database"] == "embedded"
    command = installed_node.calling(serving)
    serves(command, "from-a-wheel")
    assert f'"version": "{VERSION}"' in command.ok("status", "--json").out
    shown = installed_node.storenode.ok("db", "current", "--data-dir", str(serving.data_dir))
    assert head() in shown.out
    for path in STATUS_FILES:
        code, text = get(serving.metrics, path)
        assert (code, bool(text)) == (200, True), path
    assert installed_node.run("-c", KERNEL).out == "True\n"


def test_clients_need_no_home(installed_node: Environment, serving: NodeProcess) -> None:
    command = homeless(installed_node.calling(serving))
    chat = ("chat", "--channel", "homeless", "--name", "alice")
    assert "alice: hello" in command.ok(*chat, stdin=b"hello\n").out


def test_commands_whose_extra_is_missing_name_it(installed_node: Environment) -> None:
    for arguments, extra in (
        (("demo",), "demo"),
        (("pipeline", "archive", "untouched"), "pipeline"),
    ):
        ended = installed_node.storenode(*arguments)
        assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1), ended
        assert f"`pip install 'storenode[{extra}]'`" in ended.err
    assert not Path(installed_node.elsewhere, "untouched").exists()


def test_without_a_compiler_it_serves_with_arrays(
    bare: Environment, new_store: Callable[[], str]
) -> None:
    assert bare.run("-c", KERNEL).out == "False\n"
    for node in started(bare.storenode, new_store()):
        serves(bare.calling(node), "without-a-kernel")
