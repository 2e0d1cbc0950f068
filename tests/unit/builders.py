"""Messages for tests, and the strategies that generate them."""

from hypothesis import strategies as st

from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

NOW_NS = 1_763_625_600_000_000_000
PUBSUB = "/waku/2/rs/1/4"
CONTENT = "/my-app/1/chat/proto"

utf8_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
topics = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40
)
hashes = st.binary(min_size=32, max_size=32)
timestamps = st.integers(0, MAX_TIMESTAMP_NS)
# Payloads around the sizes where a length takes one more byte.
payloads = st.binary(max_size=80) | st.integers(100, 20_000).map(lambda size: b"p" * size)


def entry(
    payload: bytes = b"payload",
    *,
    pubsub: str | None = PUBSUB,
    content: str = CONTENT,
    timestamp: int | None = NOW_NS,
    meta: bytes | None = None,
    version: int | None = None,
    proof: bytes | None = None,
    ephemeral: bool | None = None,
) -> WakuMessageAndTopic:
    """Return one entry of a publish request; ``None`` leaves a field absent."""
    item = WakuMessageAndTopic(pubsub_topic=pubsub)
    item.message.SetInParent()
    message = item.message
    message.payload, message.content_topic = payload, content
    if timestamp is not None:
        message.timestamp = timestamp
    if meta is not None:
        message.meta = meta
    if version is not None:
        message.version = version
    if proof is not None:
        message.rate_limit_proof = proof
    if ephemeral is not None:
        message.ephemeral = ephemeral
    return item


entries = st.builds(
    entry,
    payloads,
    pubsub=topics,
    content=topics,
    timestamp=st.integers(NOW_NS - 10**9, NOW_NS + 10**9),
    meta=st.none() | st.binary(max_size=64),
    version=st.none() | st.integers(0, 2**32 - 1),
    proof=st.none() | st.binary(max_size=300),
    ephemeral=st.none() | st.booleans(),
)
