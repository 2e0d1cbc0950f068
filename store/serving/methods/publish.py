"""``Publish``: from the bytes of a request to durable messages, and the bytes of the answer."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from store.serving.call import Call
from store.serving.failure import malformed
from store.serving.limits import COUNTED_REQUEST_BYTES
from store.serving.methods.decode import clip
from store.serving.methods.encode import publish_response
from store.serving.publishing import Batch, Publishing
from storenode.wire.storenode.internal.v1.publish_raw_pb2 import RawPublishRequest

MESSAGES_FIELD: Final = 1
"""Number of ``PublishRequest.messages``."""

_NO_REQUEST: Final = "the request is no storenode.v1.PublishRequest: encode it as the schema says"

_NS_PER_S: Final = 1e9


class Publisher(Publishing):
    """The handler, and its steps."""

    async def publish(self, call: Call, request: bytes) -> bytes:
        """Answer ``Publish``."""
        with call.node.in_flight.room(len(request)):
            batch = await self.admit(call, request)
            stored = await self.store(call, batch)
        found = await self.confirmed(call, batch, stored)
        return publish_response(batch.published, stored, found)

    async def admit(self, call: Call, request: bytes) -> Batch:
        """Judge the messages of a request."""
        size, timeout_s = len(request), None
        if size > COUNTED_REQUEST_BYTES:
            request = clip(request, MESSAGES_FIELD, call.node.limits.batch_messages + 1)
        try:
            decoded = RawPublishRequest.FromString(request)
        except DecodeError:
            raise malformed(_NO_REQUEST) from None
        if decoded.HasField("confirm_timeout"):
            given = decoded.confirm_timeout
            timeout_s = float(given.seconds) + given.nanos / _NS_PER_S
        return await self.judge(
            call, decoded.messages, size, min_confirms=decoded.min_confirms, timeout_s=timeout_s
        )
