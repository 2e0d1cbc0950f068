"""The refusal of single bad messages: on every path, the others of the batch are stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
import pytest

from store.db.coverage import DatabaseOnlineTimes
from store.db.pool import Database
from store.messages.transfer import MalformedMessageError, decode_message
from store.serving.tasks import BackgroundTasks
from store.sync.session.report import SyncEnding, Window
from storenode.message.varint import delimited, varint
from storenode.wire.storenode.v1.peer_pb2 import Events, GossipFrame, TransferFrame
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.peers.harness import NOW_NS, PeerNode, hash_of, item, items
from tests.integration.peers.hostile import (
    SESSION_ID,
    Scripts,
    frames,
    honest_reconcile,
    hostile_server,
)
from tests.integration.peers.test_gossip_hostile import stream
from tests.integration.peers.test_resuming import HOUR_NS, all_stored, resuming
from tests.integration.rpc.harness import within
from tests.support.node import NodeProcess, shared_node
from tests.support.polling import PAUSE_S

PUBSUB: Final = "/waku/2/rs/1/0"


def fresh(number: int) -> WakuMessageAndTopic:
    """Return a message of now."""
    message = WakuMessage(
        payload=b"%d" % number, content_topic="/bad/1/c/proto", timestamp=time.time_ns() + number
    )
    return WakuMessageAndTopic(message=message, pubsub_topic=PUBSUB)


def entry(message: bytes, topic: bytes = PUBSUB.encode()) -> bytes:
    """Encode a ``WakuMessageAndTopic`` around the bytes of its message."""
    return delimited(b"\x0a", message) + delimited(b"\x12", topic)


def changed(number: int, **fields: Any) -> bytes:  # noqa: ANN401 - values of fields
    """Encode a message of now whose fields are others."""
    made = fresh(number)
    for name, value in fields.items():
        setattr(made.message, name, value)
    return made.SerializeToString()


def bad_messages(number: int) -> dict[str, bytes]:
    """Return one encoded message of each kind that a node refuses."""
    made = fresh(number)
    body, whole = made.message.SerializeToString(), made.SerializeToString()
    return {
        "content topic is no UTF-8": entry(body.replace(b"/bad/1", b"/\xff\xfed/1")),
        "pubsub topic is no UTF-8": entry(body, b"/waku/\xff"),
        "broken message": entry(b"\x0a\x7fshort"),
        "cut off": whole[:-3],
        "message of another wire type": b"\x08\x01" + delimited(b"\x12", PUBSUB.encode()),
        "content topic of another wire type": entry(b"\x10\x01" + body[-10:]),
        "nothing": b"",
        "too large": changed(number, payload=bytes(150 * 1024)),
        "before 1970": changed(number, timestamp=-5),
        "no content topic": changed(number, content_topic=""),
        "meta too long": changed(number, meta=bytes(65)),
    }


UNKNOWN_FIELDS: Final = b"\xf8\x7f\x01" + varint(1000 << 3 | 2) + b"\x02hi"
"""Behind a message they are dropped, and the message is stored."""


server = shared_node("bad", "--gossip", "on", scope="module")


def batch(kind: int) -> tuple[list[bytes], list[WakuMessageAndTopic]]:
    """Return every bad message between good ones, and the good ones."""
    bad = list(bad_messages(kind).values())
    good = [fresh(kind * 100 + number) for number in range(1 + len(bad))]
    sent = [good[0].SerializeToString() + UNKNOWN_FIELDS]
    for each, following in zip(bad, good[1:], strict=True):
        sent += [each, following.SerializeToString()]
    return sent, good


def request(messages: Sequence[bytes]) -> bytes:
    return b"".join([delimited(b"\x0a", each) for each in messages])


async def all_published(node: NodeProcess, messages: Sequence[WakuMessageAndTopic]) -> None:
    wanted = StoreQueryRequest(message_hashes=[hash_of(each) for each in messages])
    async with grpc.aio.insecure_channel(node.listen) as channel:
        store: Any = StoreStub(channel)
        while len((await store.Query(wanted)).messages) < len(messages):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)


async def test_a_bad_message_in_gossip_keeps_no_other_out(server: NodeProcess) -> None:
    sent, good = batch(5)
    async with stream(server.peer, "gossip.example") as peer:
        events = delimited(b"\x0a", request(sent))
        assert GossipFrame(events=Events(messages=good[:1])).SerializeToString()[:1] == events[:1]
        await peer.send(events)
        await within(all_published(server, good))


async def test_a_bad_message_in_a_transfer_keeps_no_other_out(first: PeerNode) -> None:
    good = items(range(12))
    sent = [each.SerializeToString() for each in good]
    for place, bad in enumerate(bad_messages(6).values()):
        sent.insert(2 * place + 1, bad)
    head = TransferFrame(session_id=SESSION_ID, done=True).SerializeToString()
    transfer = frames(head + b"".join([delimited(b"\x12", each) for each in sent]))
    scripts = Scripts(reconcile=honest_reconcile(good), transfer=transfer)
    async with hostile_server(scripts) as peer:
        outcome = await within(first.caller.synchronize(peer, Window()))
    assert (outcome.ending, outcome.error, outcome.unsolicited) == (SyncEnding.DONE, "", 11)
    assert await first.hashes() == {hash_of(each) for each in good}


async def test_a_bad_message_in_a_page_of_a_resume_keeps_no_other_out(first: PeerNode) -> None:
    start_ns = NOW_NS - HOUR_NS // 2
    good = [item(number, timestamp=start_ns + number) for number in range(8)]
    body = good[0].message.SerializeToString()
    with pytest.raises(MalformedMessageError) as caught:
        decode_message(entry(body.replace(b"/", b"\xff")))
    not_utf8 = caught.value
    bad = [
        (bytes(32), b"\x0a\x7fshort", PUBSUB.encode()),
        # Its hash is that of its bytes, and it would be out of order: it has no place in it.
        (not_utf8.message_hash, body.replace(b"/", b"\xff"), PUBSUB.encode()),
    ]
    entries = [
        (hash_of(each), each.message.SerializeToString(), each.pubsub_topic.encode())
        for each in good
    ]
    page = b"".join(
        [
            delimited(
                b"\x0a",
                delimited(b"\x0a", digest)
                + delimited(b"\x12", message)
                + delimited(b"\x1a", topic),
            )
            for digest, message, topic in (*entries[:4], *bad, *entries[4:])
        ]
    )

    async def scan(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        await context.write(page + b"\x12\x04mine")

    database = await Database.open(first.url)
    await DatabaseOnlineTimes(database).note(NOW_NS - HOUR_NS, time.time_ns())
    proceeds, tasks = asyncio.Event(), BackgroundTasks()
    async with hostile_server(Scripts(scan=scan)) as peer:
        tasks.start("resume", resuming(first, database, (peer,), proceeds.set).run)
        try:
            await within(proceeds.wait())
            await within(all_stored(first, {hash_of(each) for each in good}))
        finally:
            await tasks.stop()
            await database.close()
