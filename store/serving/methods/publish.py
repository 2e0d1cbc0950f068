"""``Publish``: from the bytes of a request to durable messages, and the bytes of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from store.messages.transfer import MalformedMessage
from store.serving.call import Call
from store.serving.failure import malformed
from store.serving.limits import COUNTED_REQUEST_BYTES
from store.serving.methods.decode import clip
from store.serving.methods.encode import publish_response
from store.serving.publishing import Batch, Publishing, take_room
from storenode.wire.storenode.internal.v1.publish_raw_pb2 import RawPublishRequest

MESSAGES_FIELD: Final = 1
"""Number of ``PublishRequest.messages``."""

_NO_REQUEST: Final = "the request is no storenode.v1.PublishRequest: encode it as the schema says"

_NS_PER_S: Final = 1e9


class Publisher(Publishing):
    """The handler, and its steps."""

    async def publish(self, call: Call, request: bytes) -> bytes:
        """Answer ``Publish``."""
        take_room(call, len(request))
        try:
            batch = await self.admit(call, request)
            stored = await self.store(call, batch)
        finally:
            call.node.in_flight.give_back(len(request))
        return await self.answer(call, batch, stored)

    async def admit(self, call: Call, request: bytes) -> Batch:
        """Judge the messages of a request."""
        decoded = _decode(request, call.node.limits.batch_messages)
        timeout_s = None
        if decoded.HasField("confirm_timeout"):
            given = decoded.confirm_timeout
            timeout_s = float(given.seconds) + given.nanos / _NS_PER_S
        try:
            return await self.judge(
                call,
                decoded.messages,
                len(request),
                min_confirms=decoded.min_confirms,
                timeout_s=timeout_s,
            )
        except MalformedMessage:
            raise malformed(_NO_REQUEST) from None

    async def answer(self, call: Call, batch: Batch, stored: Sequence[bool]) -> bytes:
        """The response, once other stores have confirmed what was stored, where that is wanted."""
        found = await self.confirmed(call, batch, stored)
        return publish_response(batch.published, stored, found)


def _decode(request: bytes, most_messages: int) -> RawPublishRequest:
    if len(request) > COUNTED_REQUEST_BYTES:
        request = clip(request, MESSAGES_FIELD, most_messages + 1)
    try:
        return RawPublishRequest.FromString(request)
    except DecodeError:
        raise malformed(_NO_REQUEST) from None
