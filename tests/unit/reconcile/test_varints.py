import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.codec import MalformedPayload
from reconcile.codec.decoding import read_varint
from reconcile.codec.encoding import varint_sizes, varint_words
from tests.unit.reconcile.naive_codec import leb128

EDGES = [
    value
    for groups in range(10)
    for distance in (-2, -1, 0, 1)
    if 0 <= (value := (1 << 7 * groups) + distance) < 2**63
]
values = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**63 - 1), st.integers(0, 2**20))


@given(st.lists(values, max_size=60))
def test_sizes_and_words_are_those_of_leb128(numbers: list[int]) -> None:
    array = np.array(numbers, np.int64)
    sizes = varint_sizes(array)
    encoded = [leb128(number) for number in numbers]
    assert sizes.tolist() == [len(varint) for varint in encoded]
    words = varint_words(array, sizes)
    assert [word.tobytes() for word in words.astype("<u8")] == [
        varint[:8].ljust(8, b"\0") for varint in encoded
    ]


def test_many_numbers_at_once() -> None:
    numbers = np.arange(100_000, dtype=np.int64) ** 3
    sizes = varint_sizes(numbers)
    words = varint_words(numbers, sizes)
    assert bytes(words[99_999].tobytes()[: sizes[-1]]) == leb128(99_999**3)


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
    with pytest.raises(MalformedPayload) as refusal:
        read_varint(b"\7" + data, 1)
    assert (refusal.value.offset, refusal.value.what) == (1, what)
