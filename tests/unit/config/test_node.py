"""The configuration of a node, and contradictions that are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from store.cli.run import run
from store.config.options import REMOVED, USUAL
from storenode.cli.options.types import Address, Peer
from tests.unit.config.cases import CommandLine

DAY_NS = 86_400 * 1_000_000_000
READS = ("--read-only", "--database-url=postgresql://u@h/d")
TLS = ("--tls-cert=c.pem", "--tls-key=k.pem")


def test_the_defaults_are_those_of_the_contract(command_line: CommandLine) -> None:
    config = command_line.run()
    assert config.data_dir == Path("storenode-data")
    assert (config.database_url, config.peer_listen) == (None, None)
    assert str(config.listen) == "127.0.0.1:7420"
    assert str(config.admin_listen) == "127.0.0.1:7421"
    assert str(config.metrics_listen) == "127.0.0.1:7422"
    assert (config.cluster, config.shard) == (1, frozenset())
    assert config.sync_interval == 300 * 10**9
    assert config.sync_range == 3600 * 10**9
    assert config.sync_offset == config.max_clock_drift == 20 * 10**9
    assert config.retention == 30 * DAY_NS
    assert config.retention_size is None
    assert (config.max_confirms, config.gossip) == (0, True)
    assert config.max_message_size == 150 * 1024
    assert config.drain_timeout == 30 * 10**9
    assert (config.log_format, config.log_level) == (None, "info")


@pytest.mark.parametrize("option", REMOVED)
def test_an_option_that_was_removed_says_what_replaced_it(
    command_line: CommandLine, option: str, tmp_path: Path
) -> None:
    sentence = f"{option} was removed: {REMOVED[option]}."
    variable = f"STORENODE_{option[2:].upper().replace('-', '_')}"
    file = tmp_path / "node.toml"
    file.write_text(f"[run]\n{option[2:]} = 7\n")
    assert command_line.refusal(f"{option}=7") == sentence
    assert command_line.refusal(env={variable: "7"}) == f"{variable} is set, and {sentence}"
    assert command_line.refusal("--config", str(file)).endswith(f"is set, and {sentence}")


def test_help_shows_the_usual_options_and_help_all_shows_every_one() -> None:
    shown = {name: CliRunner().invoke(run, [name]).output for name in ("--help", "--help-all")}
    flags = {
        name: set(re.findall(r"^ +(--[a-z-]+)", text, re.MULTILINE)) for name, text in shown.items()
    }
    options = {max(each.opts, key=len) for each in run.params if not getattr(each, "hidden", False)}
    assert options >= USUAL
    assert flags["--help"] - {"--help"} == USUAL | {"--config", "--help-all"}
    assert flags["--help-all"] - {"--help"} == options - {"--help"}


@pytest.mark.parametrize(
    ("connections", "sizes"), [(3, (1, 1, 1)), (5, (1, 2, 2)), (15, (3, 6, 6))]
)
def test_database_connections_are_divided_among_the_pools(
    command_line: CommandLine, connections: int, sizes: tuple[int, int, int]
) -> None:
    assert command_line.run(f"--database-connections={connections}").pool_sizes == sizes


def test_repeated_options_are_collected(command_line: CommandLine) -> None:
    config = command_line.run(
        *("--peer=b.example@10.0.0.2:1", "--peer=10.0.0.3:2"),
        *("--postgres-setting=shared_buffers=1GB", "--postgres-setting=work_mem = 8MB"),
    )
    assert config.peer == (
        Peer(Address("10.0.0.2", 1), "b.example"),
        Peer(Address("10.0.0.3", 2)),
    )
    assert config.postgres_setting == (("shared_buffers", "1GB"), ("work_mem", "8MB"))


def test_the_database_url_is_never_shown(command_line: CommandLine) -> None:
    config = command_line.run("--database-url=postgresql://u:hunter2@h/d")
    assert config.database_url == "postgresql://u:hunter2@h/d"
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--listen=0.0.0.0:1"], "--listen 0.0.0.0:1 can be reached from other machines"),
        (["--listen=0.0.0.0:1", "--insecure=admin"], "--insecure listen"),
        (["--peer-listen=10.0.0.1:1"], "--insecure peer"),
        (["--admin-listen=10.0.0.1:1"], "--insecure admin"),
        (["--metrics-listen=10.0.0.1:1"], "or allow it with --insecure metrics."),
        (
            [*TLS, "--peer-listen=10.0.0.1:1", "--metrics-listen=10.0.0.1:1"],
            "--insecure metrics",
        ),
        (["--tls-cert=c.pem"], "--tls-cert is given without --tls-key"),
        (["--tls-key=k.pem"], "--tls-key is given without --tls-cert"),
        ([*TLS], "--peer-listen must be given with --tls-cert"),
        ([*TLS, "--peer-listen=127.0.0.1:7420"], "with TLS, peers need an address of their own"),
        ([*TLS, "--peer-listen=127.0.0.1:1", "--allow-peer=b"], "--allow-peer needs --tls-ca"),
        (
            ["--allow-peer=b", "--listen=10.0.0.1:1", "--insecure=listen"],
            "--allow-peer needs --tls-cert",
        ),
        (["--client-ca=ca.pem"], "--client-ca needs --tls-cert"),
        (["--http-allow-host=a.example"], "--http-allow-host needs --http-listen"),
        (
            ["--http-listen=127.0.0.1:1", "--http-allow-host=https://a.example"],
            "--http-allow-host https://a.example is no name of a host",
        ),
        (
            ["--metrics-allow-host=a.example:7422"],
            "--metrics-allow-host a.example:7422 is no name of a host",
        ),
        (["--shard=65536"], "Invalid value for --shard: 65536 is not in the range 0<=x<=65535."),
        (
            ["--listen=127.0.0.1:7999", "--admin-listen=127.0.0.1:7999"],
            "--listen and --admin-listen are both 127.0.0.1:7999",
        ),
        (["--peer=127.0.0.1:7420"], "--peer 127.0.0.1:7420 is this node's own address"),
        (["--peer=127.0.0.1:1", "--sync-range=10s"], "--sync-range is not longer than"),
        (["--max-confirms=1", "--gossip=off"], "--max-confirms is given with --gossip off"),
        (
            ["--postgres-setting=work_mem=8MB", "--database-url=postgresql://h/d"],
            "--postgres-setting is given with --database-url",
        ),
        (
            ["--retention=off", "--retention-requires-archive"],
            "--retention-requires-archive is given, and nothing is dropped",
        ),
        (["--retention=0"], "must be more than 0, or the word off"),
        (["--retention=30"], "Invalid value for --retention: '30' is not a duration"),
        (["--retention-size=0"], "the size must be more than 0"),
        (["--max-message-size=4MiB"], "the size must be at most 3MiB"),
        (["--gossip=maybe"], "'maybe' is neither on nor off"),
        (["--postgres-setting=work_mem"], "a setting is written NAME=VALUE"),
        (["--database-connections=2"], "Invalid value for --database-connections"),
        (["--read-only"], "--read-only needs --database-url"),
        ([*READS, "--peer=127.0.0.1:1"], "--peer is given with --read-only"),
        (["--lisen=127.0.0.1:1"], "No such option '--lisen'. (Did you mean one of"),
        (["--maintenance-intervall=1m"], "intervall'. Did you mean '--sync-interval'?"),
    ],
)
def test_wrong_options_are_refused_with_one_sentence(
    command_line: CommandLine, arguments: list[str], expected: str
) -> None:
    refusal = command_line.refusal(*arguments)
    assert expected in refusal
    assert "\n" not in refusal
    assert refusal[-1] in ".?!)"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen=0.0.0.0:1", "--insecure=listen"],
        ["--peer-listen=0.0.0.0:1", "--insecure=peer"],
        ["--admin-listen=0.0.0.0:1", "--insecure=admin"],
        ["--metrics-listen=0.0.0.0:1", "--insecure=metrics"],
        [*TLS, "--listen=0.0.0.0:1", "--peer-listen=0.0.0.0:2", "--admin-listen=0.0.0.0:3"],
        ["--listen=127.0.0.2:1", "--admin-listen=localhost:1", "--metrics-listen=[::1]:1"],
    ],
)
def test_what_is_loopback_secure_or_allowed_may_listen(
    command_line: CommandLine, arguments: list[str]
) -> None:
    assert command_line.run(*arguments).insecure <= {"listen", "peer", "admin", "metrics"}


@pytest.mark.parametrize(
    ("arguments", "separate"),
    [
        ([], False),
        (["--peer-listen=127.0.0.1:7420"], False),
        (["--peer-listen=127.0.0.1:7430"], True),
        (["--listen=127.0.0.1:0", "--peer-listen=127.0.0.1:0"], True),
    ],
)
def test_peers_share_the_clients_listener_unless_they_have_an_address(
    command_line: CommandLine, arguments: list[str], separate: bool
) -> None:
    assert command_line.run(*arguments).separate_peer_listener is separate
