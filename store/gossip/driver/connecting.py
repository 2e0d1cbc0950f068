"""Keeps a stream with each configured peer: connects, and again with backoff when it ends."""

from __future__ import annotations

import asyncio
from typing import Final

from store.domain.environment import Environment
from store.domain.ports import PeerAddress, PeerFailed
from store.gossip.driver.errors import (
    FrameRejected,
    PeerHasStream,
    PeerRefused,
    StreamClosed,
    Superseded,
    TurnedAway,
)
from store.gossip.driver.streams import PeerStreams
from storenode.common.backoff import Backoff

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 5.0
"""Pauses after a peer that could not be reached, or that ended the stream."""

REFUSED_PAUSE_S: Final = 30.0
"""The pause after a peer that refuses, or that this node has turned away."""

STEADY_S: Final = 10.0
"""A stream that has lasted for so long makes the next pause the first again."""


class Connecting:
    """Keeps a stream with one peer, unless the peer keeps one with this node."""

    def __init__(self, peer: PeerAddress, streams: PeerStreams, environment: Environment) -> None:
        self._peer = peer
        self._streams = streams
        self._environment = environment
        self._logged = ""
        self._is_refused = False
        self._absent_ns = 0

    def observe_absence(self) -> int:
        """Look for the stream, and return when there was first none; 0 while there is one.

        A peer that refuses streams is not absent.
        """
        if self._is_refused or self._streams.has(self._peer):
            self._absent_ns = 0
        else:
            self._absent_ns = self._absent_ns or self._environment.now_ns()
        return self._absent_ns

    async def run(self) -> None:
        """Connect until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            await self._streams.absence(self._peer)
            began_s = loop.time()
            least_s = await self._connect()
            if loop.time() - began_s > STEADY_S:
                backoff.reset()
            # Both sides may connect at the same moment; they should not do so again and again.
            share = self._environment.random.uniform(0.5, 1.0)
            await asyncio.sleep(max(least_s, backoff.take()) * share)

    async def _connect(self) -> float:
        """Run one stream to its end; the shortest pause after it, in seconds."""
        try:
            await self._streams.connect(self._peer)
            self._is_refused = False
        except (PeerHasStream, Superseded):
            return 0.0
        except (PeerRefused, TurnedAway, FrameRejected) as error:
            self._is_refused = True
            self._log(str(error))
            return REFUSED_PAUSE_S
        except (PeerFailed, StreamClosed) as error:
            self._is_refused = False
            self._log(str(error))
            return 0.0
        self._logged = ""
        return 0.0

    def _log(self, sentence: str) -> None:
        """Write why there is no stream, once for each reason."""
        if sentence != self._logged:
            self._logged = sentence
            self._environment.log.warning(
                "gossip_dial_failed", peer=str(self._peer), error=sentence
            )
