"""The commands of `storenode` itself: found, listed, and all configured in the same three ways."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from storenode.cli.main import COMMANDS, cli, main
from storenode.cli.options.layers import ENV_PREFIX, LayeredCommand, option_name


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


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"storenode {importlib.metadata.version('storenode')}\n"


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
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
