"""The configuration of a node, its layers, contradictions in it, and values of options."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from store.cli.capacity import capacity_command
from store.cli.run import run
from store.config.options import REMOVED, USUAL
from storenode.cli.main import COMMANDS, cli, main
from storenode.cli.options.layers import ENV_PREFIX, LayeredCommand, option_name
from storenode.cli.options.types import Address, Peer, parse_address, parse_peer, split_list
from storenode.cli.options.units import (
    MAX_SIZE_BYTES,
    format_size,
    parse_duration_ns,
    parse_size_bytes,
)
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
    assert config.peer == (Peer(Address("10.0.0.2", 1), "b.example"), Peer(Address("10.0.0.3", 2)))
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
        ([*TLS, "--peer-listen=10.0.0.1:1", "--metrics-listen=10.0.0.1:1"], "--insecure metrics"),
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


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:7420", "127.0.0.1", 7420, True),
        ("127.9.9.9:1", "127.9.9.9", 1, True),
        ("localhost:0", "localhost", 0, True),
        ("LOCALHOST:1", "LOCALHOST", 1, True),
        ("[::1]:7420", "::1", 7420, True),
        ("[::]:1", "::", 1, False),
        ("0.0.0.0:1", "0.0.0.0", 1, False),
        ("localhost.example:1", "localhost.example", 1, False),
        ("127.0.0.1.example:1", "127.0.0.1.example", 1, False),
        ("node.example:65535", "node.example", 65535, False),
    ],
)
def test_addresses_are_read_and_written_alike(
    text: str, host: str, port: int, loopback: bool
) -> None:
    found = parse_address(text)
    assert (found, str(found), found.loopback) == (Address(host, port), text, loopback)


def test_with_tokens_any_name_is_served_unless_names_are_given(command_line: CommandLine) -> None:
    options = "--http-listen=Own.example:1", "--insecure=http"
    tokens = "--client-token-file=tokens.toml"
    assert command_line.run(*options).http_hosts == {"own.example"}
    assert command_line.run(*options, tokens).http_hosts == {"own.example", "*"}
    named = command_line.run(*options, tokens, "--http-allow-host=Public.example")
    assert named.http_hosts == {"own.example", "public.example"}


NO_ADDRESSES = (
    *("", "7420", ":7420", "host", "host:", "host:x", "host:65536", "host:-1", "host:٣"),
    *("::1:7420", "[host]:7420", "[::1]", "[]:1", "[::1:7420"),
    *("a..b:1", f"{64 * 'a'}.example:1", "a b:1", "a\0b:1"),
)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port|IPv6|127\.0\.0\.1:7420"):
        parse_address(text)


def test_a_peer_may_be_pinned_to_an_id() -> None:
    address = Address("10.0.0.2", 7430)
    assert parse_peer("10.0.0.2:7430") == Peer(address)
    assert parse_peer("b.example@10.0.0.2:7430") == Peer(address, "b.example")
    assert str(parse_peer("b.example@10.0.0.2:7430")) == "b.example@10.0.0.2:7430"


@pytest.mark.parametrize("text", ["@10.0.0.2:1", "a b@10.0.0.2:1", "id@10.0.0.2", "id@@h:1"])
def test_what_is_no_peer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"node ID|HOST:PORT"):
        parse_peer(text)


def test_lists_are_split_at_commas_and_white_space() -> None:
    assert split_list(" a,b  c,\n,d ") == ["a", "b", "c", "d"]
    assert split_list("") == []


S = 1_000_000_000

DURATIONS = {
    "0": 0,
    "90s": 90 * S,
    "5m": 300 * S,
    "5 min": 300 * S,
    "2 days 1 Hour": 49 * 3600 * S,
    "1h": 3600 * S,
    "30d": 30 * 86_400 * S,
    "1w": 7 * 86_400 * S,
    "250ms": S // 4,
    "1h30m": 5400 * S,
    "1.5h": 5400 * S,
    "0.000000001s": 1,
    " 10s ": 10 * S,
    "106751d": 106_751 * 86_400 * S,
}
SIZES = {
    "4096": 4096,
    "1B": 1,
    "64KiB": 65_536,
    "10GiB": 10 * 2**30,
    "10gib": 10 * 2**30,
    "500MB": 500_000_000,
    "1.5 MiB": 1_572_864,
    "2TiB": 2**41,
}


def test_durations_and_sizes_are_read() -> None:
    assert {text: parse_duration_ns(text) for text in DURATIONS} == DURATIONS
    assert {text: parse_size_bytes(text) for text in SIZES} == SIZES


NO_DURATIONS = ("", "5", "s", "-5s", "5 x", "5 months", "1e3s", "5y", "5s5", "٣s", "1.5", "1..5s")
NO_SIZES = ("", "GiB", "-1KiB", "1 PiB", "1GiBs", "ten", "1,5MiB")


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        *((parse_duration_ns, text, "such as 90s, 5m, 1h or 30d") for text in NO_DURATIONS),
        (parse_duration_ns, "9" * 80 + "s", "such as 90s, 5m, 1h or 30d"),
        (parse_duration_ns, "106752d", "longer than 292 years"),
        *((parse_size_bytes, text, "such as 64KiB, 500MB or 10GiB") for text in NO_SIZES),
        (parse_size_bytes, "99999999TiB", "larger than 8 EiB"),
    ],
)
def test_what_is_neither_is_refused_with_an_example(
    read: Callable[[str], int], text: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        read(text)


@given(st.integers(0, MAX_SIZE_BYTES // 2))
def test_a_formatted_size_reads_back_within_its_decimal(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.05)


def test_whole_sizes_are_written_whole() -> None:
    assert [format_size(n) for n in (5, 150 * 1024, 3 * 2**20)] == ["5B", "150KiB", "3MiB"]


@pytest.mark.parametrize("share", ["0", "1.5", "nan", "-1"])
def test_a_share_of_the_capacity_is_no_more_than_all(share: str) -> None:
    with pytest.raises(click.BadParameter, match="above 0 and up to 1"):
        capacity_command.make_context("capacity", ["--connected-share", share])


MS = 1_000_000


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "node.toml"


def test_each_layer_wins_over_the_one_below(command_line: CommandLine, config_file: Path) -> None:
    config_file.write_text('drain-timeout = "1ms"\n')
    in_file, named = ("--config", str(config_file)), {"STORENODE_CONFIG": str(config_file)}
    env = {"STORENODE_DRAIN_TIMEOUT": "2ms"}
    assert command_line.run().drain_timeout == 30_000 * MS
    assert command_line.run(*in_file).drain_timeout == 1 * MS
    assert command_line.run(env=named).drain_timeout == 1 * MS
    assert command_line.run(*in_file, env={"STORENODE_DRAIN_TIMEOUT": ""}).drain_timeout == 1 * MS
    assert command_line.run(*in_file, env=env).drain_timeout == 2 * MS
    assert command_line.run(*in_file, "--drain-timeout=3ms", env=env).drain_timeout == 3 * MS


@pytest.mark.parametrize("value", ["3,5", "3 5", " 3, 5 ", "3\n5"])
def test_lists_come_from_each_layer_and_replace_those_of_lower_ones(
    command_line: CommandLine, config_file: Path, value: str
) -> None:
    assert command_line.run(env={"STORENODE_SHARD": value}).shard == {3, 5}
    for text in (f'"""{value}"""', "[3, 5]"):
        config_file.write_text(f"shard = {text}\n")
        arguments = ("--config", str(config_file))
        assert command_line.run(*arguments).shard == {3, 5}
        assert command_line.run(*arguments, "--shard=9").shard == {9}


def test_the_file_takes_dashes_underscores_numbers_and_truth_values(
    command_line: CommandLine, config_file: Path
) -> None:
    config_file.write_text(
        'admin_listen = "[::1]:1"\nmetrics-listen = "127.0.0.1:2"\nsync-interval = 0\n'
        "gossip = false\nshard = 4\n"
    )
    config = command_line.run("--config", str(config_file))
    assert config.admin_listen == Address("::1", 1)
    assert config.metrics_listen == Address("127.0.0.1", 2)
    assert config.sync_interval == 0
    assert config.gossip is False
    assert config.shard == {4}


def test_a_table_is_for_its_command_alone_and_the_top_is_for_all(
    command_line: CommandLine, config_file: Path
) -> None:
    config_file.write_text(
        'retention = "10d"\ncluster = 3\ndry-run = true\n'
        '[run]\nretention = "20d"\n[db.prune]\nretention = "off"\n'
    )
    arguments = ("--config", str(config_file))
    config = command_line.run(*arguments)
    assert (config.retention, config.cluster) == (20 * 86_400_000 * MS, 3)
    prune = command_line("db", "prune", *arguments)
    assert (prune["retention"], prune["dry_run"]) == (None, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('lisen = "127.0.0.1:1"\n', "sets lisen, which is no option of storenode: did you mean l"),
        ('maintenance-intervall = "1m"\n', "did you mean nwaku_sync_interval?"),
        ("[run]\ndry-run = true\n", "sets dry-run in [run], which is no option of storenode"),
        (
            "[rum]\ncluster = 1\n",
            "sets [rum], which is no option of storenode: did you mean [run]?",
        ),
        ("config = 'x'\n", "sets config, which is no option"),
        ("cluster = [1]\n", "cluster in {file} is a list"),
        ("cluster = 2026-11-20\n", "cluster in {file} is a date"),
        ("cluster = 'many'\n", "Invalid value for cluster in {file}: 'many' is not a valid"),
        ("drain_timeout = 5\n", "Invalid value for drain_timeout in {file}: '5' is not a duration"),
        ("cluster =\n", "{file} is not TOML: Invalid value (at line 1, column 10)"),
    ],
)
def test_a_file_with_faults_is_refused_with_the_place(
    command_line: CommandLine, config_file: Path, text: str, expected: str
) -> None:
    config_file.write_text(text)
    refusal = command_line.refusal("--config", str(config_file))
    assert expected.format(file=config_file) in refusal
    assert str(config_file) in refusal


def test_a_bad_value_is_named_by_where_it_came_from(command_line: CommandLine) -> None:
    absent = command_line.refusal("--config", "absent.toml")
    assert "absent.toml cannot be read (No such file or directory)" in absent
    by_flag = command_line.refusal("--listen", "nowhere")
    by_variable = command_line.refusal(env={"STORENODE_LISTEN": "nowhere"})
    assert by_flag.startswith("Invalid value for --listen: 'nowhere' is not HOST:PORT")
    assert by_variable.startswith("Invalid value for STORENODE_LISTEN: 'nowhere' is not HOST:PORT")


# The commands of storenode itself


def leaves(group: click.Group, ctx: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, click.Context(command, parent=ctx, info_name=name))
        else:
            yield command


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert isinstance(end.value.code, int)
    return end.value.code


def test_every_command_takes_all_its_options_from_everywhere() -> None:
    found = list(leaves(cli, click.Context(cli)))
    assert len(found) >= len(COMMANDS)
    for command in found:
        assert isinstance(command, LayeredCommand), command.name
        for param in command.params:
            if isinstance(param, click.Option) and param.name != "help_all":
                assert param.envvar == ENV_PREFIX + option_name(param).upper()


def test_every_command_refuses_an_option_that_is_given_twice() -> None:
    for command in leaves(cli, click.Context(cli)):
        for param in command.params:
            if not isinstance(param, click.Option) or param.multiple or param.count:
                continue
            given = [param.opts[-1], *(() if param.is_flag else ("1",) * param.nargs)]
            with pytest.raises(click.UsageError, match="is given 2 times: give it once"):
                command.make_context(command.name, given * 2)


def test_the_list_of_commands_is_shown_with_code_2_when_none_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended() == 2
    listed = capsys.readouterr().err
    assert all(f"  {name} " in listed for name in COMMANDS)


def test_the_version_and_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"storenode {importlib.metadata.version('storenode')}\n"
    assert ended("rum") == 2
    assert "No such command 'rum'" in capsys.readouterr().err


def test_one_file_serves_all_commands_and_names_what_none_of_them_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "node.toml"
    config.write_text('node = "127.0.0.1:1"\nlisen = "x"\n[run]\nlisten = "y"\n')
    assert ended("query", "--config", str(config)) == 2
    assert f"{config} sets lisen, which is no option" in capsys.readouterr().err
    config.write_text('node = "127.0.0.1:1"\nlisten = "y"\n[run]\ncluster = 4\n')
    assert ended("run", "--config", str(config)) == 2
    assert f"Invalid value for listen in {config}: 'y'" in capsys.readouterr().err
