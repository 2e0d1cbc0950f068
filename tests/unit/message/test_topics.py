from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.message.topics import parse_shard, topic_key
from tests.unit.builders import utf8_text


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
