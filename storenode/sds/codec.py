"""SDS messages on the wire: what a store node reads, and what its clients write.

A payload *is* an SDS message when it parses as ``sds.v1.Message`` without unknown fields (nested
ones included; a known number with a wrong wire type is unknown), its channel and message ID are
not empty and at most 256 bytes, and its causal history has at most 256 entries.

Two revisions of SDS share field 11. An entry is of the newer one when its bytes parse as a
``HistoryEntry`` that has a message ID and no unknown fields; else it is a plain message ID of the
older one, which must be UTF-8 and not empty. A payload with an entry that is neither is not an
SDS message.

Parents are kept as claimed. One whose ID is longer than 256 bytes can never be held, since no
readable message has such an ID; it stays listed, so that a causal walk reports it missing
instead of calling the history complete. The size of the message bounds it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from google.protobuf.message import DecodeError, Message

from storenode.sds.limits import (
    MAX_CACHED_KEYS,
    MAX_HISTORY_ENTRIES,
    MAX_ID_BYTES,
    SDS_KEY_BYTES,
)
from storenode.sds.proofs import ID_BYTES, message_digest, proves_content
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.internal.v1 import sds_raw_pb2

__all__ = ["SdsMetadata", "channel_key", "decode", "encode", "sds_key"]

_Parents = list[tuple[bytes, bytes | None]]

# Low byte of each known field's tag. The high bit is set where the tag goes on, as that of field
# 20 must, and those of the others may, since parsers accept tags that are longer than needed.
_SHORT_TAGS: Final = (0x0A, 0x12, 0x1A, 0x50, 0x5A, 0x62, 0x6A)
_FIRST_BYTES: Final = frozenset((*_SHORT_TAGS, *(tag | 0x80 for tag in _SHORT_TAGS), 0xA2))
_ENTRY_FIRST_BYTES: Final = frozenset((0x0A, 0x12, 0x1A, 0x8A, 0x92, 0x9A))
"""The same of a `HistoryEntry`. IDs of the older revision are text, which rarely begins so."""


@dataclass(slots=True)
class SdsMetadata:
    """What a payload claims as an SDS message: the publisher's word only, but for ``proven``.

    IDs are UTF-8 and may hold NUL. ``parents`` are (message ID, retrieval hint or ``None``) in
    the order of the causal history, as claimed: repeats, cycles, IDs of any length and hints of
    any size included. ``lamport`` is an unsigned 64-bit number. ``proven``: the message has
    content, and its ID proves the content or all of it (`storenode.sds.proofs`).
    """

    channel_id: bytes
    message_id: bytes
    lamport: int | None
    sender_id: bytes
    parents: list[tuple[bytes, bytes | None]]
    proven: bool = False


def decode(payload: bytes) -> SdsMetadata | None:
    """Read the metadata of an SDS message; ``None`` for any other payload.

    Never raises. Source: SDS, "Wire format", in both revisions, and the module's docstring.
    """
    if not payload or payload[0] not in _FIRST_BYTES:
        return None
    try:
        message = message_pb2.Message.FromString(payload)
    except DecodeError:
        return _decode_entry_by_entry(payload)
    if len(message.causal_history) > MAX_HISTORY_ENTRIES:
        return None
    message.DiscardUnknownFields()
    parents = [_parent(entry) for entry in message.causal_history]
    # Without unknown fields, only an unusual encoding makes the payload the longer of the two.
    if message.ByteSize() != len(payload) or not all(parent for parent, _ in parents):
        return _decode_entry_by_entry(payload)
    return _metadata(message, parents)


def channel_key(channel_id: bytes) -> bytes:
    """Index key (16 bytes, a UUID column) of a channel: the first 128 bits of its SHA-256."""
    return sha256(channel_id).digest()[:SDS_KEY_BYTES]


def sds_key(channel_id: bytes, message_id: bytes) -> bytes:
    """Index key (16 bytes, a UUID column) of a message ID in its channel.

    The first 128 bits of SHA-256 over both as UTF-8, each after its length as four bytes
    big-endian. A message's key is wanted again shortly after, for those that name it.
    """
    if len(channel_id) > MAX_ID_BYTES or len(message_id) > MAX_ID_BYTES:
        # No message has such an ID: it is only named, and whoever names it chooses its size.
        return _key(channel_id, message_id)
    return _cached_key(channel_id, message_id)


def _key(channel_id: bytes, message_id: bytes) -> bytes:
    preimage = b"%b%b%b%b" % (
        len(channel_id).to_bytes(4, "big"),
        channel_id,
        len(message_id).to_bytes(4, "big"),
        message_id,
    )
    return sha256(preimage).digest()[:SDS_KEY_BYTES]


_cached_key = lru_cache(maxsize=MAX_CACHED_KEYS)(_key)


def encode(
    channel_id: str,
    message_id: str,
    *,
    sender_id: str = "",
    lamport: int | None = None,
    parents: Iterable[tuple[str, bytes | None]] = (),
    bloom_filter: bytes | None = None,
    content: bytes | None = None,
) -> bytes:
    """Encode an SDS message of the newest revision; ``parents`` are (message ID, hint).

    Raises:
        ValueError: ``lamport`` does not fit 64 unsigned bits.
    """
    return message_pb2.Message(
        sender_id=sender_id,
        message_id=message_id,
        channel_id=channel_id,
        lamport_timestamp=lamport,
        causal_history=[
            message_pb2.HistoryEntry(message_id=parent, retrieval_hint=hint)
            for parent, hint in parents
        ],
        bloom_filter=bloom_filter,
        content=content,
    ).SerializeToString()


def _decode_entry_by_entry(payload: bytes) -> SdsMetadata | None:
    try:
        message = sds_raw_pb2.RawSdsMessage.FromString(payload)
    except DecodeError:
        return None
    if len(message.causal_history) > MAX_HISTORY_ENTRIES or _has_unknown_fields(message):
        return None
    parents: _Parents = []
    for entry in message.causal_history:
        parent = _entry_parent(entry) or _legacy_parent(entry)
        if parent is None:
            return None
        parents.append(parent)
    return _metadata(message, parents)


def _entry_parent(raw: bytes) -> tuple[bytes, bytes | None] | None:
    if not raw or raw[0] not in _ENTRY_FIRST_BYTES:
        return None
    try:
        entry = message_pb2.HistoryEntry.FromString(raw)
    except DecodeError:
        return None
    return _parent(entry) if entry.message_id and not _has_unknown_fields(entry) else None


def _legacy_parent(raw: bytes) -> tuple[bytes, bytes | None] | None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return None
    return (raw, None) if raw else None


def _parent(entry: message_pb2.HistoryEntry) -> tuple[bytes, bytes | None]:
    # The look-up by name is the dear one: only an empty value needs it.
    hint = entry.retrieval_hint or (b"" if entry.HasField("retrieval_hint") else None)
    return entry.message_id.encode(), hint


def _has_unknown_fields(message: Message) -> bool:
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return message.ByteSize() != size


def _metadata(
    message: message_pb2.Message | sds_raw_pb2.RawSdsMessage, parents: _Parents
) -> SdsMetadata | None:
    channel_id, message_id = message.channel_id.encode(), message.message_id.encode()
    if not 0 < len(channel_id) <= MAX_ID_BYTES or not 0 < len(message_id) <= MAX_ID_BYTES:
        return None
    lamport = message.lamport_timestamp if message.HasField("lamport_timestamp") else None
    sender_id = message.sender_id.encode()
    found = SdsMetadata(channel_id, message_id, lamport, sender_id, parents)
    # No other ID need be hashed.
    if len(message_id) == ID_BYTES and message.content:
        found.proven = _is_proven(message.message_id, found, message.content)
    return found


def _is_proven(message_id: str, claimed: SdsMetadata, content: bytes) -> bool:
    parents = [parent for parent, _ in claimed.parents]
    whole = (claimed.channel_id, claimed.sender_id, claimed.lamport or 0, parents, content)
    return message_id == message_digest(*whole) or proves_content(message_id, content)
