"""Reads what a peer holds of some SDS messages, by its ``GetSdsMessages``.

What comes is bounded, and of each message it is checked that it was asked for: its payload claims
one of the IDs in the channel, or cannot be read and has the hash that a hint names. The messages
themselves are judged on admission, like all others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from store.domain.lookup import Asked
from store.domain.ports import HistoryEntry, PeerAddress
from store.rpc.dial import PeerDialer
from store.rpc.limits import MAX_LOOKUP_MESSAGES
from store.serving.failure import CallFailure
from store.serving.limits import COUNTED_REQUEST_BYTES
from store.serving.methods.decode import clip, decode
from store.sync.errors import ProtocolBrokenError
from store.sync.session.reconciliation import in_time
from storenode.message.hashing import message_hash
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

LOOKUP: Final = f"/{store_pb2.DESCRIPTOR.services_by_name['Store'].full_name}/GetSdsMessages"

_MESSAGES: Final = store_pb2.SdsMessagesPage.DESCRIPTOR.fields_by_name["messages"].number


async def lookup(
    dialer: PeerDialer,
    peer: PeerAddress,
    channel_id: bytes,
    entries: Sequence[HistoryEntry],
    *,
    silence_s: float,
) -> AsyncGenerator[list[bytes], None]:
    """Pages of encoded ``WakuMessageAndTopic`` of what the entries select.

    Raises:
        PeerFailed: the call failed, or the peer does not keep to its rules.
    """
    request = store_pb2.GetSdsMessagesRequest(
        channel_id=channel_id.decode(),
        entries=[
            message_pb2.HistoryEntry(
                message_id=entry.message_id.decode(), retrieval_hint=entry.retrieval_hint
            )
            for entry in entries
        ],
        prefer_proven=True,
    ).SerializeToString()
    asked, left = Asked(channel_id, entries), MAX_LOOKUP_MESSAGES
    async with dialer.ask(peer, LOOKUP, request) as call:
        while (data := await in_time(call.read(), silence_s)) is not None:
            messages = _decoded(data, left).messages
            left -= len(messages)
            yield [_checked(asked, each.stored) for each in messages]


def _checked(asked: Asked, stored: WakuMessageKeyValue) -> bytes:
    """A message as it is judged.

    Raises:
        ProtocolBrokenError: it was not asked for.
    """
    message = stored.message
    if not asked.selects(message.payload, lambda: _hash_of(stored)):
        raise ProtocolBrokenError("the peer sends a message that was not asked for")
    return WakuMessageAndTopic(
        message=message, pubsub_topic=stored.pubsub_topic
    ).SerializeToString()


def _hash_of(stored: WakuMessageKeyValue) -> bytes:
    message = stored.message
    meta = message.meta if message.HasField("meta") else None
    try:
        return message_hash(
            stored.pubsub_topic, message.payload, message.content_topic, meta, message.timestamp
        )
    except ValueError as error:
        raise ProtocolBrokenError(f"the peer sends a message without a hash: {error}") from None


def _decoded(data: bytes, left: int) -> store_pb2.SdsMessagesPage:
    try:
        if len(data) > COUNTED_REQUEST_BYTES:
            data = clip(data, _MESSAGES, left + 1)
        page = decode(store_pb2.SdsMessagesPage, data)
    except CallFailure:
        raise ProtocolBrokenError("the peer sends a page that cannot be decoded") from None
    if len(page.messages) > left:
        raise ProtocolBrokenError(
            f"the peer sends more than {MAX_LOOKUP_MESSAGES:,} messages: ask for fewer IDs at once"
        )
    return page
