"""`storenode run`: a node in the foreground; `storenode check-config`: would it start?"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib.metadata
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import uvloop

from store.config.node import NodeConfig
from store.config.options import RunCommand, options_of
from store.observe.logging import configure
from store.runtime.embedded_host import EmbeddedHost
from store.runtime.errors import NodeFailedError
from storenode.cli.client.text import note, safe
from storenode.cli.errors import FAILED, OK, CliError

if TYPE_CHECKING:
    from store.gateway.config import GatewayConfig
    from store.runtime.node import NodeRuntime

_COLLECT_AFTER = 10_000
"""New objects between two collections of cycles; a hundred concurrent calls make none."""

_Config = TypeVar("_Config", NodeConfig, "GatewayConfig")
_ENDING = (signal.SIGTERM, signal.SIGINT)
_LISTEN = "127.0.0.1:7420"


@click.command(cls=RunCommand)
@options_of(NodeConfig)
def run(**options: Any) -> None:  # noqa: ANN401 - the options, by name
    """Run a node in the foreground until SIGTERM or Ctrl-C.

    When it serves, it prints one line of JSON on standard output. A second signal ends it at
    once. SIGHUP reads the token file again. SIGUSR1 writes to the log where every thread is.
    """
    config = configured(NodeConfig, options)
    # At a crash in compiled code, which raises no exception, the log has the stacks.
    faulthandler.enable(sys.stderr, all_threads=True)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    uvloop.run(_serve(config))


def configured(kind: type[_Config], options: dict[str, Any]) -> _Config:
    """Return the configuration that options give, and set the log up by it.

    Raises:
        click.UsageError: They contradict each other.
    """
    config = kind.from_options(options)
    configure(config.log_format or ("text" if sys.stderr.isatty() else "json"), config.log_level)
    return config


@click.command("check-config", cls=RunCommand)
@options_of(NodeConfig)
def check_config(**options: Any) -> int:  # noqa: ANN401 - the options, by name
    """Try all that the next start of a node would try, and start nothing.

    Takes the options of `storenode run`, also from STORENODE_... and from the table [run] of
    --config. Reads files, certificates and tokens, tries the addresses, connects to the database
    and checks its schema, and what retention would drop. It may run beside the node, whose
    addresses are not tried then. Prints a sentence for each problem; the exit code is 1 if there is
    one.
    """
    from store.runtime.preflight import check_start  # noqa: PLC0415

    problems = asyncio.run(check_start(NodeConfig.parse(options)))
    for problem in problems:
        click.echo(safe(problem))
    if not problems:
        click.echo("A node would start with these options.")
    return FAILED if problems else OK


async def _serve(config: NodeConfig) -> None:
    # Before the imports, which `--help` does without: a signal meanwhile is handled after them.
    _handle_signals(lambda: node)
    # What is imported stays to the end: the collector need not look at it, now or later.
    gc.disable()
    embedded = EmbeddedHost(config) if config.database_url is None else None
    from store.runtime.node import NodeRuntime  # noqa: PLC0415

    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    gc.enable()
    node = NodeRuntime(config, importlib.metadata.version("storenode"), announce, embedded)
    try:
        await node.run()
    except NodeFailedError as error:
        raise CliError(error.exit_code, str(error)) from error


def announce(line: str) -> None:
    """Print the ready line for the program that started this one, and for people what is next."""
    click.echo(line)
    sys.stdout.flush()
    if sys.stdout.isatty():
        listen = json.loads(line).get("listen", _LISTEN)
        node = "" if listen == _LISTEN else f" --node {listen}"
        note(
            f"Ready. Publish: storenode publish{node} -t /my-app/1/chat/proto hello."
            f" Read: storenode query{node}. Stop: Ctrl-C."
        )


def _handle_signals(node: Callable[[], NodeRuntime]) -> None:
    """Stop the node at the first signal, and exit at once at the second."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        for number in _ENDING:
            # An embedded Postgres notices the end of its parent and shuts down by itself.
            loop.add_signal_handler(number, os._exit, FAILED)
        node().stop()

    for number in _ENDING:
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, lambda: node().reload())
