"""Connections in memory: pushes to subscribers, and sessions with nwaku and with liars."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Final, cast
from unittest.mock import AsyncMock, Mock

import pytest

from store.gateway import limits, server, sync
from store.gateway.addresses import PeerMultiaddr
from store.gateway.clients import Clients
from store.gateway.connection import Handler, SendQueue, Stream, Surroundings, WakuConnection
from store.gateway.faults import RefusalError, StatusError, StreamEndedError
from store.gateway.filter import FILTER_PUSH, FILTER_SUBSCRIBE, Filter
from store.gateway.gossipsub import encode_message, encode_subscriptions
from store.gateway.limits import MAX_RPC_BYTES, MAX_SYNC_FRAME_BYTES, MAX_UNSOLICITED_MESSAGES
from store.gateway.metrics import GatewayMetrics
from store.gateway.multiplexing import Mplex, Multiplexer, Yamux
from store.gateway.node import NodeFeed, Spool, UpstreamNode
from store.gateway.noise import Identity, SecurePipe
from store.gateway.pipes import Pipe
from store.gateway.relay import RELAY
from store.gateway.server import keep_connected
from store.gateway.sync import RECONCILIATION, TRANSFER, NwakuSync, SyncRules, parse_transfer
from store.gateway.wire import delimited, encode_status
from store.serving import tasks
from storenode.message.hashing import message_hash
from storenode.message.varint import varint
from storenode.wire.storenode.internal.v1 import waku_protocols_pb2 as wire
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_NWAKU,
    FollowPage,
    PublishResult,
    ScanPage,
)
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from tests.support.nwaku import SimulatedNwaku, decode
from tests.support.virtual_time import virtual_time
from tests.unit.gateway.test_services import relay_of


class MemoryPipe(Pipe):
    """An end of a connection, whose other side has a peer ID."""

    peer_id = "peer"

    def __init__(self, incoming: asyncio.Queue[bytes], outgoing: asyncio.Queue[bytes]) -> None:
        super().__init__()
        self.incoming, self.outgoing = incoming, outgoing

    async def receive(self) -> bytes:
        return await self.incoming.get()

    async def send(self, data: bytes) -> None:
        self.outgoing.put_nowait(data)


@asynccontextmanager
async def connected_pair(
    metrics: GatewayMetrics,
    handlers: Mapping[str, Handler],
    handlers_of_peer: Mapping[str, Handler],
    *work: Coroutine[None, None, None],
    is_mplex: bool = False,
) -> AsyncIterator[tuple[WakuConnection, WakuConnection]]:
    """Yield the gateway's end and the peer's, and run other work beside them for a minute."""
    queues: list[asyncio.Queue[bytes]] = [asyncio.Queue(), asyncio.Queue()]
    clients, ends = Clients(10, 10, 10), []
    for ways, served, is_own in ((queues, handlers, True), (queues[::-1], handlers_of_peer, False)):
        pipe = MemoryPipe(*ways)
        multiplexer: Multiplexer = Mplex() if is_mplex else Yamux(is_outbound=is_own)
        around = Surroundings(cast("Identity", None), served, metrics, 8)
        client = clients.arrive("192.0.2.1" if is_own else "192.0.2.2", 0)
        ends.append(WakuConnection(cast("SecurePipe", pipe), multiplexer, client, around))
    tasks = [asyncio.create_task(each) for each in (*(end.run() for end in ends), *work)]
    try:
        async with asyncio.timeout(60):
            yield ends[0], ends[1]
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, RefusalError):
                await task


async def until(is_reached: Callable[[], bool]) -> None:
    """Wait for a state that has no event."""
    while not is_reached():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


PUBSUB: Final = "/waku/2/rs/7/0"
TOPIC: Final = "/a/1/b/proto"
SUBSCRIBE: Final = wire.FilterRequest(
    request_id=b"r", kind=1, pubsub_topic=PUBSUB, content_topics=[TOPIC]
).SerializeToString()


class FollowedNode:
    """A node that is followed: its first page is empty, and the others are put in."""

    def __init__(self) -> None:
        self.pages: asyncio.Queue[FollowPage] = asyncio.Queue()
        self.pages.put_nowait(FollowPage(cursor=b"0", live=True))

    async def follow(self, cursor: bytes) -> AsyncGenerator[bytes, None]:
        del cursor
        while True:
            yield (await self.pages.get()).SerializeToString()

    def publish(self, payload: bytes) -> None:
        page = FollowPage(cursor=b"1", live=True)
        message = WakuMessage(payload=payload, content_topic=TOPIC, timestamp=2**62)
        page.messages.add(pubsub_topic=PUBSUB).message.MergeFrom(message)
        self.pages.put_nowait(page)


@asynccontextmanager
async def subscribed(
    handlers: dict[str, Handler], *, is_mplex: bool = True
) -> AsyncIterator[tuple[WakuConnection, FollowedNode, Filter]]:
    """Subscribe a client, which serves the streams that the gateway opens by its handlers."""
    node, metrics = FollowedNode(), GatewayMetrics("0")
    feed = NodeFeed(cast("UpstreamNode", node))
    found = Filter(feed, metrics, frozenset({PUBSUB}))
    served = {FILTER_SUBSCRIBE: found.serve}
    pair = connected_pair(metrics, served, handlers, feed.run(), is_mplex=is_mplex)
    async with pair as (own, peer):
        async with peer.opened(FILTER_SUBSCRIBE) as stream:
            await stream.send_delimited(SUBSCRIBE)
            assert await stream.delimited(1_000) == encode_status(b"r", 200, "OK")
        assert len(found) == 1
        yield own, node, found
        found.check()
    assert len(found) == 0
    client = own.client
    assert client.unsent.used_bytes == client.unread.used_bytes == client.criteria == 0


@pytest.mark.parametrize("is_mplex", [True, False])
async def test_messages_are_pushed_on_one_stream_until_a_side_ends_it(is_mplex: bool) -> None:
    taken: list[list[bytes]] = []
    streams: list[Stream] = []

    async def take_two(stream: Stream) -> None:
        streams.append(stream)
        taken.append([])
        for _ in range(2):
            pushed = wire.FilterPush.FromString(await stream.delimited(1_000))
            message = WakuMessage.FromString(pushed.message)
            assert (pushed.pubsub_topic, message.content_topic) == (PUBSUB, TOPIC)
            taken[-1].append(message.payload)
        raise StreamEndedError

    async with subscribed({FILTER_PUSH: take_two}, is_mplex=is_mplex) as (own, node, found):
        node.publish(b"one")
        await until(lambda: taken == [[b"one"]])
        node.publish(b"two")
        await until(lambda: any(each.has_failed for each in own._streams.values()))
        node.publish(b"three")
        await until(lambda: taken == [[b"one", b"two"], [b"three"]])
        assert len(found) == 1
        found.expire(2**63)
        await until(lambda: streams[1].has_failed)


@pytest.mark.parametrize("names", [(), (FILTER_PUSH,)], ids=["unknown", "ended"])
async def test_a_client_that_takes_no_push_has_no_subscription(names: Sequence[str]) -> None:
    handlers: dict[str, Handler] = dict.fromkeys(names, AsyncMock(side_effect=StreamEndedError))
    async with subscribed(handlers) as (_, node, found):
        for _ in range(3):
            node.publish(b"one")
        await until(lambda: len(found) == 0)


async def test_a_connection_that_ends_before_its_streams_begin_keeps_no_bytes() -> None:
    async with connected_pair(GatewayMetrics("0"), {}, {}, is_mplex=True) as (own, _):
        received = cast("MemoryPipe", own._pipe).incoming
        received.put_nowait(b"\x00\x00" + b"\x02\x03abc" + b"\x00\x00")
        await until(received.empty)
    assert own.client.unread.used_bytes == 0


@asynccontextmanager
async def kept_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[asyncio.Task[None], MemoryPipe, list[WakuConnection]]]:
    """Keep a connection to a peer; yield the task, this side's pipe, and what has joined."""
    joined: list[WakuConnection] = []
    pipe = MemoryPipe(asyncio.Queue(), asyncio.Queue())
    writer = Mock(**{"transport.get_write_buffer_size.return_value": 0})
    monkeypatch.setattr(asyncio, "open_connection", AsyncMock(return_value=(Mock(), writer)))
    monkeypatch.setattr(
        server, "begin_handshake", AsyncMock(side_effect=lambda *_: (pipe, Yamux(is_outbound=True)))
    )
    monkeypatch.setattr(server, "FIRST_PAUSE_S", 0)
    peer = PeerMultiaddr("192.0.2.1", 1, "peer")
    keeping = asyncio.create_task(keep_connected(peer, Mock(named_peers=()), [joined.append]))
    await until(lambda: bool(joined))
    yield keeping, pipe, joined
    keeping.cancel()
    await asyncio.wait({keeping}, timeout=5)
    assert keeping.cancelled()


