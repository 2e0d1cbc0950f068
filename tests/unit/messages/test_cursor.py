from collections.abc import Callable
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.messages.cursor import (
    CURSOR_KEY_BYTES,
    NONCE_BYTES,
    CursorError,
    FollowCursor,
    FollowCursors,
    ScanCursor,
)
from tests.unit.builders import hashes, timestamps

STORE_ID = bytes(range(16))
HASH = b"h" * 32
scan_cursors = st.builds(ScanCursor, timestamps, hashes)
KEY = bytes(range(100, 100 + CURSOR_KEY_BYTES))
FOLLOW = FollowCursors(STORE_ID, KEY, lambda: Random(7).randbytes(NONCE_BYTES))
positions = st.integers(0, 2**63 - 1)
tokens = st.integers(0, 2**64 - 1)
follow_cursors = st.one_of(
    st.builds(FollowCursor, st.just(STORE_ID), positions, tokens),
    st.builds(FollowCursor, st.just(STORE_ID), positions, tokens, timestamps, hashes),
)
either = scan_cursors.map(lambda cursor: (cursor.encode(), ScanCursor.decode)) | follow_cursors.map(
    lambda cursor: (FOLLOW.seal(cursor), FOLLOW.open)
)
Read = Callable[[bytes], object]


@given(scan_cursors)
def test_a_scan_cursor_survives_its_encoding(cursor: ScanCursor) -> None:
    encoded = cursor.encode()
    assert ScanCursor.decode(encoded) == cursor
    assert len(encoded) == 47


@given(follow_cursors, st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_a_follow_cursor_survives_its_encoding(cursor: FollowCursor, nonce: bytes) -> None:
    sealed = FollowCursors(STORE_ID, KEY, lambda: nonce).seal(cursor)
    assert FOLLOW.open(sealed) == cursor
    assert len(sealed) == 112


def test_a_follow_cursor_shows_nothing_of_where_it_stands() -> None:
    rng = Random(1)
    cursors = FollowCursors(STORE_ID, KEY, lambda: rng.randbytes(NONCE_BYTES))
    one = [cursors.seal(FollowCursor(STORE_ID, 5, 6)) for _ in range(200)]
    inside = [cursors.seal(FollowCursor(STORE_ID, 5, 6, 7, HASH)) for _ in range(200)]
    for sealed in (one, inside):
        # After the store's ID every byte differs from cursor to cursor.
        for place in range(3 + len(STORE_ID), 112):
            assert len({each[place] for each in sealed}) > 64
    assert not any(HASH[:4] in each for each in inside)


@given(follow_cursors)
def test_a_follow_cursor_under_another_key_is_refused(cursor: FollowCursor) -> None:
    other = FollowCursors(STORE_ID, KEY[::-1], lambda: bytes(NONCE_BYTES))
    with pytest.raises(CursorError, match="pass the bytes of a page unchanged"):
        FOLLOW.open(other.seal(cursor))


def test_a_follow_cursor_of_another_store_shows_its_store_only() -> None:
    other = FollowCursors(bytes(16), KEY, lambda: bytes(NONCE_BYTES))
    found = FOLLOW.open(other.seal(FollowCursor(bytes(16), 5, 6)))
    assert found == FollowCursor(bytes(16), 0, 0)


@given(either, st.data())
def test_a_damaged_cursor_is_refused(cursor: tuple[bytes, Read], data: st.DataObject) -> None:
    encoded, read = cursor
    changed, place = bytearray(encoded), data.draw(st.integers(0, len(encoded) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(changed), encoded[:place], encoded + b"\0"):
        with pytest.raises(CursorError):
            read(damaged)


@given(follow_cursors, st.data())
def test_a_forged_follow_cursor_is_refused(cursor: FollowCursor, data: st.DataObject) -> None:
    """Refuse a body that was changed under a right checksum."""
    body = bytearray(FOLLOW.seal(cursor)[:-4])
    place = data.draw(st.integers(3 + len(STORE_ID), len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CursorError):
        FOLLOW.open(_sealed(bytes(body)))


@given(st.binary(max_size=130))
def test_foreign_bytes_are_refused_in_one_sentence(raw: bytes) -> None:
    for read in (ScanCursor.decode, FOLLOW.open):
        with pytest.raises(CursorError, match="pass the bytes of a page unchanged"):
            read(raw)


def test_a_cursor_of_another_call_or_a_newer_version_is_named() -> None:
    with pytest.raises(CursorError, match="made by Scan, not by Follow"):
        FOLLOW.open(ScanCursor(1, HASH).encode())
    with pytest.raises(CursorError, match="made by Follow, not by Scan"):
        ScanCursor.decode(FOLLOW.seal(FollowCursor(STORE_ID, 1, 2)))
    with pytest.raises(CursorError, match="a newer version"):
        ScanCursor.decode(_sealed(b"SNz" + bytes(40)))


def _sealed(body: bytes) -> bytes:
    return body + crc32(body).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (ScanCursor.decode, b"SNs" + bytes(39)),
        (ScanCursor.decode, b"SNs" + b"\xff" * 8 + HASH),
        (FOLLOW.open, b"SNf" + bytes(33)),
        (FOLLOW.open, b"SNg" + bytes(106)),
        (FOLLOW.open, b"SNf" + STORE_ID + b"\xff" * 8 + bytes(8)),
        (FOLLOW.open, b"SNf" + bytes(32) + b"\x80" + bytes(7) + HASH),
    ],
)
def test_a_well_sealed_cursor_with_impossible_fields_is_refused(read: Read, body: bytes) -> None:
    with pytest.raises(CursorError):
        read(_sealed(body))


@pytest.mark.parametrize("timestamp", [-1, 2**63])
def test_a_cursor_with_impossible_fields_cannot_be_made(timestamp: int) -> None:
    with pytest.raises(CursorError):
        ScanCursor(timestamp, HASH)
