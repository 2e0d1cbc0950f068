"""Message hashes and varints are those of the standards."""

from hashlib import sha256

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import example, given
from hypothesis import strategies as st

from storenode.message.hashing import message_hash
from storenode.message.varint import delimited, varint
from tests.unit.builders import utf8_text


@given(
    utf8_text,
    st.binary(max_size=50),
    utf8_text,
    st.none() | st.binary(max_size=64),
    st.integers(-(2**63), 2**63 - 1).filter(bool),
)
def test_the_hash_covers_the_fields_in_the_order_of_the_standard(
    pubsub: str, payload: bytes, content: str, meta: bytes | None, timestamp: int
) -> None:
    preimage = pubsub.encode() + payload + content.encode() + (meta or b"")
    preimage += (timestamp % 2**64).to_bytes(8, "big")
    expected = sha256(preimage).digest()
    assert message_hash(pubsub, payload, content, meta, timestamp) == expected
    assert message_hash(pubsub.encode(), payload, content.encode(), meta, timestamp) == expected


@pytest.mark.parametrize("timestamp", [0, 2**63, -(2**63) - 1])
def test_a_timestamp_without_an_agreed_encoding_is_refused(timestamp: int) -> None:
    with pytest.raises(ValueError, match=f"timestamp {timestamp} has no hash"):
        message_hash("/p", b"", "/c", None, timestamp)


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
