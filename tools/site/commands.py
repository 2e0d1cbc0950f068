"""The reference of the command line: the help of each command, as the command prints it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from store.config.options import SHOW_ALL
from storenode.cli.main import cli

WIDTH: Final = 90


def reference() -> str:
    """Describe every command with its subcommands, in Markdown."""
    return "\n\n".join(_sections(cli, click.Context(cli, info_name="storenode"), 2))


def _sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    context.terminal_width = WIDTH
    context.meta[SHOW_ALL] = True
    yield f"{'#' * level} `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            inner = click.Context(found, info_name=name, parent=context)
            yield from _sections(found, inner, level if context.parent is None else level + 1)
