"""The RPC of gossipsub: parsed within limits, and encoded.

Source: libp2p, "gossipsub v1.1" and "v1.2", with StrictNoSign as 11/WAKU2-RELAY has it: a message
is data and a topic. ``ping`` and ``pong`` are an addition of nim-libp2p.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from store.gateway.limits import MAX_RPC_ENTRIES, MAX_RPC_IDS
from store.gateway.wire import BYTES, bytes_field, fields, number_field, required_bytes

MESSAGE_ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Subscription:
    """A peer subscribes to a topic, or unsubscribes."""

    topic: str
    is_subscribed: bool


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


@dataclass(frozen=True, slots=True)
class Prune:
    """A peer is no longer in the mesh of a topic, and may ask again after ``backoff_s`` seconds."""

    topic: str
    backoff_s: int


@dataclass(slots=True)
class Rpc:
    """The content of one RPC; ``ihave`` has (topic, message IDs)."""

    subscriptions: list[Subscription] = field(default_factory=list)
    messages: list[GossipMessage] = field(default_factory=list)
    ihave: list[tuple[str, list[bytes]]] = field(default_factory=list)
    iwant: list[bytes] = field(default_factory=list)
    graft: list[str] = field(default_factory=list)
    prune: list[Prune] = field(default_factory=list)
    idontwant: list[bytes] = field(default_factory=list)
    ping: bytes = b""


class _Budget:
    """The numbers of entries and message IDs that an RPC may still have."""

    def __init__(self) -> None:
        self._entries = MAX_RPC_ENTRIES
        self._ids = MAX_RPC_IDS

    def entry(self) -> None:
        self._entries -= 1
        if self._entries < 0:
            raise ValueError(f"an RPC has more than {MAX_RPC_ENTRIES:,} entries")

    def ids(self, data: bytes, number: int) -> Iterator[bytes]:
        """Yield the message IDs of a field of an entry; other values are counted alone."""
        for found, value in fields(data):
            self._ids -= 1
            if self._ids < 0:
                raise ValueError(f"an RPC has more than {MAX_RPC_IDS:,} message IDs")
            if found == number and isinstance(value, bytes) and len(value) == MESSAGE_ID_BYTES:
                yield value


def parse_rpc(data: bytes) -> Rpc:
    """Parse an RPC.

    Raises:
        ValueError: It is malformed, or has more entries than any honest peer sends.
    """
    rpc, budget = Rpc(), _Budget()
    for number, value in fields(data):
        budget.entry()
        if not isinstance(value, bytes):
            continue
        if number == 1:
            parts = dict(fields(value))
            topic = required_bytes(parts, 2, "topic").decode()
            rpc.subscriptions.append(Subscription(topic, bool(parts.get(1, 0))))
        elif number == 2:
            parts = dict(fields(value))
            body = parts.get(2, b"")
            is_signed = bool(parts.get(1) or parts.get(3) or parts.get(5) or parts.get(6))
            if isinstance(body, bytes):
                topic = required_bytes(parts, 4, "topic").decode()
                rpc.messages.append(GossipMessage(topic, body, is_signed))
        elif number == 3:
            _parse_control(rpc, value, budget)
        elif number == 60:
            rpc.ping = value
    return rpc


def _parse_control(rpc: Rpc, data: bytes, budget: _Budget) -> None:
    for number, value in fields(data):
        budget.entry()
        if not isinstance(value, bytes):
            continue
        if number == 1:
            ids = list(budget.ids(value, 2))
            rpc.ihave.append((_topic(value), ids))
        elif number == 2:
            rpc.iwant += budget.ids(value, 1)
        elif number == 3:
            rpc.graft.append(_topic(value))
        elif number == 4:
            parts = dict(fields(value))
            backoff_s = parts.get(3, 0)
            rpc.prune.append(Prune(_topic(value), backoff_s if isinstance(backoff_s, int) else 0))
        elif number == 5:
            rpc.idontwant += budget.ids(value, 1)


def _topic(entry: bytes) -> str:
    """Return the topic of an entry of control, which comes before its message IDs."""
    for number, value in fields(entry):
        if number == 1 and isinstance(value, bytes):
            return value.decode()
    raise ValueError("the required field topic is missing")


def encode_subscriptions(topics: Iterable[str]) -> bytes:
    """Encode the subscription to some topics."""
    return b"".join(
        bytes_field(1, number_field(1, 1) + bytes_field(2, topic.encode())) for topic in topics
    )


def encode_message(topic: str, data: bytes) -> bytes:
    """Encode one message."""
    return bytes_field(2, bytes_field(2, data) + bytes_field(4, topic.encode()))


def encode_ihave(topic: str, ids: Iterable[bytes]) -> bytes:
    """Encode the announcement of messages."""
    return _control(1, bytes_field(1, topic.encode()) + _ids(2, ids))


def encode_iwant(ids: Iterable[bytes]) -> bytes:
    """Encode the request for messages."""
    return _control(2, _ids(1, ids))


def encode_graft(topic: str) -> bytes:
    """Encode the request to be in the mesh of a topic."""
    return _control(3, bytes_field(1, topic.encode()))


def encode_prune(prune: Prune) -> bytes:
    """Encode the end of a peer's place in the mesh of a topic."""
    return _control(4, bytes_field(1, prune.topic.encode()) + number_field(3, prune.backoff_s))


def encode_idontwant(ids: Iterable[bytes]) -> bytes:
    """Encode the request not to send messages."""
    return _control(5, _ids(1, ids))


def encode_pong(ping: bytes) -> bytes:
    """Encode the answer to a ping."""
    return bytes_field(61, ping)


def _ids(number: int, ids: Iterable[bytes]) -> bytes:
    tag = bytes((number << 3 | BYTES, MESSAGE_ID_BYTES))
    return b"".join([tag + each for each in ids])


def _control(number: int, entry: bytes) -> bytes:
    return bytes_field(3, bytes_field(number, entry))
