"""Messages as clients make them, in their encoding, and sets that have one XOR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storenode.message.hashing import message_hash
from storenode.message.varint import delimited, varint

CANDIDATES: Final = 258
"""Among so many hashes some of an even number have the XOR zero: they have 257 bits with a one."""

_EPHEMERAL: Final = b"\xf8\x01\x01"


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
    pubsub: str, content: str, payload: bytes, timestamp_ns: int, *, ephemeral: bool = False
) -> Message:
    """Return a message with these fields in canonical order (14/WAKU2-MESSAGE, "Wire format")."""
    body = delimited(b"\x0a", payload) if payload else b""
    body += delimited(b"\x12", content.encode())
    body += b"\x50" + varint(2 * timestamp_ns)
    if ephemeral:
        body += _EPHEMERAL
    encoded = delimited(b"\x0a", body) + delimited(b"\x12", pubsub.encode())
    digest = message_hash(pubsub, payload, content, b"", timestamp_ns)
    return Message(timestamp_ns, digest, encoded, len(body), ephemeral)


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
