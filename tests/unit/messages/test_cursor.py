from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.messages.cursor import CursorError, FollowCursor, ScanCursor
from tests.unit.builders import hashes, timestamps

STORE_ID = bytes(range(16))
HASH = b"h" * 32
scan_cursors = st.builds(ScanCursor, timestamps, hashes)
follow_cursors = st.one_of(
    st.builds(
        FollowCursor,
        st.binary(min_size=16, max_size=16),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**64 - 1),
    ),
    st.builds(
        FollowCursor,
        st.binary(min_size=16, max_size=16),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**64 - 1),
        timestamps,
        hashes,
    ),
)


@given(scan_cursors)
def test_a_scan_cursor_survives_its_encoding(cursor: ScanCursor) -> None:
    encoded = cursor.encode()
    assert ScanCursor.decode(encoded) == cursor
    assert len(encoded) == 47


@given(follow_cursors)
def test_a_follow_cursor_survives_its_encoding(cursor: FollowCursor) -> None:
    encoded = cursor.encode()
    assert FollowCursor.decode(encoded) == cursor
    assert len(encoded) == (39 if cursor.hash is None else 79)


@given(scan_cursors | follow_cursors, st.data())
def test_a_changed_cursor_is_refused(
    cursor: ScanCursor | FollowCursor, data: st.DataObject
) -> None:
    encoded = bytearray(cursor.encode())
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CursorError):
        type(cursor).decode(bytes(encoded))


@given(scan_cursors | follow_cursors, st.data())
def test_a_shortened_or_extended_cursor_is_refused(
    cursor: ScanCursor | FollowCursor, data: st.DataObject
) -> None:
    encoded = cursor.encode()
    keep = data.draw(st.integers(0, len(encoded) - 1))
    for damaged in (encoded[:keep], encoded + b"\0"):
        with pytest.raises(CursorError):
            type(cursor).decode(damaged)


@given(st.binary(max_size=100))
def test_foreign_bytes_are_refused_in_one_sentence(raw: bytes) -> None:
    for read in (ScanCursor.decode, FollowCursor.decode):
        with pytest.raises(CursorError, match="pass the bytes of a page unchanged"):
            read(raw)


def test_a_cursor_of_another_call_is_named() -> None:
    with pytest.raises(CursorError, match="made by Scan, not by Follow"):
        FollowCursor.decode(ScanCursor(1, HASH).encode())
    with pytest.raises(CursorError, match="made by Follow, not by Scan"):
        ScanCursor.decode(FollowCursor(STORE_ID, 1, 2).encode())


def _sealed(body: bytes) -> bytes:
    return body + crc32(body).to_bytes(4, "big")


def test_a_kind_from_the_future_is_named() -> None:
    with pytest.raises(CursorError, match="a newer version"):
        ScanCursor.decode(_sealed(b"SNz" + bytes(40)))


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (ScanCursor.decode, b"SNs" + bytes(39)),
        (ScanCursor.decode, b"SNs" + b"\xff" * 8 + HASH),
        (FollowCursor.decode, b"SNf" + bytes(33)),
        (FollowCursor.decode, b"SNf" + STORE_ID + b"\xff" * 8 + bytes(8)),
        (FollowCursor.decode, b"SNf" + bytes(32) + b"\x80" + bytes(7) + HASH),
    ],
    ids=["scan-short", "scan-negative-time", "follow-long", "follow-position", "follow-time"],
)
def test_a_well_sealed_cursor_with_impossible_fields_is_refused(
    read: Callable[[bytes], object], body: bytes
) -> None:
    with pytest.raises(CursorError):
        read(_sealed(body))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScanCursor(-1, HASH),
        lambda: ScanCursor(2**63, HASH),
        lambda: ScanCursor(1, HASH[1:]),
        lambda: FollowCursor(STORE_ID[1:], 0, 0),
        lambda: FollowCursor(STORE_ID, -1, 0),
        lambda: FollowCursor(STORE_ID, 0, 2**64),
        lambda: FollowCursor(STORE_ID, 0, 0, 5),
        lambda: FollowCursor(STORE_ID, 0, 0, -5, HASH),
        lambda: FollowCursor(STORE_ID, 0, 0, 5, HASH + b"x"),
    ],
)
def test_a_cursor_with_impossible_fields_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(CursorError):
        make()
