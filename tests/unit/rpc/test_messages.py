"""Requests that are decoded within bounds, and responses that are encoded as protobuf does."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.admission import Admitted, Verdict
from store.domain.ports import HistoryEntry, SdsPage
from store.domain.query import RequestError
from store.domain.unread import Confirmation
from store.messages.frames import presences, sds_stored_message
from store.serving.failure import CallError, Code
from store.serving.methods.decode import (
    COUNTED_REQUEST_BYTES,
    MAX_OTHER_FIELDS,
    count_fields,
    decode,
    decode_head,
    history_entries,
)
from store.serving.methods.publish import publish_response
from store.serving.methods.reads import sds_response
from storenode.message.hashing import message_hash
from storenode.message.rules import Refusal
from storenode.wire.sds.v1.message_pb2 import HistoryEntry as HistoryEntryMessage
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    GetCausalHistoryRequest,
    PublishResponse,
    PublishResult,
    SdsMessagesPage,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest


def counted(request: bytes, most: int) -> tuple[int, int]:
    return count_fields(request, 0, len(request), GetCausalHistoryRequest.DESCRIPTOR, most)


@given(
    st.lists(st.text(max_size=9), max_size=9),
    st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=9),
    st.lists(st.text(max_size=9), max_size=9),
)
def test_fields_are_counted_at_every_depth(
    known: list[str], heads: list[tuple[str, bytes | None]], topics: list[str]
) -> None:
    request = GetCausalHistoryRequest(
        channel_id="c",
        known_ids=known,
        heads=[HistoryEntryMessage(message_id=name, retrieval_hint=hint) for name, hint in heads],
        filter=ContentFilter(content_topics=topics),
    )
    fields = 1 + len(known) + len(heads) + 1 + len(topics)
    fields += sum((name != "") + (hint is not None) for name, hint in heads)
    encoded = request.SerializeToString()
    assert counted(encoded, fields) == (0, len(encoded))
    assert counted(encoded, fields - 1)[0] == -1
    unknown = b"\xfb\x7f\xfa\x7f\x03abc\xfc\x7f"
    assert counted(encoded + unknown, fields + 3)[0] == 0
    assert counted(encoded + unknown, fields + 2) == (-1, len(encoded) + len(unknown) - 2)


@given(st.binary(max_size=60))
def test_counting_fields_takes_any_bytes(request: bytes) -> None:
    assert counted(request, 2 * len(request))[0] >= 0
    left, end = counted(request, 1)
    assert left >= 0 or request.startswith(request[:end])


@pytest.mark.parametrize(
    "part", [b"\x1a\x00", b"\x12\x00", b"\xfa\x7f\x00", b"\x32\x02\x12\x00"], ids=repr
)
def test_a_large_read_has_a_bounded_number_of_fields(part: bytes) -> None:
    many = part * (COUNTED_REQUEST_BYTES // len(part) + 1)
    with pytest.raises(CallError, match="more than 32,868 fields") as caught:
        decode(GetCausalHistoryRequest, many, 100)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    few = GetCausalHistoryRequest(known_ids=["x" * 1_000] * 10_000)
    assert decode(GetCausalHistoryRequest, few.SerializeToString()) == few
    allowed = GetCausalHistoryRequest(known_ids=["k" * 40] * (MAX_OTHER_FIELDS + 1))
    assert decode(GetCausalHistoryRequest, allowed.SerializeToString(), 1) == allowed


def test_an_empty_hint_is_a_hint() -> None:
    entries = [
        HistoryEntryMessage(message_id="é"),
        HistoryEntryMessage(message_id="b", retrieval_hint=b""),
    ]
    assert history_entries("entries", entries, 2) == [
        HistoryEntry("é".encode()),
        HistoryEntry(b"b", b""),
    ]
    with pytest.raises(RequestError, match="entries holds 2 entries: at most 1"):
        history_entries("entries", entries, 1)


def test_the_head_of_a_large_request_has_as_many_fields_as_are_taken() -> None:
    digests = [number.to_bytes(32, "big") for number in range(40_000)]
    large = StoreQueryRequest(request_id="r", message_hashes=digests).SerializeToString()
    head, whole = decode_head(StoreQueryRequest, large, 100)
    assert (head.request_id, whole) == ("r", False)
    assert list(head.message_hashes) == digests[: MAX_OTHER_FIELDS + 100 - 1]
    allowed = StoreQueryRequest(message_hashes=digests[:32_000], pubsub_topic="/p" * 100_000)
    assert decode_head(StoreQueryRequest, allowed.SerializeToString(), 100) == (allowed, True)


@pytest.mark.parametrize("end", [b"\x07", b"\xff" * 11, b"\xa2\x01\xff\xff\x7f"])
def test_a_large_request_that_cannot_be_read_is_refused(end: bytes) -> None:
    some = StoreQueryRequest(message_hashes=[bytes(32)] * 32_000).SerializeToString()
    with pytest.raises(CallError) as caught:
        decode_head(StoreQueryRequest, some + end, 1_000)
    assert caught.value.code is Code.INVALID_ARGUMENT


# Responses


def digest(number: int) -> bytes:
    return message_hash("/p", b"", "/c", None, number + 1)


def published(verdicts: Sequence[Verdict]) -> Admitted:
    """Return a request with these verdicts; a duplicate is one of the first record."""
    result = Admitted()
    for index, verdict in enumerate(verdicts):
        if verdict is Verdict.DUPLICATE and not result.batch.hashes:
            verdict = Verdict.EPHEMERAL  # noqa: PLW2901 - nothing to be a duplicate of
        position, hash_ = -1, digest(index)
        if verdict is Verdict.ACCEPTED:
            position = len(result.batch.hashes)
            result.batch.hashes.append(hash_)
        elif verdict is Verdict.DUPLICATE:
            position, hash_ = 0, result.batch.hashes[0]
        elif verdict is Verdict.REJECTED:
            hash_ = hash_ if index % 2 else b""
            result.refusals[index] = Refusal("label", f"reason {index} " + "é" * index)
        result.verdicts.append(verdict)
        result.positions.append(position)
        result.hashes.append(hash_)
    return result


def expected(
    request: Admitted, stored: Sequence[bool], found: Sequence[Confirmation] = ()
) -> PublishResponse:
    """Return the response that protobuf's classes make."""
    response = PublishResponse()
    for index, verdict in enumerate(request.verdicts):
        result = response.results.add(message_hash=request.hashes[index])
        place = request.positions[index]
        if verdict is Verdict.REJECTED:
            result.outcome = PublishResult.REJECTED
            result.reason = request.refusals[index].sentence
            continue
        if verdict is Verdict.EPHEMERAL:
            result.outcome = PublishResult.EPHEMERAL
            continue
        if found:
            result.confirms, result.reason = found[place].confirms, found[place].reason
        if result.reason:
            result.outcome = PublishResult.UNCONFIRMED
        elif verdict is Verdict.ACCEPTED and stored[place]:
            result.outcome = PublishResult.STORED
        else:
            result.outcome = PublishResult.DUPLICATE
    return response


