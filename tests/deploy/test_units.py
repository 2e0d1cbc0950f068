"""The units of systemd: valid, hardened, and patient enough with the node."""

from __future__ import annotations

import configparser
import stat
from pathlib import Path

import click
import pytest

from store.gateway.limits import DRAIN_TIMEOUT_S, GOODBYE_TIMEOUT_S
from storenode.cli.main import cli
from tests.deploy.tools import DEPLOY, MEMORY_GIB, run

UNITS = DEPLOY / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
MOST_EXPOSURE = 20
"""Tenths of points of 10; systemd calls up to 40 OK."""


def parsed(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser


def test_there_is_a_unit_for_each_way_to_run() -> None:
    assert SERVICES == [
        "storenode-archive.service",
        "storenode-embedded.service",
        "storenode-gateway.service",
        "storenode.service",
    ]


def test_they_are_valid(tmp_path: Path) -> None:
    program = tmp_path / "storenode"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    copies = []
    for path in sorted([*UNITS.glob("*.service"), *UNITS.glob("*.timer")]):
        copy = tmp_path / path.name
        copy.write_text(
            path.read_text("utf-8").replace("/opt/storenode/bin/storenode", str(program))
        )
        copies.append(str(copy))
    output = run("systemd-analyze", "verify", "--man=no", *copies)
    assert [line for line in output.splitlines() if str(tmp_path) in line] == []


@pytest.mark.parametrize("name", SERVICES)
def test_they_may_do_little(name: str) -> None:
    run(
        "systemd-analyze", "security", "--offline=true", "--no-pager",
        f"--threshold={MOST_EXPOSURE}", str(UNITS / name),
    )  # fmt: skip


def test_a_node_has_the_memory_that_its_bounds_need() -> None:
    for name, kind in (("storenode.service", "node"), ("storenode-embedded.service", "embedded")):
        assert f"\nMemoryMax={MEMORY_GIB[kind]}G\n" in (UNITS / name).read_text("utf-8")


def test_a_node_may_end_its_calls_and_is_not_started_again_on_wrong_options() -> None:
    for name, patience_s in (("storenode.service", 45), ("storenode-embedded.service", 120)):
        service = parsed(name)["Service"]
        assert seconds(service["TimeoutStopSec"]) == patience_s
        command = cli.get_command(click.Context(cli), "run")
        assert command is not None
        (drain,) = [each for each in command.params if each.name == "drain_timeout"]
        assert patience_s > seconds(str(drain.default))
        assert service["RestartPreventExitStatus"] == "2"
        assert service["ExecStart"].endswith("/storenode run")


def test_a_gateway_may_end_its_streams_and_has_an_environment_of_its_own() -> None:
    service = parsed("storenode-gateway.service")["Service"]
    assert seconds(service["TimeoutStopSec"]) > DRAIN_TIMEOUT_S + GOODBYE_TIMEOUT_S
    assert service["RestartPreventExitStatus"] == "2"
    assert service["ExecStart"].endswith("/storenode gateway")
    # Both processes have options of the same name, with other values.
    assert service["EnvironmentFile"] == "/etc/storenode/gateway.env"
    key = service["Environment"].removeprefix("STORENODE_KEY_FILE=%S/")
    assert key.startswith(f"{service['StateDirectory']}/")


def test_the_example_of_a_gateway_is_a_configuration() -> None:
    text = (UNITS / "gateway.env.example").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    command = cli.get_command(click.Context(cli), "gateway")
    assert command is not None
    with pytest.MonkeyPatch.context() as patch:
        for name, _, value in (line.partition("=") for line in lines):
            patch.setenv(name, value)
        given = command.make_context("gateway", []).params
    assert [str(each) for each in given["listen"]] == [
        "/ip4/0.0.0.0/tcp/8000/tls/ws",
        "/ip4/0.0.0.0/tcp/60000",
    ]
    assert given["shard"] == tuple(range(8))


def seconds(text: str) -> int:
    factors = {"s": 1, "min": 60}
    digits = "".join(letter for letter in text if letter.isdigit())
    return int(digits) * factors[text.removeprefix(digits)]


def test_the_example_holds_no_secret_and_users_are_made() -> None:
    example = (UNITS / "storenode.env.example").read_text("utf-8")
    assert ":PASSWORD@" in example
    users = (UNITS / "storenode.sysusers.conf").read_text("utf-8")
    assert users.splitlines()[-1].split()[:2] == ["u", "storenode"]
