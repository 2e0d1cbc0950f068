"""Attacks by peers under invented names that take places, announce, and deliver nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import grpc

from chaos.attacks.catalog import Target
from reconcile.ids import END, LOWEST, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.session import PayloadFrame, ReconcileSession, Role, SessionConfig, SessionStep
from reconcile.view import Loading, proceed
from storenode.wire.storenode.v1.peer_pb2 import (
    GossipFrame,
    Inventory,
    ReconcileFrame,
    TransferFrame,
)

_PEER: Final = "/storenode.v1.Peer/"
_ANSWER_S: Final = 20.0
_ENDED: Final = (AssertionError, asyncio.InvalidStateError, TimeoutError, grpc.aio.AioRpcError)
"""Errors of calls that a node has ended."""

_AT_ONCE: Final = 4
_ANNOUNCING: Final = 24
_FRAME_IDS: Final = 4_096
_ANNOUNCE_S: Final = 40.0
_PATIENCE_S: Final = 120.0
_SETTLE_S: Final = 1.0
_RECONCILE_AGAIN_S: Final = 0.25
_GOSSIP_AGAIN_S: Final = 0.2
"""All call from one address, so nothing but trying more often is in the honest peer's favour."""

_HOLD_AGAIN_S: Final = (3.0, 7.0)
"""In step with each other they would meet the moment at which places may be taken, or miss it."""


async def reconcile_places(target: Target, rng: random.Random, count: int) -> str:
    """Reconcile and never transfer; such sessions give way to an honest peer's."""
    outcomes: Counter[bool] = Counter()
    names = iter(_names(rng, count))
    async with grpc.aio.insecure_channel(target["peer"]) as channel:

        async def invent() -> None:
            for name in names:
                outcomes[bool(await reconcile(channel, name))] += 1

        for _ in range(_AT_ONCE):
            outcomes[bool(await reconcile(channel, next(names)))] += 1
        inventing = [asyncio.create_task(invent()) for _ in range(_AT_ONCE)]
        waited_s = await honest_transfer(target["peer"])
        await asyncio.gather(*inventing)
    seen = _seen(waited_s, "transferred", "got no place")
    return f"{outcomes[True]} of {count} invented peers reconciled; {seen}"


async def gossip_places(target: Target, rng: random.Random, count: int) -> str:
    """Open streams of gossip that deliver nothing; they give way to an honest peer's."""
    async with grpc.aio.insecure_channel(target["peer"]) as channel:
        joined: set[str] = set()
        names = _names(rng, count)
        holding = [asyncio.create_task(_hold(channel, name, joined, rng)) for name in names]
        await asyncio.sleep(_SETTLE_S)
        waited_s = await _served(target["peer"], _joins, _GOSSIP_AGAIN_S)
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
    seen = _seen(waited_s, "had a stream", "had no stream")
    return f"{len(joined)} of {count} invented peers had a stream; {seen}"


async def false_confirmations(target: Target, rng: random.Random, count: int) -> str:
    """Announce millions of messages that were never published.

    What a node keeps of each is bounded; a peer that does not deliver is slowed, then cut off.
    """
    counts: Counter[str] = Counter()

    async def announce(channel: Any) -> None:  # noqa: ANN401 - grpc.aio's
        while counts["ids"] < count:
            counts["names"] += 1
            call = begin(channel, "Gossip", *_names(rng, 1))
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


async def honest_transfer(address: str) -> float:
    """Reconcile and transfer once, and return the seconds until the transfer began."""

    async def once(channel: Any) -> bool:  # noqa: ANN401 - grpc.aio's
        session_id = await reconcile(channel, "honest-peer")
        return bool(session_id) and await transfer(channel, "honest-peer", session_id)

    return await _served(address, once, _RECONCILE_AGAIN_S)


async def _served(
    address: str, once: Callable[[Any], Awaitable[bool]], again_after_s: float
) -> float:
    """Retry until success or the end of patience, and return the seconds."""
    began_s = time.monotonic()
    async with grpc.aio.insecure_channel(address) as channel:
        while (passed_s := time.monotonic() - began_s) < _PATIENCE_S:
            if await once(channel):
                return time.monotonic() - began_s
            await asyncio.sleep(again_after_s)
    return passed_s


def _seen(waited_s: float, served: str, refused: str) -> str:
    if waited_s >= _PATIENCE_S:
        return f"an honest peer {refused} in {_PATIENCE_S:.0f} s"
    return f"an honest peer {served} after {waited_s:.1f} s"


