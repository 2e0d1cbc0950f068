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


def declare(
    section: str,
    what: str,
    kind: Any = None,  # noqa: ANN401 - whatever click takes as a type
    default: object = None,
    *,
    secret: bool = False,
    **more: Any,  # noqa: ANN401 - those of click.Option, unchanged
) -> Any:  # noqa: ANN401 - as `dataclasses.field`
    """Return a field that an option fills, declared as by `click.option`."""
    if isinstance(kind, click.IntRange):
        more.setdefault("metavar", "N")
    if default is not None:
        more |= {"default": default, "show_default": True}
    given = {"section": section, "help": what, "type": kind, **more}
    return field(repr=not secret, metadata={_METADATA: given})


data = partial(declare, "Data")
listener = partial(declare, "Listeners")
access = partial(declare, "Access")
messages = partial(declare, "Messages")
limit = partial(declare, "Limits")
peers = partial(declare, "Peers")
running = partial(declare, "Running")

_SAME: Final = "the limits of requests are the same on every node: leave it out"
_POOLS: Final = "give --database-connections for all work together"
_TRACES: Final = "join the logs of a caller and of the node by x-request-id: leave it out"

REMOVED: Final[Mapping[str, str]] = {
    "--peer-secret-file": "peers beyond loopback need certificates: give --tls-cert and --tls-ca",
    **dict.fromkeys(("--write-connections", "--read-connections", "--bulk-connections"), _POOLS),
    "--http-page": "the page is always at / of --http-listen: leave it out",
    "--max-connections-per-host": "it is a quarter of --max-connections: set that",
    "--max-received-per-second": "set bytes_per_second in the file of --client-token-file",
    "--retention-interval": "maintenance runs every minute: leave it out",
    "--retention-lock-timeout": "a drop waits for locks at most 250 ms: leave it out, or drop by"
    " `storenode db prune --retention-lock-timeout`",
    **dict.fromkeys(("--tracing", "--trace-sample"), _TRACES),
    "--wide-sync-interval": "every twelfth --sync-interval reconciles the whole history: set that",
    **dict.fromkeys(
        (
            *("--max-batch-messages", "--max-response-size", "--default-page-limit"),
            *("--max-page-limit", "--max-query-hashes", "--max-query-topics", "--max-sds-entries"),
            *("--max-sds-claimants", "--max-causal-heads", "--max-causal-known-ids"),
            *("--max-causal-messages", "--max-meta-size", "--max-topic-size"),
            "--max-request-size",
        ),
        _SAME,
    ),
}
"""Removed options, and what replaced them."""

USUAL: Final = frozenset(
    (
        *("--data-dir", "--database-url", "--read-only"),
        *("--listen", "--peer-listen", "--admin-listen", "--metrics-listen", "--http-listen"),
        *("--insecure", "--tls-cert", "--tls-key", "--tls-ca", "--allow-peer"),
        *("--client-token-file", "--cluster", "--shard", "--retention", "--peer"),
        *("--sync-interval", "--log-level"),
    )
)
"""The options that ``--help`` shows, besides those of every command."""

SHOW_ALL: Final = "storenode.help_all"


class RunCommand(LayeredCommand):
    """A command with the options of a node: ``--help`` shows the usual ones, ``--help-all`` all."""

    removed = REMOVED
    table = "run"

    def __init__(self, name: str | None, **more: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(name, **more)
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options and exit.",
        )
        self.params.append(help_all)

    def shows(self, ctx: click.Context, param: click.Parameter) -> bool:
        """Return True if the help text has this option."""
        isdeclared = getattr(param, "section", "Options") != "Options"
        return SHOW_ALL in ctx.meta or not isdeclared or max(param.opts, key=len) in USUAL


def _show_all(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[SHOW_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def options_of(config: type, *names: str, **others: str) -> Decorator:
    """Return a decorator that adds the options that fields of a dataclass declare.

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
FEWEST_DATABASE_CONNECTIONS: Final = 3
MAX_DATABASE_CONNECTIONS: Final = 5_000
LARGEST_CONNECTIONS: Final = 100_000
DEFAULT_CONNECTIONS: Final = 4_096
"""The limit of callers' connections; some proxies make one for each client."""

LARGEST_MESSAGE_BYTES: Final = 3 * 1024 * 1024
"""A message must fit into a response, and gRPC clients take 4 MiB by default."""

LARGEST_UNSENT_BYTES: Final = 1024 * 1024 * 1024 * 1024