@pytest.mark.parametrize("by_peer", [True, False])
async def test_a_cancellation_counts_though_the_connection_ends_too(
    monkeypatch: pytest.MonkeyPatch, by_peer: bool
) -> None:
    async with kept_connection(monkeypatch) as (_, pipe, joined):
        if by_peer:
            pipe.incoming.put_nowait(b"")
            await asyncio.sleep(0)
        else:
            joined[0].end()


async def test_a_peer_whose_connection_a_service_ends_is_connected_to_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with kept_connection(monkeypatch) as (keeping, pipe, joined):
        joined[0].end()
        await until(lambda: len(joined) > 1 or keeping.done())
        assert not keeping.done()
        with pytest.raises(RefusalError, match="ends the connection"):
            list(Yamux().decode(pipe.outgoing.get_nowait()))


async def test_a_stream_whose_work_fails_is_given_up() -> None:
    async with connected_pair(GatewayMetrics("0"), {}, {TRANSFER: Stream.receive}) as (own, peer):
        with suppress(StatusError):
            async with own.opened(TRANSFER):
                await until(lambda: peer.busy)
                raise StatusError(503, "the node is away")
        await until(lambda: not peer.busy)


HELLO: Final = encode_subscriptions([PUBSUB])


async def test_a_relay_peer_is_written_to_on_its_newest_connection() -> None:
    (relay, metrics), taken = relay_of(), defaultdict[WakuConnection, list[bytes]](list)

    async def take(stream: Stream) -> None:
        while True:
            taken[stream.connection].append(await stream.delimited(10**5))

    one, two = (connected_pair(metrics, {RELAY: relay.serve}, {RELAY: take}) for _ in range(2))
    async with one as (_, vanished), two as (_, back), vanished.opened(RELAY) as before:
        await before.send_delimited(HELLO)
        await until(lambda: taken[vanished] == [HELLO])
        async with back.opened(RELAY) as stream:
            await stream.send_delimited(HELLO)
            await until(lambda: taken[back] == [HELLO])
            relay.publish(PUBSUB, b"digest", b"message")
            await until(lambda: taken[back][1:] == [encode_message(PUBSUB, b"message")])
            # Its subscriptions are those of the newer stream.
            await before.send_delimited(HELLO)
            await until(lambda: before.has_failed)
        assert taken[vanished] == [HELLO]


