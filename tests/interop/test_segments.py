"""Segments that nim-segmentation writes, by the bytes that it publishes for other implementations,
and those of LIP-243's published text.
"""

from __future__ import annotations

import pytest

from storenode.sds.segments import (
    Revision,
    Segment,
    SegmentError,
    SegmentSet,
    content_hash,
    read_segment,
    split,
)
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessage

HASH = bytes(range(32))
DATA = bytes.fromhex(f"0a20{HASH.hex()}10f403180120033a03aabbcc")
PARITY = bytes.fromhex(f"0a20{HASH.hex()}10f4032003280130013a021122")
MINIMAL = bytes.fromhex(f"0a20{HASH.hex()}2001")


def test_segments_of_nim_are_read() -> None:
    assert read_segment(DATA) == Segment(SegmentSet(HASH, 3, 500), 1, b"\xaa\xbb\xcc")
    assert read_segment(MINIMAL) == Segment(SegmentSet(HASH, 1, 0), 0, b"")
    with pytest.raises(SegmentError, match="parity"):
        read_segment(PARITY)


def test_the_same_fields_are_written_as_the_same_bytes() -> None:
    parity = SegmentMessage.FromString(PARITY)
    assert (parity.data_segment_count, parity.parity_segment_count) == (3, 1)
    for data in (DATA, PARITY, MINIMAL):
        assert SegmentMessage.FromString(data).SerializeToString() == data


def test_parts_have_the_sizes_of_nim() -> None:
    """Check the sizes: at 102,400 bytes a segment has a part of 102,272; at 320, of 192."""
    for segment_bytes, part_bytes in ((102_400, 102_272), (320, 192)):
        encoded = split(bytes(part_bytes * 2 + 1), segment_bytes, Revision.NIM)
        parts = [read_segment(each).part for each in encoded]
        assert [len(part) for part in parts] == [part_bytes, part_bytes, 1]
        assert all(len(each) <= segment_bytes for each in encoded)


def test_the_published_text_numbers_the_fields_otherwise() -> None:
    """Check the fields: 1 hash, 2 index, 3 count, 4 part; defaults are left out."""
    first, second = split(b"abcde", 3, Revision.PUBLISHED)
    name = content_hash(b"abcde").hex()
    assert first.hex() == f"0a20{name}18022203616263"
    assert second.hex() == f"0a20{name}1001180222026465"


def test_the_hash_is_keccak_of_before_sha3() -> None:
    empty = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert content_hash(b"").hex() == empty
