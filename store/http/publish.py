"""``POST /api/v1/messages``: from JSON to durable messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from store.domain.admission import Verdict
from store.domain.ports import Services
from store.domain.unread import Confirmation
from store.http import schemas
from store.http.encode import hex_of
from store.http.exchange import Exchange
from store.http.requests import read
from store.serving.call import Call
from store.serving.publishing import Batch, Publishing
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic


class Publisher:
    """The handler."""

    def __init__(self, services: Services) -> None:
        self._publishing = Publishing(services)

    async def publish(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Store a batch; answers when all of it that is accepted is durable."""
        size, most = len(body), call.node.limits.batch_messages
        with call.node.in_flight.room(size):
            asked = read(schemas.Publish, call, exchange, body)
            batch = await self._publishing.judge(
                call,
                # One too many is enough to be refused.
                [_encoded(each) for each in asked.messages[: most + 1]],
                size,
                min_confirms=asked.min_confirms,
                timeout_s=asked.confirm_timeout_s,
            )
            del asked, body
            stored = await self._publishing.store(call, batch)
        found = await self._publishing.confirmed(call, batch, stored)
        answer = schemas.encode(schemas.Results(list(_results(batch, stored, found))))
        await call.outlet.answered(len(answer), refusable=False)
        await exchange.respond(answer)


def _encoded(given: schemas.NewMessage) -> bytes:
    message = WakuMessage(
        payload=given.payload, content_topic=given.content_topic, timestamp=given.timestamp
    )
    for name in ("version", "meta", "rate_limit_proof", "ephemeral"):
        value = getattr(given, name)
        if value is not UNSET:
            setattr(message, name, value)
    return WakuMessageAndTopic(message=message, pubsub_topic=given.pubsub_topic).SerializeToString()


def _results(
    batch: Batch, stored: Sequence[bool], found: Sequence[Confirmation]
) -> Iterator[schemas.Result]:
    published, named = batch.published, set[int]()
    columns = zip(published.verdicts, published.positions, published.hashes, strict=True)
    for index, (verdict, position, digest) in enumerate(columns):
        result = schemas.Result(
            outcome="EPHEMERAL", message_hash=hex_of(digest) if digest else UNSET
        )
        if verdict is Verdict.REJECTED:
            result.outcome, result.reason = "REJECTED", published.refusals[index].sentence
        elif verdict is not Verdict.EPHEMERAL:
            is_new = stored[position] and position not in named
            result.outcome = "STORED" if is_new else "DUPLICATE"
            named.add(position)
            if found:
                _confirm(result, found[position])
        yield result


def _confirm(result: schemas.Result, found: Confirmation) -> None:
    result.confirms = found.confirms
    if found.reason:
        result.outcome, result.reason = "UNCONFIRMED", found.reason
