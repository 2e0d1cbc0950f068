"""Messages as clients make them, pairs that have one hash, sets that have one XOR, and claims."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.domain.claims import Claim
from store.messages.transfer import decode_message
from storenode.message.hashing import message_hash
from storenode.message.varint import delimited, varint
from storenode.sds.codec import SdsMetadata, sds_key

CANDIDATES: Final = 258
"""Among this many hashes an even number have the XOR zero: they have 257 bits with a one."""

_EPHEMERAL: Final = b"\xf8\x01\x01"

UUID: Final = 2950
BYTEA: Final = 17


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its encoding as ``WakuMessageAndTopic``, and what it is known by.

    ``size_bytes``: of the encoded ``WakuMessage`` in it, which is what limits are about.
    """

    timestamp_ns: int
    digest: bytes
    encoded: bytes
    size_bytes: int = 0
    ephemeral: bool = False


def message_of(
    pubsub: str,
    content: str,
    payload: bytes,
    timestamp_ns: int,
    *,
    meta: bytes = b"",
    ephemeral: bool = False,
) -> Message:
    """Return a message with these fields in canonical order (14/WAKU2-MESSAGE, "Wire format")."""
    body = delimited(b"\x0a", payload) if payload else b""
    body += delimited(b"\x12", content.encode())
    body += b"\x50" + varint(2 * timestamp_ns)
    body += delimited(b"\x5a", meta) if meta else b""
    if ephemeral:
        body += _EPHEMERAL
    encoded = delimited(b"\x0a", body) + delimited(b"\x12", pubsub.encode())
    digest = message_hash(pubsub, payload, content, meta, timestamp_ns)
    return Message(timestamp_ns, digest, encoded, len(body), ephemeral)


def twin_of(message: Message) -> Message:
    """Return another message with the same hash: its content topic ends where the meta begins."""
    fields = decode_message(message.encoded)
    return message_of(
        fields.pubsub_topic,
        fields.content_topic[:-1],
        fields.payload,
        message.timestamp_ns,
        meta=fields.content_topic[-1:].encode(),
        ephemeral=message.ephemeral,
    )


def forged_halves(hashes: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Return two disjoint sets of places, of one size, whose hashes have the same XOR.

    Gaussian elimination over GF(2); takes `CANDIDATES` hashes.
    """
    rows: dict[int, tuple[int, int]] = {}
    for place, digest in enumerate(hashes):
        # The bit above the hash counts the places.
        value, used = int.from_bytes(digest) | 1 << 256, 1 << place
        while value and (found := rows.get(value.bit_length())) is not None:
            value, used = value ^ found[0], used ^ found[1]
        if not value:
            chosen = [at for at in range(len(hashes)) if used >> at & 1]
            return chosen[::2], chosen[1::2]
        rows[value.bit_length()] = value, used
    raise AssertionError("these hashes are independent")


def claim_of(message: SdsMetadata, timestamp_ns: int, digest: bytes) -> Claim:
    """Return the claim of a stored message."""
    channel_id = message.channel_id
    return (
        sds_key(channel_id, message.message_id),
        timestamp_ns,
        digest,
        message.message_id,
        encode_array(UUID, [sds_key(channel_id, parent) for parent, _ in message.parents]),
        encode_array(BYTEA, [hint for _, hint in message.parents]),
        message.proven,
    )


def encode_array(kind: int, values: Sequence[bytes | None]) -> bytes:
    """Encode an array in the binary format of Postgres."""
    if not values:
        return struct.pack(">iii", 0, 0, kind)
    parts = [struct.pack(">iiiii", 1, int(None in values), kind, len(values), 1)]
    for value in values:
        parts.append(struct.pack(">i", -1 if value is None else len(value)))
        parts.append(value or b"")
    return b"".join(parts)
