"""Claims of SDS messages as a database returns them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from store.domain.claims import Claim
from storenode.sds.codec import SdsMetadata, sds_key

UUID: Final = 2950
BYTEA: Final = 17


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
