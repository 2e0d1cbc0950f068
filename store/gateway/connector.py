"""Connections to configured peers, made again when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
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

_RULES: Final = ClientRules(connections=8, new_connections_per_s=100, requests_per_s=1_000)
_log = get_logger("store.gateway")


class WakuConnector:
    """Keeps a connection to each of some peers.

    Each of ``joins``, by peer ID, is called with every connection of the peer.
    """

    def __init__(
        self, around: Surroundings, joins: Mapping[str, Sequence[Callable[[WakuConnection], None]]]
    ) -> None:
        self._around = around
        self._joins = joins
        self._clients = Clients(_RULES)

    async def keep(self, peer: PeerMultiaddr) -> None:
        """Connect to a peer, again and again, until cancelled."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            began_s, reason = time.monotonic(), "the connection ended"
            try:
                await self._connect(peer)
            except TimeoutError:
                reason = "no answer in time"
            except (RefusalError, StreamEndedError, OSError) as error:
                reason = str(error) or reason
            if time.monotonic() - began_s >= STEADY_S:
                backoff.reset()
            _log.warning("peer_away", peer=str(peer), reason=reason)
            await asyncio.sleep(backoff.take())

    async def _connect(self, peer: PeerMultiaddr) -> None:
        """Serve one connection until it ends.

        Raises:
            RefusalError, StreamEndedError: The peer speaks something else, or is another.
            OSError, TimeoutError: It cannot be reached.
        """
        client = self._clients.arrive(peer.host, time.monotonic_ns())
        writer = None
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(peer.host, peer.port)
                link = TcpLink(reader, writer)
                secured = await begin_handshake(link, self._around.key, peer.peer_id)
            connection = WakuConnection(secured, client, self._around)
            running = asyncio.create_task(connection.run())
            try:
                # One turn of the loop, in which the connection begins to read.
                await asyncio.sleep(0)
                for join in self._joins[peer.peer_id]:
                    join(connection)
                await asyncio.wait({running})
            finally:
                running.cancel()
                # Not awaited itself: its error would take the place of a cancellation of this task.
                await asyncio.wait({running})
            running.result()
        finally:
            self._clients.leave(client)
            if writer is not None:
                writer.close()
