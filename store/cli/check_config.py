"""`storenode check-config`: whether a node would start with these options."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import click

from store.config.node import NodeConfig
from store.config.options import RunCommand, options_of
from storenode.cli.client.text import safe
from storenode.cli.errors import FAILED, OK


class CheckCommand(RunCommand):
    """A command that has the options of `storenode run`, from the same table of a file too."""

    table: ClassVar[str] = "run"


@click.command("check-config", cls=CheckCommand)
@options_of(NodeConfig)
def check_config(**options: Any) -> int:  # noqa: ANN401 - the options, by name
    """Try all that the next start of a node would try, and start nothing.

    Takes the options of `storenode run`, also from STORENODE_... and from the table [run] of
    --config. Reads files, certificates and tokens, tries the addresses, connects to the database
    and checks its schema, and whether retention would be held. It may run beside the node, whose
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