async def test_each_stream_to_a_relay_peer_begins_with_subscriptions() -> None:
    (relay, metrics), taken = relay_of(), list[bytes]()

    async def take_two(stream: Stream) -> None:
        taken.extend([await stream.delimited(10**5) for _ in range(2)])
        raise StreamEndedError

    async with connected_pair(metrics, {}, {RELAY: take_two}) as (own, _):
        peer = relay.join(own)
        peer.put(delimited(b"0"))
        await until(lambda: any(each.has_failed for each in own._streams.values()))
        peer.put(delimited(b"1"))
        await until(lambda: taken == [HELLO, b"0", HELLO, b"1"])


async def test_a_relay_peer_that_takes_no_stream_publishes_and_keeps_its_topics() -> None:
    (relay, metrics), theirs = relay_of(), dict[str, Handler]()
    pair, message = connected_pair(metrics, {RELAY: relay.serve}, theirs), made(b"x", 0)[3]
    async with pair as (_, peer), peer.opened(RELAY) as stream:
        for number, rpc in enumerate([HELLO, encode_message(PUBSUB, message)]):
            await stream.send_delimited(rpc)
            await until(lambda: metrics.refusals.labels("no_protocol")._value.get() > number)  # noqa: B023
            await until(lambda: not relay._peers)
        assert metrics.relayed.labels("received")._value.get() == 1
        theirs[RELAY] = Stream.receive
        await stream.send_delimited(b"")
        await until(lambda: relay._router.common_topics("peer") == 1)


