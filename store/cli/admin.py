"""What other commands ask a node about itself, on its admin listener."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from storenode.cli.client.limits import STATUS_TIMEOUT_S
from storenode.cli.client.session import tls_of, token_of
from storenode.cli.client.text import safe
from storenode.cli.errors import FAILED, UNREACHABLE, USAGE, CliError
from storenode.client.errors import ClientOptionError, NodeError
from storenode.client.node import connect

if TYPE_CHECKING:
    from store.pipeline.report.gathered import Peer
    from storenode.client.types import NodeStatus
    from storenode.connection.channel import TlsIdentity


def ask_status(
    address: str,
    *,
    token_file: Path | None,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> NodeStatus:
    """The state of the node at an address.

    Raises:
        CliError: it does not answer, or an option cannot be used.
    """
    token, tls = token_of(token_file), tls_of(tls_ca, tls_cert, tls_key)
    try:
        return asyncio.run(_status(address, token, tls))
    except NodeError as error:
        code = UNREACHABLE if error.unreachable else FAILED
        raise CliError(code, safe(error.sentence)) from error
    except ClientOptionError as error:
        raise CliError(USAGE, safe(str(error))) from error


async def _status(address: str, token: str | None, tls: TlsIdentity | None) -> NodeStatus:
    async with connect(address, token=token, tls=tls) as client:
        return await client.status(timeout_s=STATUS_TIMEOUT_S)


def peers_of(status: NodeStatus) -> list[Peer]:
    """The peers of a node for a report, those first with whom it has not reconciled for longest."""
    from store.pipeline.report.gathered import Peer  # noqa: PLC0415 - only with the extra `pipeline`

    ordered = sorted(status.peers, key=lambda each: (each.last_sync, each.address))
    return [
        Peer(
            f"{each.node_id}@{each.address}" if each.node_id else each.address,
            each.connected,
            each.last_sync,
            each.failures,
            each.last_error,
            each.lacks,
            each.has,
        )
        for each in ordered
    ]
