"""Frames between stores: bytes of a stream into what sessions and transfers take, and back.

A frame has up to 64 MiB, and a few of its bytes may become an object of fifty. So a `TransferFrame`
is cut between its entries and decoded piece by piece, which are taken in the order in which they
come. A large `ReconcileFrame` is refused before it is decoded if its fields and its numbers, which
take up to sixteen times their bytes, are too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError, Message

from reconcile.ids import ELEMENT_BYTES
from reconcile.lattice import DIGEST_BYTES as SUM_BYTES
from store.messages.fields import (
    ADMISSION_CHUNK_BYTES,
    ADMISSION_CHUNK_MESSAGES,
    DELIMITED,
    MAX_COUNTED_FIELDS,
    end_of_value,
    read_varint,
)
from store.sync.errors import Fault, ProtocolBrokenError, SessionFaultError
from store.sync.limits import (
    LARGE_PAYLOAD_BYTES,
    MAX_PIECE_ANSWERS,
    MAX_SEARCH_IDS,
    MAX_SEARCH_SPANS,
    SESSION_ID_CHARS,
)
from storenode.wire.storenode.internal.v1.transfer_raw_pb2 import RawTransferFrame
from storenode.wire.storenode.v1.peer_pb2 import (
    ReconcileExtension,
    ReconcileFrame,
    SumSearch,
    TransferFrame,
)

_MAX_NUMBER_BYTES: Final = 24 * MAX_SEARCH_SPANS
"""The limit of the numbers in a frame: two of up to ten bytes for each span, and a few others."""


def _numbers(message: type[Message], *names: str) -> tuple[int, ...]:
    return tuple(message.DESCRIPTOR.fields_by_name[name].number for name in names)


_MESSAGES: Final = _numbers(TransferFrame, "messages")
_ANSWERS: Final = _numbers(TransferFrame, "stored", "refused")
_LISTS: Final = (
    (_numbers(ReconcileFrame, "extension"), ()),
    (_numbers(ReconcileExtension, "search"), _numbers(ReconcileExtension, "features")),
    ((), _numbers(SumSearch, "spans", "listed")),
)
"""The field of a `ReconcileFrame` that leads to lists of numbers, and these lists, by depth."""


def parse_reconcile(data: bytes) -> ReconcileFrame:
    """Read a ``ReconcileFrame``; its count and its texts are claims of the peer.

    Raises:
        ProtocolBrokenError: it is none, or the parts of its search do not fit each other.
        SessionFaultError: it names too many spans, or lists too many messages.
    """
    if len(data) >= LARGE_PAYLOAD_BYTES:
        _check_numbers(data)
    try:
        frame = ReconcileFrame.FromString(data)
    except DecodeError:
        raise _malformed("the request is no storenode.v1.ReconcileFrame") from None
    if frame.extension.HasField("search"):
        _check_search(frame.extension.search)
    return frame


def _check_numbers(data: bytes) -> None:
    """Refuse a frame with far more fields, or numbers in its lists, than it may have."""
    fields = number_bytes = 0
    parts = [(0, len(data), 0)]
    while parts:
        position, end, depth = parts.pop()
        inner, lists = _LISTS[depth]
        while position < end:
            tag, start = read_varint(data, position)
            position = end_of_value(data, start, tag & 7)
            if not start <= position <= end:
                raise _malformed("the request is no storenode.v1.ReconcileFrame")
            if tag & 7 == DELIMITED and tag >> 3 in inner:
                parts.append((read_varint(data, start)[1], position, depth + 1))
            elif tag >> 3 in lists:
                number_bytes += position - start
            fields += 1
            if fields > MAX_COUNTED_FIELDS or number_bytes > _MAX_NUMBER_BYTES:
                raise _too_large(
                    f"the frame has more than {MAX_COUNTED_FIELDS:,} fields, or far more than "
                    f"{MAX_SEARCH_SPANS:,} spans: name fewer, and no unknown fields"
                )


def compact_bytes(extension: ReconcileExtension) -> int:
    """Return the size of what takes the place of a payload in the compact mode."""
    return len(extension.compact_frame) + len(extension.compact_ids)


def _check_search(search: SumSearch) -> None:
    spans, listed = len(search.spans), len(search.listed)
    if spans + listed > 2 * MAX_SEARCH_SPANS:
        raise _too_large(f"a frame names more than {MAX_SEARCH_SPANS:,} spans: name fewer")
    if len(search.messages) > MAX_SEARCH_IDS * ELEMENT_BYTES:
        raise _too_large(
            f"a frame lists more than {MAX_SEARCH_IDS:,} messages: send sums of shorter spans"
        )
    fits = spans % 2 == listed % 2 == len(search.messages) % ELEMENT_BYTES == 0
    if not fits or len(search.sums) != SUM_BYTES * (spans // 2):
        raise _malformed("the parts of a SumSearch do not fit")


def _too_large(sentence: str) -> SessionFaultError:
    return SessionFaultError(Fault.LIMIT, sentence)


def is_session_id(text: str) -> bool:
    """Return True for 128 bits in lower-case hexadecimal digits."""
    return len(text) == SESSION_ID_CHARS and set(text) <= set("0123456789abcdef")


Piece = tuple[RawTransferFrame, int]
"""A piece of a ``TransferFrame``, of which the last has ``done``, and its size in bytes."""


def pieces(frame: bytes) -> Iterator[Piece]:
    """Cut a ``TransferFrame`` into pieces that are judged at one go; at least one.

    Raises:
        ProtocolBrokenError: it is none.
        SessionFaultError: it has too many fields that the schema does not know.
    """
    start, done = 0, False
    for end in _cuts(frame):
        try:
            part = RawTransferFrame.FromString(frame[start:end])
        except DecodeError:
            raise _malformed("the frame is no TransferFrame") from None
        done = done or part.done
        part.done = done and end == len(frame)
        yield part, end - start
        start = end


def _malformed(what: str) -> ProtocolBrokenError:
    return ProtocolBrokenError(f"{what}: encode it as the schema says")


def _cuts(frame: bytes) -> Iterator[int]:
    """Yield the ends of the pieces of a frame."""
    position = start = messages = answers = others = 0
    size = len(frame)
    while position < size:
        tag, position = read_varint(frame, position)
        position = end_of_value(frame, position, tag & 7)
        if not 0 <= position <= size:
            raise _malformed("the frame is no TransferFrame")
        field = tag >> 3
        messages += field in _MESSAGES
        answers += field in _ANSWERS
        others += field not in _MESSAGES and field not in _ANSWERS
        if others > MAX_COUNTED_FIELDS:
            raise _too_large(
                f"the frame has more than {MAX_COUNTED_FIELDS:,} fields besides its entries: leave "
                "out those that the schema does not know"
            )
        full = messages >= ADMISSION_CHUNK_MESSAGES or position - start >= ADMISSION_CHUNK_BYTES
        if (full or answers >= MAX_PIECE_ANSWERS) and position < size:
            yield position
            start, messages, answers = position, 0, 0
    yield size
