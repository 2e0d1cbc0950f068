"""Hashes, content digests and content topics of messages."""

from __future__ import annotations

from hashlib import sha256

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import example, given
from hypothesis import strategies as st

from storenode.message.hashing import content_digest, message_hash
from storenode.message.topics import parse_shard, topic_key
from storenode.message.varint import varint
from tests.unit.builders import utf8_text

Fields = tuple[bytes, bytes, bytes, bytes, int]

TIME = 1_790_000_000_000_000_000


def naive(pubsub: bytes, payload: bytes, content: bytes, meta: bytes, timestamp: int) -> bytes:
    """Compute the digest field by field, as the definition is written."""
    framed = b""
    for field in (pubsub, payload, content, meta):
        size = len(field)
        framed += bytes((size >> 24, size >> 16 & 255, size >> 8 & 255, size & 255)) + field
    return sha256(framed + timestamp.to_bytes(8, "big", signed=True)).digest()[:16]


@st.composite
def cut_at_two_places(draw: st.DrawFn) -> tuple[Fields, Fields]:
    """Draw a sequence of bytes that is divided into fields in two ways."""
    joined = draw(st.binary(max_size=12))
    places = st.lists(st.integers(0, len(joined)), min_size=3, max_size=3).map(sorted)
    sides: list[Fields] = []
    for _ in range(2):
        first, second, third = draw(places)
        fields = joined[:first], joined[first:second], joined[second:third], joined[third:]
        sides.append((*fields, TIME))
    return sides[0], sides[1]


@given(cut_at_two_places())
def test_digests_are_equal_only_where_all_fields_are(pair: tuple[Fields, Fields]) -> None:
    one, other = pair
    assert message_hash(*one) == message_hash(*other)
    assert (content_digest(*one) == content_digest(*other)) == (one == other)


@given(
    st.binary(max_size=40),
    st.binary(max_size=300),
    st.binary(max_size=40),
    st.binary(max_size=64),
    st.integers(-(2**63), 2**63 - 1),
)
def test_the_digest_is_the_one_of_the_definition(
    pubsub: bytes, payload: bytes, content: bytes, meta: bytes, timestamp: int
) -> None:
    fields = pubsub, payload, content, meta, timestamp
    assert content_digest(*fields) == naive(*fields)


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


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_a_shard_topic_names_its_cluster_and_shard(cluster: int, shard: int) -> None:
    assert parse_shard(f"/waku/2/rs/{cluster}/{shard}") == (cluster, shard)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "/waku/2/default-waku/proto",
        "/waku/2/rs/1",
        "/waku/2/rs/1/",
        "/waku/2/rs/1/4/",
        "/waku/2/rs/1/4\n",
        " /waku/2/rs/1/4",
        "/waku/2/rs/01/4",
        "/waku/2/rs/1/04",
        "/waku/2/rs/1/00",
        "/waku/2/rs/+1/4",
        "/waku/2/rs/-1/4",
        "/waku/2/rs/1/65536",
        "/waku/2/rs/65536/1",
        "/waku/2/rs/1/100000",
        "/waku/2/rs/1/4_0",
        "/waku/2/rs/1/٤",
        "/waku/3/rs/1/4",
    ],
)
def test_any_other_topic_is_a_named_one(topic: str) -> None:
    assert parse_shard(topic) is None


@given(utf8_text, utf8_text)
def test_a_topic_key_is_the_start_of_a_length_prefixed_sha256(pubsub: str, content: str) -> None:
    raw = [pubsub.encode(), content.encode()]
    expected = sha256(b"".join(len(part).to_bytes(4, "big") + part for part in raw)).digest()[:16]
    assert topic_key(pubsub, content) == topic_key(*raw) == expected
