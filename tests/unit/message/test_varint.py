import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import example, given
from hypothesis import strategies as st

from storenode.message.varint import delimited, varint


@given(st.integers(0, 2**64 - 1))
@example(0)
@example(127)
@example(128)
@example(2**14 - 1)
@example(2**14)
@example(2**64 - 1)
def test_a_varint_is_the_one_that_protobuf_writes(value: int) -> None:
    assert varint(value) == _VarintBytes(value)


def test_a_negative_number_has_no_varint() -> None:
    with pytest.raises(ValueError, match="-1"):
        varint(-1)


def test_a_delimited_field_is_tag_length_and_body() -> None:
    assert delimited(b"\x0a", b"") == b"\x0a\x00"
    assert delimited(b"\xa2\x01", b"x" * 200) == b"\xa2\x01\xc8\x01" + b"x" * 200
