"""Responses spliced together from stored frames, without decoding them.

A frame is one entry of a repeated field 1 (see `messages.record`), so pages whose messages are
field 1 take frames as they are; elsewhere only the first byte, the tag, is replaced.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from store.messages.fields import read_varint
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import delimited, varint
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import FollowPage, ScanPage, SdsMessagesPage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse

_FIELD_1: Final = b"\x0a"
_FIELD_2: Final = b"\x12"
_PRESENCE: Final = b"\x0a%b\x0a%b" % (varint(2 + HASH_BYTES), varint(HASH_BYTES))


def presence(digest: bytes) -> bytes:
    """Frame of a message without its data: the 32-byte hash alone."""
    return _PRESENCE + digest


def presences(digests: Iterable[bytes]) -> bytes:
    """Return the joined frames without data of several messages."""
    return b"".join([_PRESENCE + digest for digest in digests])


def end_of_entry(entries: bytes, start: int) -> int:
    """Return where the entry that begins at ``start`` ends: a tag of one byte, a length, a body."""
    length, at = read_varint(entries, start + 1)
    return at + length


def scan_page(frames: bytes, cursor: bytes, timestamps: Sequence[int] = ()) -> bytes:
    """Encode a ``ScanPage`` from joined frames; an empty cursor is left out."""
    return frames + ScanPage(cursor=cursor, timestamps=timestamps).SerializeToString()


def follow_page(frames: bytes, cursor: bytes, *, live: bool) -> bytes:
    """Encode a ``FollowPage`` from joined frames."""
    return frames + FollowPage(cursor=cursor, live=live).SerializeToString()


def query_failure(request_id: str, status_code: int, status_desc: str) -> bytes:
    """Encode a ``StoreQueryResponse`` (13/WAKU2-STORE, "Response") without messages.

    The request ID and the status are always present, since nwaku requires them.
    """
    status = StoreQueryResponse(status_code=status_code, status_desc=status_desc)
    return delimited(_FIELD_1, request_id.encode()) + status.SerializeToString()


def sds_stored_message(message_id: bytes, digest: bytes, frame: bytes) -> bytes:
    """Encode one entry of ``messages`` in an SDS page (tag included) from a stored frame.

    The entry says under which ID the message was asked for and under which hash it is stored.
    """
    name = delimited(_FIELD_1, message_id) if message_id else b""
    found = name + delimited(_FIELD_2, digest)
    return delimited(_FIELD_1, delimited(_FIELD_1, found) + _FIELD_2 + frame[1:])


def sds_page(
    messages: bytes, missing: Iterable[tuple[bytes, bytes | None]] = (), *, truncated: bool
) -> bytes:
    """Encode an ``SdsMessagesPage`` or a ``CausalHistoryPage``, whose fields are the same.

    ``messages`` are joined entries of `sds_stored_message`, ``missing`` IDs with their hints.
    """
    absent = [HistoryEntry(message_id=name.decode(), retrieval_hint=hint) for name, hint in missing]
    return messages + SdsMessagesPage(missing=absent, truncated=truncated).SerializeToString()
