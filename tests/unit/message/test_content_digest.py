"""The content digest is equal if and only if the five fields of a message are."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.message.hashing import content_digest, message_hash

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


def test_an_absent_meta_has_the_digest_of_an_empty_one() -> None:
    one, other = (content_digest("p", b"x", "c", meta, TIME) for meta in (None, b""))
    assert one == other


@pytest.mark.parametrize(
    ("fields", "digest"),
    [
        (
            ("/waku/2/rs/1/0", b"transfer 10 to bob/al", "pha/1/x/proto", None, TIME),
            "08d8b06e395093af13a02fc48b6c7f56",
        ),
        (
            ("/waku/2/rs/1/0", b"transfer 10 to bob", "/alpha/1/x/proto", None, TIME),
            "f20361313c658549ef1a50a870d3d517",
        ),
        (("", b"", "", b"meta", 1), "aaf6bf4d7111dcd7ce4a22a17d3973ec"),
    ],
)
def test_the_digest_of_some_messages_is_known(
    fields: tuple[str, bytes, str, bytes | None, int], digest: str
) -> None:
    assert content_digest(*fields).hex() == digest
