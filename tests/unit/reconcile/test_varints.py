import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.codec import MalformedPayloadError
from reconcile.codec.decoding import read_varint
from tests.unit.reconcile.naive_codec import leb128

EDGES = [
    value
    for groups in range(10)
    for distance in (-2, -1, 0, 1)
    if 0 <= (value := (1 << 7 * groups) + distance) < 2**63
]
values = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**63 - 1), st.integers(0, 2**20))


@given(values, st.binary(max_size=3), st.binary(max_size=3))
def test_one_number(number: int, before: bytes, after: bytes) -> None:
    encoded = leb128(number)
    data = before + encoded + after
    assert read_varint(data, len(before)) == (number, len(before) + len(encoded))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "A varint is cut off"),
        (b"\x80", "A varint is cut off"),
        (b"\xff" * 8, "A varint is cut off"),
        (b"\x80\0", "A varint is longer than it must be"),
        (b"\xff\x80\0", "A varint is longer than it must be"),
        (b"\xff" * 8 + b"\0", "A varint is longer than it must be"),
        (b"\xff" * 9, "A varint is past 2^63-1"),
        (b"\xff" * 9 + b"\1", "A varint is past 2^63-1"),
        (b"\xff" * 30, "A varint is past 2^63-1"),
    ],
)
def test_what_is_no_number_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(MalformedPayloadError) as refusal:
        read_varint(b"\7" + data, 1)
    assert (refusal.value.offset, refusal.value.what) == (1, what)
