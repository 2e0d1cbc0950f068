"""The command `storenode`: finds the subcommand and says how it ended."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import click

from storenode.cli.errors import FAILED, OK, USAGE, CliError, complain, drop_output, usage_sentence

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""

NODE: Final = "storenode-node"
"""The distribution that has the commands of a node."""


class Command(NamedTuple):
    """A command: its module and name, its line in the list, and for the node's, their extra.

    The module is one of `store.cli` for a command of the node, else of `storenode.cli`.
    """

    place: str
    summary: str
    extra: str = ""


COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command("run:run", "Run a node in the foreground.", "embedded"),
    "check-config": Command(
        "run:check_config",
        "Check everything that the next start of a node needs.",
        "embedded",
    ),
    "gateway": Command("gateway:gateway", "Serve a node to Waku clients over libp2p.", "gateway"),
    "demo": Command("demo:demo", "Show the whole system at work on this machine.", "demo"),
    "publish": Command("client.publish:publish", "Publish messages."),
    "query": Command("client.read:query", "Fetch messages by hash, topic and time, in pages."),
    "scan": Command("client.read:scan", "Fetch a whole time range in order."),
    "coverage": Command(
        "client.coverage:coverage", "Show what is stored by hour, and which stores are equal."
    ),
    "follow": Command("client.read:follow", "Receive messages as they are stored."),
    "get": Command("client.sds:get", "Fetch SDS messages by message ID."),
    "causal-history": Command(
        "client.sds:causal_history", "Fetch what SDS messages causally depend on."
    ),
    "chat": Command("chat.command:chat", "Chat in an SDS channel."),
    "status": Command("status:status", "Show the state of a node and what it stores."),
    "sync": Command("sync:sync", "Reconcile a node with a peer now."),
    "pipeline": Command(
        "pipeline:pipeline", "Archive, verify, compare, restore and audit, on Spark.", "pipeline"
    ),
    "capacity": Command(
        "capacity:capacity_command", "Compute the machines for a number of participants.", "node"
    ),
    "db": Command("db:db", "Upgrade, check and prune the database.", "node"),
}
"""The commands by name; modules are imported on use, so that client commands load no server."""

_STREAMS: Final = ("stdin", "stdout", "stderr")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    @cached_property
    def absent(self) -> frozenset[str]:
        """The commands of the node if it is not installed; another module may be called `store`."""
        # Client commands start sooner without it.
        metadata = importlib.import_module("importlib.metadata")
        try:
            metadata.distribution(NODE)
        except ModuleNotFoundError:
            return frozenset(name for name, command in COMMANDS.items() if command.extra)
        return frozenset()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the list."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None for an option.

        Raises:
            click.UsageError: There is none of that name; a similar one is suggested.
        """
        if cmd_name.startswith("-"):
            return None
        if cmd_name not in COMMANDS:
            raise click.exceptions.NoSuchCommand(cmd_name, possibilities=COMMANDS, ctx=ctx)
        place, _, extra = COMMANDS[cmd_name]
        if extra and cmd_name in self.absent:
            raise click.UsageError(
                f"The command `{cmd_name}` comes with the node, which is not installed: install it"
                f" by `pip install 'storenode[{extra}]'`."
            )
        module, _, attribute = place.partition(":")
        package = "store.cli" if extra else "storenode.cli"
        command: click.Command = getattr(importlib.import_module(f"{package}.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        sections: dict[str, list[tuple[str, str]]] = {"Commands": []}
        for name in self.list_commands(ctx):
            title, (_, summary, extra) = "Commands", COMMANDS[name]
            if name in self.absent:
                summary = f"{summary} (pip install 'storenode[{extra}]')"
                title = "Commands of the node, not installed"
            sections.setdefault(title, []).append((name, summary))
        for title, commands in sections.items():
            with formatter.section(title):
                formatter.write_dl(commands)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="storenode", message="storenode %(version)s")
def cli() -> None:
    """Publish, store, query and follow Waku and SDS messages, on Postgres."""


def _open_what_is_closed() -> None:
    """Open the null device where standard input, output or error are closed.

    Else the next file or connection has their number, and is read or written in their place.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < len(_STREAMS):
        stream = os.fdopen(number, "r" if number == 0 else "w")
        setattr(sys, _STREAMS[number], stream)
    os.close(number)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    _open_what_is_closed()
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
        drop_output()
        sys.exit(FAILED)
