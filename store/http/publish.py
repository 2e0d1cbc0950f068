"""``POST /api/v1/messages``: from JSON to durable messages, by the handler of gRPC."""

from __future__ import annotations

from msgspec import UNSET

from store.domain.ports import Services
from store.http import schemas
from store.http.encode import hex_of
from store.http.exchange import Exchange
from store.http.requests import read
from store.serving.call import Call
from store.serving.methods import publish
from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResponse, PublishResult


class Publisher:
    """The handler."""

    def __init__(self, services: Services) -> None:
        self._publisher = publish.Publisher(services)

    async def publish(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Store a batch; answer when all of it that is accepted is durable."""
        request = _encoded(read(schemas.Publish, call, exchange, body), call)
        del body
        response = PublishResponse.FromString(await self._publisher.publish(call, request))
        answer = schemas.encode(schemas.Results([_result(each) for each in response.results]))
        await call.outlet.answered(len(answer), refusable=False)
        await exchange.respond(answer)


def _encoded(asked: schemas.Publish, call: Call) -> bytes:
    request = PublishRequest(min_confirms=asked.min_confirms)
    if asked.confirm_timeout_s is not None:
        request.confirm_timeout.FromMilliseconds(round(asked.confirm_timeout_s * 1_000))
    # One too many is enough to be refused.
    for given in asked.messages[: call.node.limits.batch_messages + 1]:
        item = request.messages.add(pubsub_topic=given.pubsub_topic)
        for name in schemas.MESSAGE_FIELDS:
            value = getattr(given, name)
            if value is not UNSET:
                setattr(item.message, name, value)
    return request.SerializeToString()


def _result(found: PublishResult) -> schemas.Result:
    return schemas.Result(
        outcome=PublishResult.Outcome.Name(found.outcome),  # type: ignore[arg-type]
        message_hash=hex_of(found.message_hash) if found.message_hash else UNSET,
        reason=found.reason or UNSET,
        confirms=found.confirms,
    )
