"""The RPC of gossipsub: parsed within limits, and encoded.

Source: libp2p, "gossipsub v1.1" and "v1.2", with StrictNoSign as 11/WAKU2-RELAY has it: a message
is data and a topic. ``ping`` and ``pong`` are an addition of nim-libp2p.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from store.gateway.limits import MAX_RPC_ENTRIES, MAX_RPC_IDS
from store.gateway.wire import parse, require
from storenode.wire.storenode.internal.v1.libp2p_pb2 import (
    GossipsubControl,
    GossipsubGraft,
    GossipsubIds,
    GossipsubMessage,
    GossipsubPrune,
    GossipsubRpc,
    GossipsubSubscription,
    GossipsubWanted,
)

MESSAGE_ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class GossipMessage:
    """A message of a topic; ``is_signed`` if it has a field that StrictNoSign refuses.

    ``message_id`` is the SHA-256 of the data, as nwaku has it.
    """

    topic: str
    data: bytes
    is_signed: bool = False
    message_id: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message_id", hashlib.sha256(self.data).digest())


def parse_rpc(data: bytes) -> GossipsubRpc:
    """Parse an RPC.

    Raises:
        ValueError: It is malformed, or has more entries than any honest peer sends.
    """
    rpc = parse(GossipsubRpc, data)
    control = rpc.control
    about_topics = rpc.subscriptions, rpc.messages, control.ihave, control.graft, control.prune
    count = sum(len(entries) for entries in (*about_topics, control.iwant, control.idontwant))
    if count > MAX_RPC_ENTRIES:
        raise ValueError(f"an RPC has more than {MAX_RPC_ENTRIES:,} entries")
    about_ids = control.ihave, control.iwant, control.idontwant
    if sum(len(each.message_ids) for entries in about_ids for each in entries) > MAX_RPC_IDS:
        raise ValueError(f"an RPC has more than {MAX_RPC_IDS:,} message IDs")
    for entries in about_topics:
        for each in entries:
            require(each, "topic")
    return rpc


def messages_of(rpc: GossipsubRpc) -> Iterator[GossipMessage]:
    """Yield the messages of an RPC."""
    for each in rpc.messages:
        is_signed = each.source or each.sequence_number or each.signature or each.key
        yield GossipMessage(each.topic, each.data, bool(is_signed))


def ids_of(*entries: GossipsubIds | GossipsubWanted) -> list[bytes]:
    """Return the message IDs of some entries, without those of other sizes than SHA-256 has."""
    return [one for each in entries for one in each.message_ids if len(one) == MESSAGE_ID_BYTES]


def encode_subscriptions(topics: Iterable[str]) -> bytes:
    """Encode the subscription to some topics."""
    subscriptions = [GossipsubSubscription(is_subscribed=True, topic=each) for each in topics]
    return GossipsubRpc(subscriptions=subscriptions).SerializeToString()


def encode_message(topic: str, data: bytes) -> bytes:
    """Encode one message."""
    return GossipsubRpc(messages=[GossipsubMessage(topic=topic, data=data)]).SerializeToString()


def encode_ihave(topic: str, ids: Iterable[bytes]) -> bytes:
    """Encode the announcement of messages."""
    return _encode(ihave=[GossipsubIds(topic=topic, message_ids=ids)])


def encode_iwant(ids: Iterable[bytes]) -> bytes:
    """Encode the request for messages."""
    return _encode(iwant=[GossipsubWanted(message_ids=ids)])


def encode_graft(topic: str) -> bytes:
    """Encode the request to be in the mesh of a topic."""
    return _encode(graft=[GossipsubGraft(topic=topic)])


def encode_prune(topic: str, backoff_s: int) -> bytes:
    """Encode the end of a peer's place in the mesh of a topic, for a number of seconds."""
    return _encode(prune=[GossipsubPrune(topic=topic, backoff_s=backoff_s)])


def encode_idontwant(ids: Iterable[bytes]) -> bytes:
    """Encode the request not to send messages."""
    return _encode(idontwant=[GossipsubWanted(message_ids=ids)])


def encode_pong(ping: bytes) -> bytes:
    """Encode the answer to a ping."""
    return GossipsubRpc(pong=ping).SerializeToString()


def _encode(**entries: Any) -> bytes:  # noqa: ANN401 - lists of entries of a control message
    return GossipsubRpc(control=GossipsubControl(**entries)).SerializeToString()
