"""Layers of options: flags, the environment, the file, the default; and all commands."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from storenode.cli.main import COMMANDS, cli, main
from storenode.cli.options.layers import ENV_PREFIX, LayeredCommand, option_name
from storenode.cli.options.types import Address
from tests.unit.config.cases import CommandLine

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
