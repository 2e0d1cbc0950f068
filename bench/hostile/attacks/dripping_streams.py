"""Streams of every kind on which a byte comes now and then, and readers that take as little: they
have few places, and those who are honest are served beside them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from bench.hostile.http2 import MESSAGE_HEAD, Connection, connected
from bench.hostile.target import Target
from bench.hostile.unread import TOPIC, planted
from storenode.wire.storenode.v1.store_pb2 import ContentFilter, FollowRequest, ScanRequest

COUNT = 240
SHORT = 60

_MESSAGE_BYTES: Final = 64 * 1024
_HOLD_S: Final = 8.0
_PAUSE_S: Final = 0.05
_TAKEN_BYTES: Final = 64
_STORE: Final = "/storenode.v1.Store/"
_PEER: Final = "/storenode.v1.Peer/"
_SENT: Final = (_PEER + "Reconcile", _PEER + "Transfer", _PEER + "Gossip", _STORE + "Publish")
_FILTER: Final = ContentFilter(content_topics=[TOPIC])
_READ: Final = {
    _STORE + "Scan": ScanRequest(filter=_FILTER, include_data=True).SerializeToString(),
    _STORE + "Follow": FollowRequest(
        filter=_FILTER, from_beginning=True, include_data=True
    ).SerializeToString(),
}


async def attack(target: Target, rng: random.Random, count: int) -> str:
    """Drip for a while, each kind over a connection of its own, and say how many were ended."""
    await planted(target, rng)
    each = count // (len(_SENT) + len(_READ))
    ended = await asyncio.gather(
        *(_send(target, rng, path, each) for path in _SENT),
        *(_read(target, path, request, each) for path, request in _READ.items()),
    )
    names = [path.rpartition("/")[2] for path in (*_SENT, *_READ)]
    told = ", ".join(f"{number} {name}" for name, number in zip(names, ended, strict=True))
    return f"of {each} streams of each kind the node ended {told}"


async def _send(target: Target, rng: random.Random, path: str, count: int) -> int:
    is_peer = path.startswith(_PEER)
    async with connected(target.peer_address if is_peer else target.address) as connection:
        streams = []
        for _ in range(count):
            fields = _names(f"invented-{rng.getrandbits(64):x}") if is_peer else ()
            streams.append(connection.open(path, fields))
            connection.send(streams[-1], MESSAGE_HEAD.pack(False, _MESSAGE_BYTES))
        return await _drip(connection, streams, lambda each: connection.send(each, b"\n"))


def _names(name: str) -> tuple[str, ...]:
    of_store = ("storenode-store-id", f"store-of-{name}", "storenode-version", "6.6.6")
    return ("storenode-node-id", name, *of_store)


async def _read(target: Target, path: str, request: bytes, count: int) -> int:
    async with connected(target.address) as connection:
        streams = [connection.open(path) for _ in range(count)]
        for each in streams:
            data = MESSAGE_HEAD.pack(False, len(request)) + request
            connection.send(each, data, last=True)
        return await _drip(connection, streams, lambda each: connection.take(each, _TAKEN_BYTES))


async def _drip(connection: Connection, streams: list[int], drop: Callable[[int], None]) -> int:
    until_s = time.monotonic() + _HOLD_S
    while time.monotonic() < until_s and not connection.lost.is_set():
        for each in streams:
            drop(each)
        await connection.drain()
        await asyncio.sleep(_PAUSE_S)
    return connection.ended
