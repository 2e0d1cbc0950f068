"""Dials the configured peers for gossip, and again with backoff when a stream ends."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import grpc

from store.domain.ports import PeerAddress, PeerFailed
from store.observe.logging import get_logger
from store.rpc.dial import CallFailed
from store.rpc.failure import RpcFailure
from store.rpc.gossiping import Links

_LOG = get_logger("store.runtime.gossip")

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 5.0
"""Pauses after a peer that could not be reached, or that ended the stream."""

REFUSED_PAUSE_S: Final = 30.0
"""The pause after a peer that will not, or that this node has turned away."""

STEADY_S: Final = 10.0
"""A stream that has lasted for so long makes the next pause the first again."""

_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
)


class Dialling:
    """Keeps a stream with one peer, unless the peer keeps one with this node."""

    def __init__(self, peer: PeerAddress, links: Links) -> None:
        self._peer = peer
        self._links = links
        self._told = ""

    async def run(self) -> None:
        """Dial until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            await self._links.absence(self._peer)
            began_s = loop.time()
            least_s = await self._dial()
            if loop.time() - began_s > STEADY_S:
                pause_s = FIRST_PAUSE_S
            # Both sides may dial at the same moment; they should not do so again and again.
            await asyncio.sleep(max(least_s, pause_s) * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _dial(self) -> float:
        """Dial once, to the end of the stream; how long to pause at least."""
        try:
            await self._links.dial(self._peer)
        except (RpcFailure, CallFailed) as error:
            if error.code is not grpc.StatusCode.ABORTED:
                self._tell(str(error))
            return REFUSED_PAUSE_S if error.code in _REFUSALS else 0.0
        except PeerFailed as error:
            self._tell(str(error))
            return 0.0
        self._told = ""
        return 0.0

    def _tell(self, sentence: str) -> None:
        """Write why there is no stream, once for each reason."""
        if sentence != self._told:
            self._told = sentence
            _LOG.warning("gossip_dial_failed", peer=str(self._peer), error=sentence)
