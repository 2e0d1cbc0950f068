"""``RangesData`` of WAKU-SYNC: bytes to arrays and back.

The rules are those of WAKU-SYNC, "Payload encoding", read as follows where it leaves room.

- Bounds start from ``LOWEST``. After a difference in time a bound's hash is all zeros; at the
  same time it is the sent prefix, filled up with zeros. A decoder takes any prefix that makes
  the bound greater; an encoder ends it with the first byte that differs.
- Varints are minimal and at most 2^63-1.
- Zero bytes are the empty payload; so are the single byte 00, and a payload without ranges.
- The items of a set ascend strictly and lie inside their range.
"""

from reconcile.codec.bounds import expressible, reach
from reconcile.codec.emit import encode, range_sizes
from reconcile.codec.parse import parse_ranges
from reconcile.codec.ranges import Payload, RangeKind, Ranges
from reconcile.codec.sequential import read_varint
from reconcile.errors import LimitExceeded, MalformedPayload
from reconcile.limits import DEFAULT_CODEC_LIMITS, CodecLimits

__all__ = [
    "LimitExceeded",
    "MalformedPayload",
    "Payload",
    "RangeKind",
    "Ranges",
    "decode",
    "encode",
    "expressible",
    "range_sizes",
    "reach",
]

_EMPTY_FORMS = (b"", b"\0")


def decode(data: bytes, limits: CodecLimits = DEFAULT_CODEC_LIMITS) -> Payload:
    """Read a payload.

    Raises:
        MalformedPayload: the bytes are not what the specification says.
        LimitExceeded: the payload is larger, or has more of something, than allowed.
    """
    if len(data) > limits.max_payload_bytes:
        raise LimitExceeded("max_payload_bytes", limits.max_payload_bytes, len(data))
    if data in _EMPTY_FORMS:
        return Payload(0, (), Ranges.empty())
    cluster, at = read_varint(data, 0)
    shards, at = _read_shards(data, at, limits)
    return Payload(cluster, shards, parse_ranges(data, at, limits))


def _read_shards(data: bytes, at: int, limits: CodecLimits) -> tuple[tuple[int, ...], int]:
    count, at = read_varint(data, at)
    if count > len(data) - at:
        raise MalformedPayload(at, f"A list of shards claims {count}, more than can follow")
    if count > limits.max_shards:
        raise LimitExceeded("max_shards", limits.max_shards, count)
    shards = []
    for _ in range(count):
        shard, at = read_varint(data, at)
        shards.append(shard)
    return tuple(shards), at