@virtual_time
async def test_a_peer_that_takes_no_greeting_is_sent_no_more() -> None:
    metrics, ended, begun = GatewayMetrics("0"), asyncio.Event(), list[Stream]()

    async def take_nothing(stream: Stream) -> None:
        begun.append(stream)
        await (ended.wait() if len(begun) > 1 else stream.delimited(0))  # refuses what comes

    async with connected_pair(metrics, {}, {RELAY: take_nothing}) as (own, _):
        queue = SendQueue(own, RELAY, 9, metrics, ended.set, greeting=bytes(2**20))
        queue.put(delimited(b"0"))
        await until(lambda: any(each.has_failed for each in own._streams.values()))
        queue.put(delimited(b"1"))
        await ended.wait()
        assert metrics.refusals.labels("timeout")._value.get() == 1


SECOND_NS: Final = 10**9
HOUR_NS: Final = 3600 * SECOND_NS


def made(payload: bytes, age_s: float, topic: str = PUBSUB) -> tuple[bytes, int, str, bytes]:
    """Return the hash, the timestamp, the pubsub topic and the encoding of a message."""
    timestamp = time.time_ns() - round(age_s * SECOND_NS)
    message = WakuMessage(payload=payload, content_topic=TOPIC, timestamp=timestamp)
    digest = message_hash(topic, payload, TOPIC, None, timestamp)
    return digest, timestamp, topic, message.SerializeToString()


class FakeNode:
    """A node with some messages, in pages of 7."""

    def __init__(self, messages: Sequence[tuple[bytes, int, str, bytes]]) -> None:
        self.messages = {each[0]: each for each in messages}
        self.published: list[bytes] = []

    async def scan(
        self, pubsub_topic: str, content_topics: Sequence[str], start_ns: int, end_ns: int
    ) -> AsyncGenerator[ScanPage, None]:
        assert not content_topics
        found = sorted(
            (timestamp, digest)
            for digest, timestamp, topic, _ in self.messages.values()
            if topic == pubsub_topic and start_ns <= timestamp < end_ns
        )
        for start in range(0, len(found), 7):
            page = ScanPage()
            for timestamp, digest in found[start : start + 7]:
                page.messages.add(message_hash=digest)
                page.timestamps.append(timestamp)
            yield page

    async def query(self, request: bytes, places: asyncio.Semaphore) -> bytes:
        del places
        asked = StoreQueryRequest.FromString(request)
        response = StoreQueryResponse(status_code=200)
        hashes = list(asked.message_hashes)
        start = hashes.index(asked.pagination_cursor) + 1 if asked.pagination_cursor else 0
        for digest in hashes[start : start + 3]:
            entry = response.messages.add(message_hash=digest, pubsub_topic=PUBSUB)
            entry.message.MergeFromString(self.messages[digest][3])
        if start + 3 < len(hashes):
            response.pagination_cursor = hashes[start + 2]
        return response.SerializeToString()

    async def publish(
        self, messages: Sequence[tuple[bytes, str]], *, source: int
    ) -> Sequence[PublishResult]:
        assert source == PUBLISH_SOURCE_NWAKU
        self.published += [encoded for encoded, _ in messages]
        return [PublishResult(outcome=PublishResult.STORED)] * len(messages)


