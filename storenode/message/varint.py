"""Base-128 varints of Protocol Buffers (Encoding, "Base 128 Varints")."""

from typing import Final

_SINGLE_BYTES: Final = tuple(bytes((value,)) for value in range(0x80))


def varint(value: int) -> bytes:
    """Encode a non-negative integer in its shortest form, least significant group first.

    Raises:
        ValueError: ``value`` is negative.
    """
    if 0 <= value < 0x80:
        return _SINGLE_BYTES[value]
    if value < 0:
        raise ValueError(f"a varint of {value} is impossible: pass a value of 0 or more")
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def delimited(tag: bytes, body: bytes) -> bytes:
    """Encode one length-delimited field: ``tag`` (already encoded), the length, then ``body``."""
    return b"%b%b%b" % (tag, varint(len(body)), body)
