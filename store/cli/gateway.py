"""`storenode gateway`: Waku clients over libp2p, in front of a node."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final

import click
import uvloop

from store.cli.demo import require_libraries
from store.cli.run import announce, configured
from store.config.options import options_of
from store.gateway.config import GatewayConfig
from storenode.cli.client.session import DEFAULT_NODE, with_credentials
from storenode.cli.errors import FAILED, OK, USAGE, CliError
from storenode.cli.options.layers import LayeredCommand, option
from storenode.client.nodes import Nodes
from storenode.connection.channel import TlsIdentity
from storenode.connection.errors import ClientOptionError

_LIBRARIES: Final = ("cryptography", "noise", "websockets")


@click.command(cls=LayeredCommand)
@options_of(GatewayConfig)
@option(
    "--node",
    multiple=True,
    default=(DEFAULT_NODE,),
    show_default=True,
    metavar="HOST:PORT",
    section="Connection",
    help="Node to pass queries and messages on to; repeatable: while one does not serve, the next"
    " one does. They should have one store.",
)
@with_credentials
def gateway(
    *,
    node: tuple[str, ...],
    token: str | None,
    tls: TlsIdentity | None,
    **options: Any,  # noqa: ANN401 - those of the configuration, by name
) -> int:
    """Serve a node's messages to Waku clients over libp2p until SIGTERM or Ctrl-C.

    Clients such as js-waku connect by TCP or WebSocket with Noise and mplex or yamux; their queries
    (/vac/waku/store-query/3.0.0) are passed on to the node as they are. When it serves, it prints
    one line of JSON on standard output, with the addresses that clients are given.
    """
    require_libraries("gateway", _LIBRARIES)
    config = configured(GatewayConfig, options)
    _raise_descriptor_limit()
    uvloop.run(_serve(config, node, token, tls))
    return OK


async def _serve(
    config: GatewayConfig, addresses: tuple[str, ...], token: str | None, tls: TlsIdentity | None
) -> None:
    # Imported here, so that `--help` needs no server.
    gc.disable()
    from store.gateway.faults import GatewayError  # noqa: PLC0415
    from store.gateway.service import Gateway  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    try:
        service = Gateway(config, Nodes(addresses, token, tls), version("storenode"), announce)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, service.stop)
        await service.run()
    except ClientOptionError as error:
        raise CliError(USAGE, str(error)) from error
    except GatewayError as error:
        raise CliError(FAILED, str(error)) from error


def _raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors, of which each connection is one, to its maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