CONFIRMATIONS = st.builds(Confirmation, st.integers(0, 2**32 - 1), st.sampled_from(["", "too few"]))


@given(st.lists(st.sampled_from(list(Verdict)), max_size=20), st.booleans(), st.data())
def test_results_are_those_that_protobuf_would_write(
    verdicts: list[Verdict], confirmed: bool, data: st.DataObject
) -> None:
    request = published(verdicts)
    records = len(request.batch.hashes)
    stored = data.draw(st.lists(st.booleans(), min_size=records, max_size=records))
    size = records if confirmed else 0
    found = data.draw(st.lists(CONFIRMATIONS, min_size=size, max_size=size))
    encoded = publish_response(request, stored, found)
    assert encoded == expected(request, stored, found).SerializeToString()


def test_an_sds_page() -> None:
    stored = digest(0)
    entry = sds_stored_message(b"id", stored, presences([stored]))
    missing = (HistoryEntry(b"gone"), HistoryEntry(b"lost", b"hint"), HistoryEntry(b"x", b""))
    response = SdsMessagesPage.FromString(sds_response(SdsPage(entry, 1, missing, truncated=True)))
    assert [one.entry.message_id for one in response.messages] == ["id"]
    assert response.messages[0].stored.message_hash == stored
    assert [one.message_id for one in response.missing] == ["gone", "lost", "x"]
    assert [one.HasField("retrieval_hint") for one in response.missing] == [False, True, True]
    assert response.truncated
