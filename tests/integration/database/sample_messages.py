"""Messages written to a database the way a node writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from store.messages.record import RecordBatch
from storenode.message.rules import Policy
from storenode.sds import codec
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.database.rows import NOW
from tests.integration.storage.node import running
from tests.support.admission import admit

ANY_AGE = Policy(max_drift_ns=None, publisher=False)


def plain(number: int, ts: int, payload: bytes | None = None) -> WakuMessageAndTopic:
    """Return a message on one of three content topics; ``payload`` None: a number as text."""
    return WakuMessageAndTopic(
        message=WakuMessage(
            payload=b"message %d" % number if payload is None else payload,
            content_topic=f"/test/1/topic-{number % 3}/proto",
            version=number % 2,
            timestamp=ts,
            meta=bytes((number % 64,)) if number % 2 else None,
        ),
        pubsub_topic=f"/waku/2/rs/1/{number % 2}",
    )


def sds(number: int, ts: int, parents: Iterable[int] = ()) -> WakuMessageAndTopic:
    """Return a message of the channel `history`; its Lamport timestamp needs all 64 bits."""
    payload = codec.encode(
        "history",
        f"id-{number}",
        sender_id="somebody",
        lamport=2**64 - 1 - number if number % 3 else None,
        parents=[(f"id-{each}", bytes(32) if each % 2 else None) for each in parents],
        content=b"said",
    )
    return plain(number, ts, payload)


def admitted(messages: Sequence[WakuMessageAndTopic], now_ns: int = NOW) -> RecordBatch:
    """Return the batch of messages that all are acceptable."""
    admission = admit(messages, now_ns, ANY_AGE)
    assert admission.refusals == {}
    return admission.batch


async def write(url: str, batches: Iterable[RecordBatch], now_ns: int = NOW) -> None:
    """Store batches through the node's writer."""
    async with running(url, now_ns=lambda: now_ns) as node:
        for batch in batches:
            await node.store(batch)
