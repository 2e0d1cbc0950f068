"""Segments: contents that are too large for one message, in parts (LIP-243).

Every content is wrapped, also one that fits into one segment. Two revisions are read: the one
published in June 2026, which is written by default, and the one that nim-segmentation writes. They
differ in the type of field 4. Parity segments are recognised and not used: SDS fetches what is
missing.

Source: Message Segmentation and Reconstruction (LIP-243), "Wire Format", "Segmentation".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from Crypto.Hash import keccak
from google.protobuf.message import DecodeError

from storenode.sds.limits import MAX_CONTENT_BYTES, MAX_SEGMENTS, SEGMENT_HASH_BYTES
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessage, SegmentMessageProto

_HEADER_BYTES: Final = 128
_ALIGNED_BYTES: Final = 64
"""nim-segmentation's: its parts are a multiple of this, and leave room for the other fields."""


class SegmentError(ValueError):
    """The bytes are no segment that can be used; the text says why."""


class Revision(Enum):
    """The revision in which segments are written."""

    PUBLISHED = "published"
    """As the text of June 2026 says."""
    NIM = "nim"
    """As nim-segmentation does."""


@dataclass(frozen=True, slots=True)
class SegmentSet:
    """The fields that all segments of one content share; ``length`` in bytes, if known."""

    content_hash: bytes
    count: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a content; ``index`` counts from 0."""

    whole: SegmentSet
    index: int
    part: bytes


def content_hash(content: bytes) -> bytes:
    """Return the Keccak-256 of a content, 32 bytes."""
    return keccak.new(digest_bits=256, data=content).digest()


def split(content: bytes, segment_bytes: int, revision: Revision) -> list[bytes]:
    """Encode the segments of a content, which may be empty.

    ``segment_bytes`` is the largest part in the published revision, and the largest segment in
    nim-segmentation's.

    Raises:
        ValueError: it needs more segments than receivers accept.
    """
    part_bytes = _part_bytes(segment_bytes, revision)
    parts = [content[at : at + part_bytes] for at in range(0, len(content), part_bytes)] or [b""]
    if len(parts) > MAX_SEGMENTS or len(content) > MAX_CONTENT_BYTES:
        most = min(part_bytes * MAX_SEGMENTS, MAX_CONTENT_BYTES)
        raise ValueError(
            f"the content has {len(content)} bytes: {most} fit into {MAX_SEGMENTS} segments"
        )
    whole = content_hash(content)
    if revision is Revision.NIM:
        return [
            SegmentMessage(
                original_payload_hash=whole,
                original_payload_length=len(content),
                index=index,
                data_segment_count=len(parts),
                segment_payload=part,
            ).SerializeToString()
            for index, part in enumerate(parts)
        ]
    return [
        SegmentMessageProto(
            entire_message_hash=whole,
            data_segment_index=index,
            data_segment_count=len(parts),
            payload=part,
        ).SerializeToString()
        for index, part in enumerate(parts)
    ]


def read_segment(data: bytes) -> Segment:
    """Decode a segment of either revision.

    Raises:
        SegmentError: it is none, or its numbers do not fit.
    """
    try:
        nim = SegmentMessage.FromString(data)
        # Of the wrong type, field 4 would be unknown here, and a count is never 0.
        found = _of_nim(nim) if nim.data_segment_count else _of_published(data)
    except DecodeError:
        raise SegmentError("it is no segment") from None
    whole = found.whole
    if len(whole.content_hash) != SEGMENT_HASH_BYTES:
        raise SegmentError(f"its hash has {len(whole.content_hash)} bytes, not 32")
    if not found.index < whole.count <= MAX_SEGMENTS:
        raise SegmentError(f"it is number {found.index} of {whole.count}: up to {MAX_SEGMENTS} fit")
    if whole.length is not None and not len(found.part) <= whole.length <= MAX_CONTENT_BYTES:
        raise SegmentError(f"its content has {whole.length} bytes, and it has {len(found.part)}")
    return found


def join(whole: SegmentSet, parts: Sequence[bytes]) -> bytes | None:
    """Return the content of all parts in order; None where it does not have the hash."""
    content = b"".join(parts)
    if whole.length is not None:
        content = content[: whole.length]
    return content if content_hash(content) == whole.content_hash else None


def _part_bytes(segment_bytes: int, revision: Revision) -> int:
    if revision is Revision.PUBLISHED:
        return segment_bytes
    return (segment_bytes - _HEADER_BYTES) // _ALIGNED_BYTES * _ALIGNED_BYTES


def _of_nim(message: SegmentMessage) -> Segment:
    if message.is_parity:
        raise SegmentError("it is a parity segment")
    whole = SegmentSet(
        message.original_payload_hash,
        message.data_segment_count,
        message.original_payload_length,
    )
    return Segment(whole, message.index, message.segment_payload)


def _of_published(data: bytes) -> Segment:
    message = SegmentMessageProto.FromString(data)
    if message.is_parity:
        raise SegmentError("it is a parity segment")
    whole = SegmentSet(message.entire_message_hash, message.data_segment_count)
    return Segment(whole, message.data_segment_index, message.payload)
