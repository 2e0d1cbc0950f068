"""How two stores were compared, and what that has brought to light."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Equality(StrEnum):
    """How a session has compared the two sides.

    XOR: by the fingerprints of WAKU-SYNC, which whoever may publish can forge. KEYED: by lattice
    sums over contents, which nobody can. PARTLY_KEYED: by these from some time on.
    """

    UNKNOWN = ""
    XOR = "xor"
    KEYED = "keyed"
    PARTLY_KEYED = "partly keyed"


@dataclass(frozen=True, slots=True)
class Hidden:
    """Differences that the fingerprints of WAKU-SYNC did not show: forged, or a fault.

    ``hashes``: some of their messages, few enough for a log. Times in Unix nanoseconds.
    """

    count: int
    first_ns: int
    last_ns: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ContentConflict:
    """A message hash under which two stores hold different contents, by content digests."""

    timestamp: int
    message_hash: bytes
    own_digest: bytes
    peer_digest: bytes
