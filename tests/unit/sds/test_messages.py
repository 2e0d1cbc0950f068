"""Messages of both revisions, in all fields."""

from hypothesis import given
from hypothesis import strategies as st

from storenode.sds.codec import (
    Entry,
    MessageKind,
    SdsMessage,
    decode,
    decode_message,
    encode_message,
    encode_older,
)
from storenode.wire.sds.v1 import message_pb2
from tests.interop.vectors import load

LEGACY = [case for case in load("sds_message")["decode_only"] if case["name"].startswith("legacy")]

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)
entries = st.builds(
    Entry, st.one_of(hashes, texts), st.none() | st.binary(max_size=40), st.none() | texts
)
messages = st.builds(
    SdsMessage,
    texts,
    st.one_of(hashes, texts),
    st.one_of(st.just(""), texts),
    st.integers(0, 2**64 - 1),
    st.lists(entries, max_size=5).map(tuple),
    st.none() | st.binary(min_size=1, max_size=40),
    st.lists(entries, max_size=3).map(tuple),
    st.none() | st.binary(min_size=1, max_size=40),
)


@given(messages)
def test_what_is_encoded_is_decoded(message: SdsMessage) -> None:
    found = decode_message(encode_message(message))
    assert found == message
    assert found.kind is (MessageKind.CONTENT if message.content else MessageKind.SYNC)


@given(st.lists(hashes, max_size=12), st.binary(min_size=1, max_size=20))
def test_the_older_revision_is_read_as_ids(history: list[str], content: bytes) -> None:
    entries = tuple(Entry(message_id) for message_id in history)
    message = SdsMessage("room", "id", "", 5, entries, b"filter", content=content)
    assert decode_message(encode_older(message)) == message


def test_recorded_histories_of_the_older_revision_are_read() -> None:
    assert len(LEGACY) > 10
    for case in LEGACY:
        payload = bytes.fromhex(case["bytes"])
        metadata = decode(payload)
        assert metadata is not None
        message = decode_message(payload)
        assert [entry.message_id.encode() for entry in message.history] == [
            parent for parent, _ in metadata.parents
        ]
        assert all(entry.hint is None and entry.sender_id is None for entry in message.history)


def test_a_participant_reads_fields_that_it_does_not_know() -> None:
    message = SdsMessage("room", "id", "s", 5, (Entry("a" * 64, b"h"),), content=b"x")
    raw = message_pb2.Message.FromString(encode_message(message))
    unknown = bytes([0x9A, 0x06, 1, 65])
    entry = raw.causal_history[0].SerializeToString() + unknown
    rebuilt = encode_message(SdsMessage("room", "id", "s", 5, content=b"x"))
    later = rebuilt + bytes([0x5A, len(entry)]) + entry + unknown
    assert decode_message(later) == message


def test_an_ephemeral_message_has_no_clock() -> None:
    message = SdsMessage("room", "id", "s", content=b"x")
    assert decode_message(encode_message(message)) == message
    assert message.kind is MessageKind.EPHEMERAL
    zero = SdsMessage("room", "id", "s", 0, content=b"x")
    assert decode_message(encode_message(zero)).kind is MessageKind.CONTENT
