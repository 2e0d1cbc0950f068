"""Calls peers over gRPC: `store.domain.ports.PeerCaller`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from store.domain.ports import HistoryEntry, PeerAddress, ScannedPage, SyncOutcome, Window
from store.rpc.dial import PeerDialer
from store.rpc.peer_lookup import lookup
from store.rpc.peer_scan import scan
from store.sync.session.exchange import Exchange
from store.sync.session.initiator import initiate


class Caller:
    """Implements `store.domain.ports.PeerCaller`."""

    def __init__(self, dialer: PeerDialer, exchange: Exchange) -> None:
        self._dialer = dialer
        self._exchange = exchange
        self.connected = dialer.connected
        self.node_id = dialer.node_id

    async def synchronize(self, peer: PeerAddress, window: Window) -> SyncOutcome:
        """One session with a peer (see `store.domain.ports.PeerCaller`)."""
        return await initiate(self._dialer, self._exchange, peer, window)

    def scan(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> AsyncGenerator[ScannedPage, None]:
        """What a peer holds of a time range (see `store.domain.ports.PeerCaller`)."""
        silence_s = self._exchange.work.silence_s
        return scan(self._dialer, peer, start_ns, end_ns, cursor, silence_s=silence_s)

    def lookup(
        self, peer: PeerAddress, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> AsyncGenerator[list[bytes], None]:
        """What a peer holds of some SDS messages (see `store.domain.ports.PeerCaller`)."""
        silence_s = self._exchange.work.silence_s
        return lookup(self._dialer, peer, channel_id, entries, silence_s=silence_s)

    async def close(self) -> None:
        """End everything."""
        self._exchange.close()
        await self._dialer.close()
