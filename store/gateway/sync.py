"""Reconciliation and transfer with nwaku: the gateway compares the node's messages with a peer's.

A session compares the IDs of a range of time, in either role, and afterwards each side transfers
what the other lacks on a stream that it opens. Messages that a peer transfers are published at
the node, which stores old ones if the gateway's token has the right `backfill`. Only peers that the
operator named are served, while nwaku takes from everybody.

Bounds: a session holds at most `MAX_SYNC_IDS` IDs of the node. Of more, the oldest are compared,
and a session that this side begins is followed by another one for the rest. A nanosecond with more
IDs is not compared. After a session that failed, the next one compares half the range.

Source: nwaku v0.37.1; "Waku Sync", with the differences that `sync_session` names.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from store.gateway import limits
from store.gateway.connection import Stream, WakuConnection
from store.gateway.faults import RefusalError, StatusError, StreamEndedError
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import FollowedMessage, Spool, UpstreamNode, followed
from store.gateway.sync_session import (
    NO_COMMON_TOPIC,
    MessageIds,
    SyncPayload,
    SyncSession,
    decode_payload,
)
from store.gateway.wire import parse, require
from store.observe.logging import get_logger
from store.serving.tasks import keep_doing
from storenode.message.limits import NS_PER_S
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawMessage
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import QueriedPage, TransferredMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest

RECONCILIATION: Final = "/vac/waku/reconciliation/1.0.0"
TRANSFER: Final = "/vac/waku/transfer/1.0.0"

JITTER_NS: Final = 20 * NS_PER_S
"""The newest messages, which are still on their way, are not compared (nwaku)."""

SHORTEST_RANGE_NS: Final = 10 * NS_PER_S
"""The shortest range of a session; after a failure the next one compares half as much."""

FIRST_PAUSE_S: Final = 2.0
"""The pause between the connection and the first session with a peer."""

_OK: Final = 200
_TOPICS_DIFFER: Final = "no pubsub topic is common to both sides"
_OUTCOMES: Final = {"no_protocol": "refused", "topics_differ": "topics_differ"}
"""Outcomes of a session by the reason why it was refused; others have failed."""

_log = get_logger("store.gateway")


@dataclass(frozen=True, slots=True)
class SyncRules:
    """The peers to reconcile with, how often and how far back, and the topics of the gateway."""

    peers: Collection[str]
    interval_ns: int
    range_ns: int
    pubsub_topics: Sequence[str]

    @property
    def clipped_ns(self) -> int:
        """The oldest part of a range, of which nwaku may have dropped IDs: it is not compared."""
        return min(JITTER_NS + self.interval_ns, self.range_ns // 2)


@dataclass(slots=True)
class _Allowance:
    """The messages and bytes that a peer may transfer until its next session begins."""

    in_session: bool = False
    begun_s: float = float("-inf")
    messages: int = 0
    size_bytes: int = 0
    unsolicited: int = limits.MAX_UNSOLICITED_MESSAGES

    def begin(self, now_s: float) -> None:
        """Begin a session."""
        self.in_session, self.begun_s = True, now_s
        self.messages, self.size_bytes = limits.MAX_SYNC_MESSAGES, limits.MAX_SYNC_BYTES
        self.unsolicited = limits.MAX_UNSOLICITED_MESSAGES


def parse_transfer(frame: bytes) -> tuple[str, bytes, int]:
    """Return the pubsub topic, the message and its timestamp; raise ValueError if malformed."""
    found = parse(TransferredMessage, frame)
    require(found, "pubsub_topic", "message")
    return found.pubsub_topic, found.message, parse(RawMessage, found.message).timestamp


class NwakuSync:
    """The sessions with the peers of `--nwaku-sync-peer`, one at a time with each."""

    def __init__(
        self, rules: SyncRules, node: UpstreamNode, spool: Spool, metrics: GatewayMetrics
    ) -> None:
        self._rules = rules
        self._node = node
        self._spool = spool
        self._metrics = metrics
        self._allowances = {peer: _Allowance() for peer in rules.peers}
        self._places = asyncio.Semaphore(limits.SYNC_SESSIONS)
        self._queries = asyncio.Semaphore(limits.SYNC_SESSIONS)
        self._rng = random.Random()  # noqa: S311 - spreads sessions over time

    def join(self, connection: WakuConnection) -> None:
        """Begin sessions with a peer until its connection ends."""
        connection.start(keep_doing("sync sessions", partial(self._repeat, connection)))

    async def serve(self, stream: Stream) -> None:
        """Serve a session that a peer begins."""
        connection = stream.connection
        allowance = self._allowance_of(connection)
        is_early = time.monotonic() - allowance.begun_s < limits.MIN_SYNC_PAUSE_S
        if allowance.in_session or is_early:
            raise RefusalError("request_rate", "the peer begins sessions too often")
        session = await self._run(connection, "responder", allowance, partial(self._answer, stream))
        if session is not None:
            connection.start(self._transfer(connection, session))

    async def serve_transfer(self, stream: Stream) -> None:
        """Take the messages that a peer transfers, as fast as the node stores them."""
        allowance = self._allowance_of(stream.connection)
        while True:
            try:
                frame = await stream.delimited(limits.MAX_RPC_BYTES)
            except StreamEndedError:
                return
            stream.release()
            try:
                topic, message, timestamp_ns = parse_transfer(frame)
            except ValueError as error:
                raise RefusalError("malformed", str(error)) from error
            if self._is_expected(allowance, topic, timestamp_ns):
                allowance.messages -= 1
                allowance.size_bytes -= len(frame)
                self._count("received")
                self._spool.put(topic, message)
                await self._spool.wait_for_room()
            else:
                allowance.unsolicited -= 1
                self._count("unsolicited")
                if allowance.unsolicited < 0:
                    raise RefusalError("flood", "the peer transfers messages that no session found")

    def _is_expected(self, allowance: _Allowance, topic: str, timestamp_ns: int) -> bool:
        """Return True if a message is within the allowance, the topics and the range of sessions.

        A peer can list any ID, so a list of the IDs that it has listed would bound nothing more.
        """
        oldest_ns = time.time_ns() - self._rules.range_ns - JITTER_NS
        return (
            allowance.messages > 0
            and allowance.size_bytes > 0
            and topic in self._rules.pubsub_topics
            and timestamp_ns >= oldest_ns
        )

    def _allowance_of(self, connection: WakuConnection) -> _Allowance:
        allowance = self._allowances.get(connection.peer_id)
        if allowance is None:
            sentence = f"the peer {connection.peer_id} is not one of --nwaku-sync-peer"
            raise RefusalError("identity", sentence)
        return allowance

    async def _run(
        self,
        connection: WakuConnection,
        role: str,
        allowance: _Allowance,
        work: Callable[[], Coroutine[None, None, SyncSession]],
    ) -> SyncSession | None:
        """Run a session within its bounds, and count and log how it ends; None if it has failed."""
        if allowance.in_session:
            return None
        allowance.begin(time.monotonic())
        outcome, reason, session = "done", "", None
        try:
            async with asyncio.timeout(limits.SYNC_SESSION_TIMEOUT_S), self._places:
                session = await work()
        except RefusalError as fault:
            outcome, reason = _OUTCOMES.get(fault.reason, "failed"), str(fault)
        except StreamEndedError:
            outcome, reason = "refused", "the peer ended the stream"
        except TimeoutError:
            outcome, reason = "failed", "the peer, or the node, did not answer in time"
        except (ValueError, StatusError, OSError) as error:
            outcome, reason = "failed", str(error) or "the connection to the peer broke"
        finally:
            allowance.in_session = False
        self._metrics.sync_sessions.labels(role, outcome).inc()
        log = _log.info if session is not None else _log.warning
        log(
            "sync_session_ended", peer=connection.peer_id, role=role, outcome=outcome, reason=reason
        )
        return session

    async def _answer(self, stream: Stream) -> SyncSession:
        payload = await _read_payload(stream)
        topics = self._rules.pubsub_topics
        if payload.pubsub_topics:
            topics = [topic for topic in topics if topic in payload.pubsub_topics]
        if not topics:
            await stream.send_delimited(NO_COMMON_TOPIC)
            raise RefusalError("topics_differ", _TOPICS_DIFFER)
        if len(payload.content_topics) > limits.MAX_REQUESTED_TOPICS:
            raise ValueError(
                f"a payload names more than {limits.MAX_REQUESTED_TOPICS} content topics"
            )
        asked = [each for each in payload.ranges if each.content is not None]
        low_ns, high_ns = (asked[0].lower_ns, asked[-1].upper_ns) if asked else (0, 0)
        low_ns += min(self._rules.clipped_ns, (high_ns - low_ns) // 2)
        low_ns = max(low_ns, time.time_ns() - self._rules.range_ns)
        ids, high_ns = await self._load(topics, payload.content_topics, low_ns, high_ns)
        session = SyncSession(ids, low_ns, high_ns, topics)
        await self._exchange(session, stream, payload)
        return session

    async def _repeat(self, connection: WakuConnection) -> None:
        """Begin a session now and then, until the connection ends."""
        allowance = self._allowance_of(connection)
        most_ns = self._rules.range_ns
        await asyncio.sleep(FIRST_PAUSE_S)
        while True:
            now_ns = time.time_ns()
            low_ns = now_ns - self._rules.range_ns + self._rules.clipped_ns
            end_ns = now_ns - JITTER_NS
            while low_ns < end_ns:
                high_ns = min(end_ns, low_ns + most_ns)
                begin = partial(self._begin, connection, low_ns, high_ns)
                session = await self._run(connection, "initiator", allowance, begin)
                if session is None:
                    # A peer with very many IDs may list too many of them for one session.
                    most_ns = max(most_ns // 2, SHORTEST_RANGE_NS)
                    break
                most_ns = min(2 * most_ns, self._rules.range_ns)
                await self._transfer(connection, session)
                low_ns = max(session.high_ns, low_ns + 1)
            await asyncio.sleep(self._rules.interval_ns / NS_PER_S * self._rng.uniform(0.9, 1.1))

    async def _begin(self, connection: WakuConnection, low_ns: int, high_ns: int) -> SyncSession:
        topics = self._rules.pubsub_topics
        ids, high_ns = await self._load(topics, (), low_ns, high_ns)
        session = SyncSession(ids, low_ns, high_ns, topics)
        if low_ns == high_ns:
            return session
        async with connection.opened(RECONCILIATION) as stream:
            await stream.send_delimited(session.begin())
            frame = await _read_frame(stream)
            if frame == NO_COMMON_TOPIC:
                raise RefusalError("topics_differ", _TOPICS_DIFFER)
            payload = await asyncio.to_thread(decode_payload, frame)
            await self._exchange(session, stream, payload)
        return session

    async def _exchange(self, session: SyncSession, stream: Stream, payload: SyncPayload) -> None:
        """Process what the peer sends, ``payload`` first, until one side ends the session."""
        for _ in range(limits.MAX_SYNC_FRAMES):
            answer = await asyncio.to_thread(session.receive, payload)
            if answer is not None:
                await stream.send_delimited(answer)
            if session.has_ended:
                self._count("missing", session.missing)
                return
            payload = await _read_payload(stream)
        raise RefusalError(
            "flood", f"the peer sends more than {limits.MAX_SYNC_FRAMES} frames in a session"
        )

    async def _load(
        self, pubsub_topics: Sequence[str], content_topics: Sequence[str], low_ns: int, high_ns: int
    ) -> tuple[MessageIds, int]:
        """Return the IDs of the node in a range, and the end of the range up to which they fit."""
        timestamps, hashes = [np.zeros(0, np.int64)], []
        most = limits.MAX_SYNC_IDS // len(pubsub_topics)
        for topic in pubsub_topics if low_ns < high_ns else ():
            count = 0
            async with aclosing(self._node.scan(topic, content_topics, low_ns, high_ns)) as pages:
                async for page in pages:
                    timestamps.append(np.array(page.timestamps, np.int64))
                    hashes += [entry.message_hash for entry in page.messages]
                    count += len(page.timestamps)
                    if count > most:
                        high_ns = page.timestamps[-1]
                        break
        joined = await asyncio.to_thread(b"".join, hashes)
        return await asyncio.to_thread(MessageIds, np.concatenate(timestamps), joined), high_ns

    async def _transfer(self, connection: WakuConnection, session: SyncSession) -> None:
        """Send the messages that a peer lacks, the oldest first."""
        hashes = [digest for _, digest in sorted(session.to_send)[: limits.MAX_SYNC_MESSAGES]]
        if not hashes:
            return
        left_bytes = limits.MAX_SYNC_BYTES
        try:
            async with connection.opened(TRANSFER) as stream:
                for start in range(0, len(hashes), limits.TRANSFER_BATCH):
                    for message in await self._read(hashes[start : start + limits.TRANSFER_BATCH]):
                        frame = TransferredMessage(
                            pubsub_topic=message.pubsub_topic, message=message.encoded
                        ).SerializeToString()
                        if len(frame) > limits.MAX_RPC_BYTES:
                            self._count("too_large")
                            continue
                        left_bytes -= len(frame)
                        if left_bytes < 0:
                            return
                        await stream.send_delimited(frame)
                        self._count("sent")
        except (RefusalError, StatusError, ValueError, OSError) as error:
            reason = str(error) or "the peer ended the stream, or did not read"
            _log.warning("sync_transfer_failed", peer=connection.peer_id, reason=reason)

    async def _read(self, hashes: Sequence[bytes]) -> list[FollowedMessage]:
        """Return messages of the node by hash, those that it still has."""
        messages: list[FollowedMessage] = []
        request = StoreQueryRequest(message_hashes=hashes, pagination_limit=len(hashes))
        request.include_data = request.pagination_forward = True
        while True:
            answer = await self._node.query(request.SerializeToString(), self._queries)
            page = parse(QueriedPage, answer)
            if page.status_code not in (0, _OK):
                raise StatusError(page.status_code, "the node cannot read messages by hash")
            messages += map(followed, page.messages)
            if not page.pagination_cursor:
                return messages
            request.pagination_cursor = page.pagination_cursor

    def _count(self, outcome: str, count: int = 1) -> None:
        self._metrics.synced.labels(outcome).inc(count)


async def _read_payload(stream: Stream) -> SyncPayload:
    return await asyncio.to_thread(decode_payload, await _read_frame(stream))


async def _read_frame(stream: Stream) -> bytes:
    """Read a frame in pieces, which are not counted as unread any more."""
    async with asyncio.timeout(limits.SYNC_FRAME_TIMEOUT_S):
        size_bytes = await stream.length(limits.MAX_SYNC_FRAME_BYTES)
        frame = bytearray()
        while len(frame) < size_bytes:
            frame += await stream.exactly(min(limits.READ_BYTES, size_bytes - len(frame)))
            stream.release()
    return bytes(frame)
