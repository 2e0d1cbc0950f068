from hypothesis import given
from hypothesis import strategies as st

from store.messages import frames
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    CausalHistoryPage,
    FollowPage,
    ScanPage,
    SdsMessagesPage,
    SdsStoredMessage,
)
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse, WakuMessageKeyValue
from tests.unit.builders import hashes, utf8_text

key_values = st.builds(
    WakuMessageKeyValue,
    message_hash=hashes,
    message=st.builds(
        WakuMessage,
        payload=st.binary(max_size=300),
        content_topic=utf8_text,
        timestamp=st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    pubsub_topic=utf8_text,
)
pages_of_key_values = st.lists(key_values, max_size=4)
cursors = st.binary(max_size=200)
hints = st.none() | st.binary(max_size=40)


def frame(message: WakuMessageKeyValue) -> bytes:
    return ScanPage(messages=[message]).SerializeToString()


def joined(messages: list[WakuMessageKeyValue]) -> bytes:
    return b"".join(map(frame, messages))


@given(pages_of_key_values, cursors, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_a_scan_page_is_what_protobuf_writes(
    messages: list[WakuMessageKeyValue], cursor: bytes, timestamps: list[int]
) -> None:
    expected = ScanPage(messages=messages, cursor=cursor, timestamps=timestamps)
    assert frames.scan_page(joined(messages), cursor, timestamps) == expected.SerializeToString()


@given(pages_of_key_values, cursors, st.booleans())
def test_a_follow_page_is_what_protobuf_writes(
    messages: list[WakuMessageKeyValue], cursor: bytes, live: bool
) -> None:
    expected = FollowPage(messages=messages, cursor=cursor, live=live)
    assert frames.follow_page(joined(messages), cursor, live=live) == expected.SerializeToString()


@given(utf8_text, st.integers(0, 2**32 - 1), utf8_text)
def test_a_failed_query_is_what_protobuf_writes_with_its_request_id_present(
    request_id: str, status: int, desc: str
) -> None:
    expected = StoreQueryResponse(request_id=request_id, status_code=status, status_desc=desc)
    encoded = frames.query_failure(request_id, status, desc)
    assert encoded == (b"" if request_id else b"\x0a\x00") + expected.SerializeToString()


@given(st.lists(hashes, max_size=4))
def test_frames_without_data_hold_the_hash_alone(digests: list[bytes]) -> None:
    expected = [WakuMessageKeyValue(message_hash=digest) for digest in digests]
    assert frames.presences(digests) == joined(expected)
    assert frames.presences(digests) == b"".join(map(frames.presence, digests))


@given(
    st.lists(st.tuples(utf8_text, hashes, key_values), max_size=3),
    st.lists(st.tuples(utf8_text, hints), max_size=3),
    st.booleans(),
)
def test_an_sds_page_is_what_protobuf_writes(
    stored: list[tuple[str, bytes, WakuMessageKeyValue]],
    missing: list[tuple[str, bytes | None]],
    truncated: bool,
) -> None:
    spliced = frames.sds_page(
        b"".join(frames.sds_stored_message(name.encode(), d, frame(m)) for name, d, m in stored),
        [(name.encode(), hint) for name, hint in missing],
        truncated=truncated,
    )
    entries = [
        SdsStoredMessage(entry=HistoryEntry(message_id=name, retrieval_hint=digest), stored=message)
        for name, digest, message in stored
    ]
    absent = [HistoryEntry(message_id=name, retrieval_hint=hint) for name, hint in missing]
    for page in (SdsMessagesPage, CausalHistoryPage):
        expected = page(messages=entries, missing=absent, truncated=truncated)
        assert spliced == expected.SerializeToString()
