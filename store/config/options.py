"""The declaration of options of `storenode run` by the fields of a configuration, and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from typing import Any, Final

import click

from storenode.cli.options.layers import LayeredCommand, option

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_METADATA: Final = "option"


def _declare(
    section: str,
    what: str,
    kind: Any = None,  # noqa: ANN401 - whatever click takes as a type
    default: object = None,
    *,
    secret: bool = False,
    **more: Any,  # noqa: ANN401 - those of click.Option, unchanged
) -> Any:  # noqa: ANN401 - as `dataclasses.field`
    """A field that an option fills: its help text, type and default as on the command line."""
    if isinstance(kind, click.IntRange):
        more.setdefault("metavar", "N")
    if default is not None:
        more |= {"default": default, "show_default": True}
    given = {"section": section, "help": what, "type": kind, **more}
    return field(repr=not secret, metadata={_METADATA: given})


data = partial(_declare, "Data")
listener = partial(_declare, "Listeners")
access = partial(_declare, "Access")
messages = partial(_declare, "Messages")
limit = partial(_declare, "Limits")
peers = partial(_declare, "Peers")
running = partial(_declare, "Running")

REMOVED: Final[Mapping[str, str]] = {
    "--peer-secret-file": "peers beyond loopback need certificates: give --tls-cert and --tls-ca",
    **dict.fromkeys(
        (
            *("--max-batch-messages", "--max-response-size", "--default-page-limit"),
            *("--max-page-limit", "--max-query-hashes", "--max-query-topics", "--max-sds-entries"),
            *("--max-sds-claimants", "--max-causal-heads", "--max-causal-known-ids"),
            *("--max-causal-messages", "--max-meta-size", "--max-topic-size"),
        ),
        "the limits of requests are the same on every node: leave it out",
    ),
}
"""Options that went, and what replaced them."""


class RunCommand(LayeredCommand):
    """A command that says of a removed option what replaced it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line.

        Raises:
            click.UsageError: An option was removed, or there is none of that name.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in REMOVED:
                raise
            sentence = f"{error.option_name} was removed: {REMOVED[error.option_name]}."
            raise click.UsageError(sentence, ctx) from None


def options_of(config: type, *names: str, **others: str) -> Decorator:
    """Give a command the options that the fields of a dataclass declare, or some of them.

    ``others`` takes the place of what is declared, such as the section.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(fields(config)):
            if not names or each.name in names:
                flag = "--" + each.name.replace("_", "-")
                command = option(flag, **{**each.metadata[_METADATA], **others})(command)
        return command

    return decorate


MAX_CLUSTER: Final = 65_535
MAX_SHARD: Final = 65_535
MAX_CONNECTIONS: Final = 1_000
"""To the database, for one kind of work."""

LARGEST_CONNECTIONS: Final = 100_000
DEFAULT_CONNECTIONS: Final = 4_096
DEFAULT_CONNECTIONS_PER_HOST: Final = 1_024
"""Of callers. A proxy that does not end HTTP/2 makes one connection for each client."""

LARGEST_MESSAGE_BYTES: Final = 3 * 1024 * 1024
"""A message must fit into a response, and gRPC clients take 4 MiB by default."""

LARGEST_UNSENT_BYTES: Final = 1024 * 1024 * 1024 * 1024
