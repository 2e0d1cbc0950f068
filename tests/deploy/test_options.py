"""Options that files in `deploy/` set: all of them exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from storenode.cli.main import cli
from tests.deploy.tools import texts

NOT_OPTIONS = {"STORENODE_CONFIG", "STORENODE_VERSION", "STORENODE_PASSWORD"}
"""Variables of the command itself, of the composition's tags, and of the database's bootstrap."""


def commands(group: click.Command = cli) -> Iterator[click.Command]:
    yield group
    if isinstance(group, click.Group):
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command is not None
            yield from commands(command)


def test_variables_and_flags_are_options_of_some_command() -> None:
    flags = {option for command in commands() for each in command.params for option in each.opts}
    variables = {f"STORENODE_{flag[2:].upper().replace('-', '_')}" for flag in flags}
    for path, text in texts():
        if path.name == "make-secrets.sh":
            continue
        for variable in set(re.findall(r"\bSTORENODE_[A-Z_]+\b", text)) - NOT_OPTIONS:
            assert variable in variables, f"{path.name} sets {variable}, which no command knows"
        if "kubernetes" in path.parts:
            for flag in re.findall(r"^\s+- (--[a-z-]+)=", text, re.MULTILINE):
                assert flag in flags, f"{path.name} gives {flag}, which no command knows"
