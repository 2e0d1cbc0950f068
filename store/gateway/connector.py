"""Connections to configured peers, made again when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from store.gateway.addresses import PeerMultiaddr
from store.gateway.clients import ClientRules, Clients
from store.gateway.connection import Surroundings, WakuConnection, begin_handshake
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import HANDSHAKE_TIMEOUT_S
from store.gateway.links import TcpLink
from store.observe.logging import get_logger
from storenode.common.backoff import Backoff

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
STEADY_S: Final = 60.0
"""A connection that lasted so long makes the next pause the first again."""

_RULES: Final = ClientRules(connections=1, new_connections_per_s=1_000, requests_per_s=1_000)
_log = get_logger("store.gateway")

Join = Callable[[WakuConnection], None]
"""A service that uses each connection of a peer."""


async def keep_connected(peer: PeerMultiaddr, around: Surroundings, joins: Sequence[Join]) -> None:
    """Connect to a peer, again and again, until cancelled."""
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        began_s, reason = time.monotonic(), "the connection ended"
        try:
            await _connect(peer, around, joins)
        except TimeoutError:
            reason = "no answer in time"
        except (RefusalError, StreamEndedError, OSError) as error:
            reason = str(error) or reason
        if time.monotonic() - began_s >= STEADY_S:
            backoff.reset()
        _log.warning("peer_away", peer=str(peer), reason=reason)
        await asyncio.sleep(backoff.take())


async def _connect(peer: PeerMultiaddr, around: Surroundings, joins: Sequence[Join]) -> None:
    """Serve one connection until it ends.

    Raises:
        RefusalError, StreamEndedError: The peer speaks something else, or is another.
        OSError, TimeoutError: It cannot be reached.
    """
    client = Clients(_RULES).arrive(peer.host, time.monotonic_ns())
    writer = None
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(peer.host, peer.port)
            secured = await begin_handshake(TcpLink(reader, writer), around.key, peer.peer_id)
        connection = WakuConnection(*secured, client, around)
        running = asyncio.create_task(connection.run())
        try:
            # One turn of the loop, in which the connection begins to read.
            await asyncio.sleep(0)
            for join in joins:
                join(connection)
            await asyncio.wait({running})
        finally:
            running.cancel()
            # Not awaited itself: its error would take the place of a cancellation of this task.
            await asyncio.wait({running})
        running.result()
    finally:
        if writer is not None:
            writer.close()
