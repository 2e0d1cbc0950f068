"""A client that follows a node over everything that befalls it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import grpc

from bench.soak.checker.asking import OPTIONS
from storenode.wire.storenode.v1 import store_pb2, store_pb2_grpc

_PAUSE_S: Final = 0.25


@dataclass(slots=True)
class Follower:
    """Follows from the beginning, and goes on from its last cursor whenever the stream breaks.

    A node that refuses the cursor (``OUT_OF_RANGE``: an empty store, or commits that a failover
    lost before anybody was told of them) is read from the beginning: a new reading.
    """

    node: str
    address: str
    hashes: list[bytes] = field(default_factory=list)
    cursor: bytes = b""
    strange: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Without end."""
        async with grpc.aio.insecure_channel(self.address, OPTIONS) as channel:
            stub: store_pb2_grpc.StoreAsyncStub = store_pb2_grpc.StoreStub(channel)
            while True:
                try:
                    await self._follow(stub)
                except grpc.aio.AioRpcError as error:
                    self._broken(error)
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self, stub: store_pb2_grpc.StoreAsyncStub) -> None:
        request = store_pb2.FollowRequest(cursor=self.cursor, from_beginning=not self.cursor)
        async for page in stub.Follow(request):
            self.hashes += [message.message_hash for message in page.messages]
            self.cursor = page.cursor

    def _broken(self, error: grpc.aio.AioRpcError) -> None:
        if error.code() is grpc.StatusCode.OUT_OF_RANGE:
            self.hashes, self.cursor = [], b""
        elif error.code() is not grpc.StatusCode.UNAVAILABLE:
            self.strange.append(f"follower of {self.node}: {error.code().name}: {error.details()}")
