"""Frames that wait to be sent on a stream that the gateway opens, within a budget."""

from __future__ import annotations

import asyncio
from collections import deque

from store.gateway.connection import WakuConnection
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import PUSH_TIMEOUT_S
from store.gateway.metrics import GatewayMetrics


class SendQueue:
    """The frames for one client. Their bytes count as unsent bytes of its address."""

    def __init__(self, connection: WakuConnection, protocol: str, max_frames: int) -> None:
        self._connection = connection
        self._protocol = protocol
        self._max_frames = max_frames
        self._frames: deque[bytes] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        """Count the frames that wait."""
        return len(self._frames)

    def put(self, frame: bytes) -> bool:
        """Queue a frame; False if too many wait."""
        if len(self._frames) >= self._max_frames:
            return False
        try:
            self._connection.client.unsent.take(len(frame))
        except RefusalError:
            return False
        self._frames.append(frame)
        self._filled.set()
        return True

    def discard(self) -> None:
        """Forget all frames."""
        while self._frames:
            self._drop_first()

    async def run(self, metrics: GatewayMetrics) -> None:
        """Send frames on one stream after the other, until the client takes none on one.

        A client that does not speak the protocol, or does not read, is counted as refused.
        """
        try:
            while await self._send_on_one_stream():
                pass
        except RefusalError as fault:
            metrics.refused(fault.reason)
        except TimeoutError:
            metrics.refused("timeout")
        except OSError:
            pass
        finally:
            self.discard()

    async def _send_on_one_stream(self) -> bool:
        count = 0
        await self._filled.wait()
        try:
            async with self._connection.opened(self._protocol) as stream:
                while True:
                    await self._filled.wait()
                    async with asyncio.timeout(PUSH_TIMEOUT_S):
                        await stream.send(self._frames[0])
                    self._drop_first()
                    count += 1
        except StreamEndedError:
            return count > 0

    def _drop_first(self) -> None:
        self._connection.client.unsent.give(len(self._frames.popleft()))
        if not self._frames:
            self._filled.clear()