class Peer:
    """The other side of the connection: nwaku, unless a test gives its handlers."""

    def __init__(self, messages: Sequence[tuple[bytes, int, str, bytes]] = ()) -> None:
        self.messages = {each[0]: each for each in messages}
        self.nwaku = SimulatedNwaku([(each[1], each[0]) for each in messages])
        self.received: list[tuple[str, bytes]] = []
        self.connection: WakuConnection

    async def serve(self, stream: Stream) -> None:
        while True:
            frame = await stream.delimited(10**7)
            stream.release()
            answer = self.nwaku.answer(frame)
            if answer is None:
                return
            await stream.send(delimited(answer))
            if not decode(answer)[1]:
                return

    async def take(self, stream: Stream) -> None:
        with suppress(StreamEndedError):
            while True:
                topic, message, _ = parse_transfer(await stream.delimited(10**7))
                stream.release()
                self.received.append((topic, message))

    async def begin(self, *topics: str) -> None:
        """Begin a session, as nwaku does."""
        now_ns = time.time_ns()
        async with self.connection.opened(RECONCILIATION) as stream:
            first = self.nwaku.begin(now_ns - HOUR_NS - 20 * SECOND_NS, now_ns, topics)
            await stream.send(delimited(first))
            await self.serve(stream)

    async def transfer(self, *frames: bytes) -> None:
        async with self.connection.opened(TRANSFER) as stream:
            for frame in frames:
                await stream.send(delimited(frame))


@asynccontextmanager
async def connected(
    node: FakeNode,
    peer: Peer,
    handlers: dict[str, Handler] | None = None,
    named: str = "peer",
    interval_ns: int = 300 * SECOND_NS,
) -> AsyncIterator[tuple[NwakuSync, WakuConnection, GatewayMetrics]]:
    """Connect a gateway to a peer for the length of a block."""
    metrics = GatewayMetrics("0")
    real = cast("UpstreamNode", node)
    spool = Spool(real, metrics.synced, PUBLISH_SOURCE_NWAKU)
    rules = SyncRules({named}, interval_ns, HOUR_NS, [PUBSUB])
    found = NwakuSync(rules, real, spool, metrics)
    served: dict[str, Handler] = {RECONCILIATION: found.serve, TRANSFER: found.serve_transfer}
    theirs = {RECONCILIATION: peer.serve, TRANSFER: peer.take} if handlers is None else handlers
    async with connected_pair(metrics, served, theirs, spool.run()) as (own, peer.connection):
        yield found, own, metrics


def counted(metrics: GatewayMetrics, **labels: str) -> float:
    metric = metrics.sync_sessions if "role" in labels else metrics.synced
    return cast("float", metric.labels(**labels)._value.get())


def frame_of(message: tuple[bytes, int, str, bytes]) -> bytes:
    return wire.TransferredMessage(pubsub_topic=message[2], message=message[3]).SerializeToString()


BOTH: Final = [made(b"both %d" % number, 400 + number) for number in range(300)]


