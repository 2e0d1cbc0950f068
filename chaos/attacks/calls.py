"""Attacks by calls of which something is missing, idle connections, and invented messages."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import grpc

from chaos.attacks.http2 import MESSAGE_HEAD, Connection, Target, connected
from chaos.tasks import PAUSE_S
from storenode.wire.storenode.v1.peer_pb2 import GossipFrame, Inventory

STORE: Final = "/storenode.v1.Store/"
PEER: Final = "/storenode.v1.Peer/"
_ANNOUNCING: Final = 24
_FRAME_IDS: Final = 4_096
_ANNOUNCE_S: Final = 40.0
_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_AT_ONCE: Final = 200
_DEADLINE_S: Final = 60.0
_IDLE_S: Final = 20.0


class Sent(Enum):
    """The part of a request that a call sends."""

    NOTHING = auto()
    ALL_BUT_ONE_BYTE = auto()
    ALL = auto()
    ALL_AND_A_RESET = auto()


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of some methods in turn, held open until the node ends them or for ``hold_s``.

    ``connections`` returns the number of connections for a number of calls.
    """

    methods: Sequence[str]
    sent: Sent
    connections: Callable[[int], int]
    hold_s: float

    async def run(self, target: Target, _rng: random.Random, count: int) -> str:
        """Make the calls, and describe how many of them the node ended."""
        async with AsyncExitStack() as stack:
            opening = [connected(target["listen"]) for _ in range(self.connections(count))]
            connections = [await stack.enter_async_context(each) for each in opening]
            taken: list[asyncio.Task[int]] = []
            for number in range(count):
                connection = connections[number % len(connections)]
                if connection.lost.is_set():
                    return f"the node closed a connection after {number:,} calls"
                path = STORE + self.methods[number % len(self.methods)]
                taken += self._call(connection, path)
                if number % _AT_ONCE == 0:
                    await asyncio.gather(*(each.drain() for each in connections))
                    await asyncio.sleep(0)
            taken_mib = sum(await asyncio.gather(*taken)) / 1024**2
            await hold(self.hold_s, lambda: sum(each.ended for each in connections) >= count)
            ended = sum(each.ended for each in connections)
        return f"the node took {taken_mib:,.0f} MiB, and ended {ended} of {count} calls"

    def _call(self, connection: Connection, path: str) -> list[asyncio.Task[int]]:
        stream = connection.open(path)
        if self.sent is Sent.ALL_BUT_ONE_BYTE:
            sending = connection.send_zeros(stream, _MESSAGE_BYTES, _MESSAGE_BYTES - 1)
            return [asyncio.create_task(sending)]
        if self.sent is not Sent.NOTHING:
            connection.send(stream, MESSAGE_HEAD.pack(False, 0), last=True)
        if self.sent is Sent.ALL_AND_A_RESET:
            connection.reset(stream)
        return []


UNFINISHED_REQUESTS: Final = Calls(
    ("Publish", "Query"), Sent.ALL_BUT_ONE_BYTE, lambda _: 1, hold_s=15.0
)
"""Requests of 16 MiB; the limit of the bytes of incomplete requests ends them."""

UNFINISHED_STREAMS: Final = Calls(
    ("PublishStream",), Sent.ALL_BUT_ONE_BYTE, lambda _: 4, hold_s=10.0
)
"""Publish streams; the budget of their first requests ends them."""

SILENT_CALLS: Final = Calls(
    ("Publish", "Query", "Scan", "Follow", "PublishStream"),
    Sent.NOTHING,
    lambda count: -(-count // 3_000),
    hold_s=5.0,
)
"""The limit of streams per connection ends them, and a deadline that is later."""

CROWDED_CALLS: Final = Calls(("Query",), Sent.ALL, lambda _: 200, hold_s=20.0)
"""An attack of more queries than a node serves in seconds: it serves connections in turn."""

RAPID_RESETS: Final = Calls(("Query",), Sent.ALL_AND_A_RESET, lambda _: 1, hold_s=0.0)
"""Calls that are reset at once (CVE-2023-44487); the limit of streams ends them."""


async def compressed_requests(target: Target, _rng: random.Random, count: int) -> str:
    """Send requests of 16 KB that unpack to 16 MiB; the node refuses them before unpacking."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target["listen"], options=options) as channel:
        publish: Any = channel.unary_unary(STORE + "Publish", None, None)
        request = bytes(_MESSAGE_BYTES - 64)

        async def call() -> str:
            made = publish(request, timeout=_DEADLINE_S, compression=grpc.Compression.Gzip)
            return str((await made.code()).name)

        codes = Counter(await asyncio.gather(*(call() for _ in range(count))))
    return "; ".join(f"{number} of {count} ended {code}" for code, number in codes.items())


async def idle_connections(target: Target, _rng: random.Random, count: int) -> str:
    """Open connections that send nothing, or make no call; a limit and a deadline end them."""
    async with AsyncExitStack() as stack:
        greeted, ends = [], []
        with suppress(OSError):
            for number in range(count):
                if number % 10 == 0:
                    greeted.append(await stack.enter_async_context(connected(target["listen"])))
                    continue
                reader, writer = await asyncio.open_connection(*target["listen"].rsplit(":", 1))
                stack.callback(writer.close)
                ends.append(asyncio.create_task(_read_to_end(reader)))
                stack.callback(ends[-1].cancel)
        await hold(_IDLE_S, lambda: all(each.done() for each in ends))
        closed = sum(each.done() for each in ends) + sum(each.lost.is_set() for each in greeted)
        made = len(ends) + len(greeted)
    return f"of {made} connections that could be made the node has closed {closed}"


async def hold(most_s: float, is_over: Callable[[], bool]) -> None:
    """Wait until the node has ended everything, or for ``most_s``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            while not is_over():  # noqa: ASYNC110 - counts of frames send no event
                await asyncio.sleep(PAUSE_S)


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1024):
            pass


async def false_announcements(target: Target, rng: random.Random, count: int) -> str:
    """Announce millions of messages that were never published.

    What a node keeps of each is bounded; a peer that does not deliver is slowed, then cut off.
    """
    counts: Counter[str] = Counter()

    async def announce(channel: Any) -> None:  # noqa: ANN401 - grpc.aio's
        while counts["ids"] < count:
            counts["names"] += 1
            call = channel.stream_stream(PEER + "Gossip")(metadata=identity(rng))
            try:
                while counts["ids"] < count:
                    ids = [rng.randbytes(32) for _ in range(_FRAME_IDS)]
                    await call.write(GossipFrame(inv=Inventory(ids=ids)).SerializeToString())
                    counts["ids"] += len(ids)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                counts["ended"] += 1
                await asyncio.sleep(0.5)
            finally:
                call.cancel()

    async with grpc.aio.insecure_channel(target["peer"]) as channel:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANNOUNCE_S):
                await asyncio.gather(*(announce(channel) for _ in range(_ANNOUNCING)))
    return (
        f"{counts['ids']:,} IDs were announced under {counts['names']:,} names, whose streams the "
        f"node ended {counts['ended']:,} times"
    )


def identity(rng: random.Random) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a peer under an invented name."""
    name = f"invented-{rng.getrandbits(64):x}"
    store_id = ("storenode-store-id", f"store-of-{name}")
    return ("storenode-node-id", name), store_id, ("storenode-version", "6.6.6")
