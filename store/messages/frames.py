"""Responses spliced together from stored frames, without decoding them.

A frame is one entry of a repeated field 1 (see `messages.record`), so pages whose messages are
field 1 take frames as they are; elsewhere only the first byte, the tag, is replaced.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from storenode.message.limits import HASH_BYTES
from storenode.message.varint import delimited, varint

_FIELD_1: Final = b"\x0a"
_FIELD_2: Final = b"\x12"
_FIELD_4: Final = b"\x22"
_FIELD_11: Final = b"\x5a"
_FIELD_20: Final = b"\xa2\x01"
_FIELD_51: Final = b"\x9a\x03"
_FIELD_10_VARINT: Final = b"\x50"
_FIELD_3_TRUE: Final = b"\x18\x01"
_PRESENCE: Final = b"\x0a%b\x0a%b" % (varint(2 + HASH_BYTES), varint(HASH_BYTES))


def presence(digest: bytes) -> bytes:
    """Frame of a message without its data: the 32-byte hash alone."""
    return _PRESENCE + digest


def presences(digests: Iterable[bytes]) -> bytes:
    """Return the joined frames without data of several messages."""
    return b"".join([_PRESENCE + digest for digest in digests])


def end_of_entry(entries: bytes, start: int) -> int:
    """Return where the entry that begins at ``start`` ends: a tag of one byte, a length, a body."""
    at, length, shift = start + 1, 0, 0
    while entries[at] & 0x80:
        length |= (entries[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return at + 1 + (length | entries[at] << shift)


def scan_page(frames: bytes, cursor: bytes, timestamps: Sequence[int] = ()) -> bytes:
    """Encode a ``ScanPage`` from joined frames; an empty cursor is left out."""
    packed = struct.pack(f"<{len(timestamps)}q", *timestamps)
    return frames + _unless_empty(_FIELD_2, cursor) + _unless_empty(_FIELD_4, packed)


def follow_page(frames: bytes, cursor: bytes, *, live: bool) -> bytes:
    """Encode a ``FollowPage`` from joined frames."""
    return frames + _unless_empty(_FIELD_2, cursor) + (_FIELD_3_TRUE if live else b"")


def query_response(
    request_id: str,
    status_code: int,
    status_desc: str,
    frames: Iterable[bytes] = (),
    cursor: bytes | None = None,
) -> bytes:
    """Encode a ``StoreQueryResponse`` (13/WAKU2-STORE, "Response") from single frames.

    The request ID and the status are always present, since nwaku requires them; ``cursor``, a
    message hash, only when a further match exists. For an answer without data pass the frames of
    `presence`.
    """
    parts = [
        delimited(_FIELD_1, request_id.encode()),
        _FIELD_10_VARINT + varint(status_code),
        delimited(_FIELD_11, status_desc.encode()),
    ]
    parts += [_FIELD_20 + frame[1:] for frame in frames]
    if cursor is not None:
        parts.append(delimited(_FIELD_51, cursor))
    return b"".join(parts)


def history_entry(message_id: bytes, retrieval_hint: bytes | None) -> bytes:
    """Encode an ``sds.v1.HistoryEntry``; ``message_id`` is UTF-8, without a tag around it."""
    entry = _unless_empty(_FIELD_1, message_id)
    return entry if retrieval_hint is None else entry + delimited(_FIELD_2, retrieval_hint)


def sds_stored_message(message_id: bytes, digest: bytes, frame: bytes) -> bytes:
    """Encode one entry of ``messages`` in an SDS page (tag included) from a stored frame.

    The entry says under which ID the message was asked for and under which hash it is stored.
    """
    entry = delimited(_FIELD_1, history_entry(message_id, digest))
    return delimited(_FIELD_1, entry + _FIELD_2 + frame[1:])


def sds_missing(message_id: bytes, retrieval_hint: bytes | None) -> bytes:
    """Encode one entry of ``missing`` in an SDS page (tag included)."""
    return delimited(_FIELD_2, history_entry(message_id, retrieval_hint))


def sds_page(messages: Iterable[bytes], missing: Iterable[bytes] = (), *, truncated: bool) -> bytes:
    """Encode an ``SdsMessagesPage`` or a ``CausalHistoryPage``, whose fields are the same.

    ``messages`` are entries of `sds_stored_message`, ``missing`` those of `sds_missing`.
    """
    return b"".join((*messages, *missing, _FIELD_3_TRUE if truncated else b""))


def _unless_empty(tag: bytes, body: bytes) -> bytes:
    return delimited(tag, body) if body else b""