@pytest.mark.parametrize("begins", [True, False])
async def test_each_side_gets_what_it_lacks(begins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", 0)
    if begins:  # several sessions for the range
        few = SimpleNamespace(**{**vars(limits), "MAX_SYNC_IDS": 120})
        monkeypatch.setattr(sync, "limits", few)
    ours = [made(b"", 1_000), made(b"x" * MAX_RPC_BYTES, 900), made(b"ours", 800)]
    ours += [made(b"new", 1), made(b"oldest", 3_500), made(b"another shard", 700, "/other")]
    theirs = [made(b"theirs %d" % number, 700 + number / 8) for number in range(200)]
    node, peer = FakeNode(BOTH + ours), Peer(BOTH + theirs)
    async with connected(node, peer) as (found, connection, metrics):
        if begins:
            found.join(connection)
        else:
            await peer.begin(PUBSUB, "/waku/2/rs/7/9")
            await until(lambda: not found._allowances["peer"].in_session)
            await peer.transfer(*(frame_of(peer.messages[each]) for each in peer.nwaku.sends))
        if begins:
            await until(lambda: counted(metrics, role="initiator", outcome="done") >= 3)
            lacking = {each[0] for each in theirs}
            await until(lambda: peer.nwaku.sends >= lacking)
            await peer.transfer(*(frame_of(peer.messages[each]) for each in lacking))
        # An empty payload is present, a message that is too large is left out.
        expected = {(PUBSUB, b"\x0a\0" + ours[0][3]), (PUBSUB, ours[2][3])}
        expected |= set() if begins else {(PUBSUB, ours[3][3])}
        await until(lambda: set(peer.received) >= expected)
        assert set(peer.received) == expected
        await until(lambda: len(node.published) == len(theirs))
        assert set(node.published) == {each[3] for each in theirs}
        assert counted(metrics, outcome="too_large") == 1
        assert counted(metrics, outcome="stored") == len(theirs)
        assert counted(metrics, outcome="unsolicited") == 0


async def test_a_nanosecond_with_too_many_ids_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(sync, "limits", SimpleNamespace(**{**vars(limits), "MAX_SYNC_IDS": 10}))
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    flood = [made(b"%d" % number, 1_000) for number in range(20)]
    later = [made(b"later %d" % number, 900 + number) for number in range(3)]
    peer = Peer()
    async with connected(FakeNode(flood + later), peer) as (found, connection, _):
        found.join(connection)
        await until(lambda: len(peer.received) == 3)
        assert {each for _, each in peer.received} == {each[3] for each in later}


@pytest.mark.parametrize("answer", [b"rubbish", None])
async def test_an_answer_of_the_node_that_cannot_be_read_ends_one_session_only(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(tasks, "TASK_RETRY_FIRST_S", 0)
    node, peer = FakeNode([made(b"ours", 1_000)]), Peer()
    query, answers = node.query, [cast("bytes", answer)]  # none at all: a fault of ours

    async def once(request: bytes, places: asyncio.Semaphore) -> bytes:
        return answers.pop() if answers else await query(request, places)

    monkeypatch.setattr(node, "query", once)
    async with connected(node, peer, interval_ns=1_000_000) as (found, connection, _):
        found.join(connection)
        await until(lambda: bool(peer.received))


def spoiler(
    answer: Callable[[bytes], bytes], *, stays: bool = False, repeats: bool = False
) -> Handler:
    """Return a handler that answers frames, and then ends its stream or stays silent."""

    async def spoil(stream: Stream) -> None:
        is_first = True
        while is_first or repeats:
            is_first = False
            await stream.send(answer(await stream.delimited(10**7)))
            stream.release()
        if stays:
            await stream.exactly(1)

    return spoil


def differ_again(frame: bytes) -> bytes:
    only = decode(frame)[1][0]
    low_ns, high_ns = only.bounds[0][0], only.bounds[1][0]
    head = b"\0\0" + varint(low_ns) + varint(high_ns - low_ns)
    return delimited(head + b"\x01" + bytes(31) + b"x")


def list_too_much(frame: bytes) -> bytes:
    (low, high), *_ = [each.bounds for each in decode(frame)[1]]
    is_short = high[0] - low[0] < HOUR_NS // 3
    return delimited(b"\0") if is_short else varint(MAX_SYNC_FRAME_BYTES + 1)


@pytest.mark.parametrize(
    ("handler", "outcome"),
    [
        (spoiler(lambda _: delimited(b"\0\0\x01\x01\x07rubbish")), "failed"),
        (spoiler(lambda _: varint(MAX_SYNC_FRAME_BYTES + 1), stays=True), "failed"),
        (spoiler(differ_again, repeats=True), "failed"),
        (spoiler(lambda _: b"", stays=True), "failed"),
        (spoiler(lambda _: delimited(b"")), "topics_differ"),
        (spoiler(lambda _: b""), "refused"),
        (None, "refused"),
    ],
)
async def test_a_session_that_a_peer_spoils_ends_and_is_counted(
    handler: Handler | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(limits, "SYNC_FRAME_TIMEOUT_S", 0.2)
    handlers = {} if handler is None else {RECONCILIATION: handler}
    async with connected(FakeNode(BOTH), Peer(), handlers) as (found, connection, metrics):
        found.join(connection)
        await until(lambda: counted(metrics, role="initiator", outcome=outcome) == 1)
        assert not found._allowances["peer"].in_session


async def test_a_range_with_too_many_ids_is_compared_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync, "FIRST_PAUSE_S", 0)
    handlers = {RECONCILIATION: spoiler(list_too_much)}
    node, peer = FakeNode(BOTH), Peer()
    async with connected(node, peer, handlers, interval_ns=1_000_000) as (found, own, metrics):
        found.join(own)
        await until(lambda: counted(metrics, role="initiator", outcome="done") >= 3)
        assert counted(metrics, role="initiator", outcome="failed") >= 2


@pytest.mark.parametrize(
    ("frame", "outcome"),
    [
        (b"\x03\x01", "failed"),
        (b"\0\0\x01\x01\x07", "failed"),
        (b"\x01\x06/other\0\x01\x05\x01" + bytes(32), "topics_differ"),
        (b"\0\0\x01\x05\0", "done"),
        (b"\0", "done"),
    ],
)
async def test_frames_of_a_peer_are_answered_or_refused(frame: bytes, outcome: str) -> None:
    peer = Peer()
    async with connected(FakeNode(BOTH), peer) as (_, _, metrics):
        async with peer.connection.opened(RECONCILIATION) as stream:
            await stream.send(delimited(frame))
            answer = await stream.any()
        assert answer == (delimited(b"") if outcome == "topics_differ" else b"")
        assert counted(metrics, role="responder", outcome=outcome) == 1


async def test_only_named_peers_are_served_and_not_too_often() -> None:
    peer = Peer(BOTH)
    async with connected(FakeNode(BOTH), peer, named="another") as (_, _, metrics):
        with pytest.raises(StreamEndedError):
            await peer.begin(PUBSUB)
        with suppress(StreamEndedError):
            await peer.transfer(frame_of(BOTH[0]))
        await until(lambda: metrics.refusals.labels("identity")._value.get() == 2)
    async with connected(FakeNode(BOTH), peer) as (_, _, metrics):
        await peer.begin(PUBSUB)
        with pytest.raises(StreamEndedError):
            await peer.begin(PUBSUB)
        assert metrics.refusals.labels("request_rate")._value.get() == 1


async def test_messages_that_no_session_can_have_found_are_dropped() -> None:
    message = made(b"unexpected", 1_000)
    node, peer = FakeNode([]), Peer([message])
    async with connected(node, peer) as (_, _, metrics):
        await peer.transfer(frame_of(message))
        await until(lambda: counted(metrics, outcome="unsolicited") == 1)
        await peer.begin(PUBSUB)
        unexpected = [made(b"old", 4_000), made(b"another shard", 1_000, "/waku/2/rs/7/1")]
        await peer.transfer(*map(frame_of, [*unexpected, message]))
        await until(lambda: counted(metrics, outcome="stored") == 1)
        assert counted(metrics, outcome="unsolicited") == 3
        assert node.published == [message[3]]
        flood = [frame_of(unexpected[0])] * (MAX_UNSOLICITED_MESSAGES + 10)
        with suppress(StreamEndedError):
            await peer.transfer(*flood)
        await until(lambda: metrics.refusals.labels("flood")._value.get() == 1)
        assert node.published == [message[3]]