def _names(rng: random.Random, count: int) -> list[str]:
    return [f"invented-{rng.getrandbits(64):x}" for _ in range(count)]


async def _joins(channel: Any) -> bool:  # noqa: ANN401 - grpc.aio's
    """Return True if the node sends something on a new stream of gossip."""
    call = begin(channel, "Gossip", "honest-peer")
    joined = await answer(call) is not None
    call.cancel()
    return joined


async def _hold(
    channel: Any,  # noqa: ANN401 - grpc.aio's
    name: str,
    joined: set[str],
    rng: random.Random,
) -> None:
    """Keep a silent stream open, and open it again when it ends."""
    task = asyncio.current_task()
    # A cancellation may come out of a call as the error with which the call ended meanwhile.
    while task is not None and not task.cancelling():
        call = begin(channel, "Gossip", name)
        try:
            with suppress(grpc.aio.AioRpcError):
                while isinstance(await call.read(), bytes):
                    joined.add(name)
            await asyncio.sleep(rng.uniform(*_HOLD_AGAIN_S))
        finally:
            call.cancel()


def identity(name: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a peer that calls itself by a name."""
    store_id = ("storenode-store-id", f"store-of-{name}")
    return ("storenode-node-id", name), store_id, ("storenode-version", "6.6.6")


def begin(channel: Any, method: str, name: str) -> Any:  # noqa: ANN401 - grpc.aio's
    """Begin a call of a peer under a name."""
    return channel.stream_stream(_PEER + method)(metadata=identity(name))


async def answer(call: Any) -> bytes | None:  # noqa: ANN401 - grpc.aio's
    """Return the next frame; None if there is none in time."""
    try:
        data = await asyncio.wait_for(call.read(), _ANSWER_S)
    except (grpc.aio.AioRpcError, TimeoutError, asyncio.CancelledError):
        return None
    return data if isinstance(data, bytes) else None


class EmptyPeer:
    """An initiator of a reconciliation that holds nothing."""

    def __init__(self) -> None:
        config = SessionConfig(cluster=1, shards=(), window=(LOWEST, END))
        self._session = ReconcileSession(Role.INITIATOR, config)
        self._view = MemoryView(IndexView.of(SyncIds.of(())))

    @property
    def has_ended(self) -> bool:
        """Return True once the differences are known."""
        return self._session.ended

    def begin(self) -> bytes:
        """Return the first frame."""
        frame = self._encode(self._session.begin(self._view))
        assert frame is not None
        return frame

    def give(self, frame: ReconcileFrame) -> bytes | None:
        """Take an answer, and return the next frame, if there is one."""
        count = frame.count if frame.HasField("count") else None
        given = PayloadFrame(frame.ranges_data, count, frame.refusal)
        return self._encode(self._session.receive(given, self._view))

    def _encode(self, work: Loading[SessionStep]) -> bytes | None:
        step = proceed(work)
        assert isinstance(step, SessionStep), "a view in memory loads nothing"
        if (frame := step.frame) is None:
            return None
        return ReconcileFrame(ranges_data=frame.payload, count=frame.count).SerializeToString()


async def reconcile(channel: Any, name: str) -> str:  # noqa: ANN401 - grpc.aio's
    """Reconcile an empty store; return the ID of the session, or "" if it was refused."""
    peer, call = EmptyPeer(), begin(channel, "Reconcile", name)
    frame: bytes | None = peer.begin()
    session_id = ""
    try:
        while frame is not None:
            await asyncio.wait_for(call.write(frame), _ANSWER_S)
            if peer.has_ended:
                break
            answered = ReconcileFrame.FromString(await answer(call) or b"")
            session_id = session_id or answered.session_id
            frame = peer.give(answered)
        await call.done_writing()
        while await answer(call) is not None:
            continue
        code = await asyncio.wait_for(call.code(), _ANSWER_S)
    except (*_ENDED, ValueError):
        return ""
    return session_id if code is grpc.StatusCode.OK else ""


async def transfer(channel: Any, name: str, session_id: str) -> bool:  # noqa: ANN401 - grpc.aio's
    """Begin the transfer of a session; return True once the node has sent something."""
    call = begin(channel, "Transfer", name)
    try:
        await call.write(TransferFrame(session_id=session_id).SerializeToString())
        return await answer(call) is not None
    except _ENDED:
        return False
    finally:
        call.cancel()
