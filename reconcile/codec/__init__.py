"""``RangesData`` of WAKU-SYNC: bytes to arrays and back.

The rules are those of WAKU-SYNC, "Payload encoding", read as follows where it leaves room.

- Bounds start from ``LOWEST``. After a difference in time a bound's hash is all zeros; at the
  same time it is the sent prefix, filled up with zeros. A decoder takes any prefix that makes
  the bound greater; an encoder ends it with the first byte that differs.
- Varints are minimal and at most 2^63-1.
- Zero bytes are the empty payload; so are the single byte 00, and a payload without ranges.
- The items of a set ascend strictly and lie inside their range.
"""

from reconcile.codec.bounds import bridge, expressible
from reconcile.codec.decoding import decode
from reconcile.codec.encoding import encode, encode_head
from reconcile.codec.ranges import Payload, RangeKind, Ranges
from reconcile.errors import MalformedPayloadError, PayloadLimitError

__all__ = [
    "MalformedPayloadError",
    "Payload",
    "PayloadLimitError",
    "RangeKind",
    "Ranges",
    "bridge",
    "decode",
    "encode",
    "encode_head",
    "expressible",
]
