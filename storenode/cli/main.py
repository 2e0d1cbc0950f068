"""The command `storenode`: finds the subcommand and says how it ended."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from storenode.cli.errors import FAILED, OK, USAGE, CliError, complain, usage_sentence

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "run": ("store.cli.run:run", "Run a node in the foreground."),
    "demo": ("store.cli.demo:demo", "Show the whole system at work on this machine."),
    "publish": ("storenode.cli.client.publish:publish", "Publish messages."),
    "query": (
        "storenode.cli.client.query:query",
        "Fetch messages by hash, topic and time, in pages.",
    ),
    "scan": ("storenode.cli.client.scan:scan", "Fetch a whole time range in order."),
    "follow": ("storenode.cli.client.follow:follow", "Receive messages as they are stored."),
    "get": ("storenode.cli.client.get:get", "Fetch SDS messages by message ID."),
    "causal-history": (
        "storenode.cli.client.causal_history:causal_history",
        "Fetch what SDS messages causally depend on.",
    ),
    "chat": ("storenode.cli.chat.command:chat", "Talk in an SDS channel."),
    "status": ("storenode.cli.status:status", "Show what a node holds and whether it serves."),
    "sync": ("storenode.cli.sync:sync", "Reconcile a node with a peer, now."),
    "pipeline": (
        "store.cli.pipeline:pipeline",
        "Archive, verify, compare, restore and audit, on Spark.",
    ),
    "db": ("store.cli.db:db", "Upgrade, check and prune the database."),
}
"""Where each command is, and its line in the list of commands: modules are imported when used,
so that a client command does not load a server."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order in which a reader should meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(importlib.metadata.version("storenode"), message="storenode %(version)s")
def cli() -> None:
    """A store node for Waku and SDS messages: publish, keep, query and follow, on Postgres."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    try:
        code = cli.main(arguments, prog_name="storenode", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else OK)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(USAGE)
    except click.ClickException as error:
        complain(usage_sentence(error))
        sys.exit(error.exit_code)
    except CliError as error:
        complain(error.sentence)
        sys.exit(error.code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno != errno.EPIPE:
            complain(f"The output could not be written ({error.strerror}).")
        # Nobody takes our output any more; what Python would still flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
