from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from store.domain.admission import Admitted, Verdict
from store.domain.ports import HistoryEntry, QueryPage, SdsPage
from store.domain.unread import Confirmation
from store.messages.frames import presences, sds_stored_message
from store.serving.methods.encode import publish_response, query_page, sds_response
from storenode.message.hashing import message_hash
from storenode.message.rules import Refusal
from storenode.wire.storenode.v1.store_pb2 import PublishResponse, PublishResult, SdsMessagesPage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse, WakuMessageKeyValue

DIGEST = bytes(range(32))


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


def entries_of_field_20(frames: bytes, size: int) -> bytes:
    return b"".join(
        b"\xa2\x01" + frames[start + 1 : start + size] for start in range(0, len(frames), size)
    )


@given(st.text(max_size=30), st.lists(st.integers(0, 99), max_size=5), st.booleans())
def test_a_page_of_a_query(request_id: str, numbers: list[int], more: bool) -> None:
    hashes = [digest(number) for number in numbers]
    entries = entries_of_field_20(presences(hashes), len(presences([DIGEST])))
    page = QueryPage(entries, len(hashes), DIGEST if more else None)
    response = StoreQueryResponse.FromString(query_page(request_id, page))
    wanted = StoreQueryResponse(
        request_id=request_id,
        status_code=200,
        status_desc="OK",
        messages=[WakuMessageKeyValue(message_hash=one) for one in hashes],
        pagination_cursor=DIGEST if more else None,
    )
    assert response == wanted


def test_an_sds_page() -> None:
    entry = sds_stored_message(b"id", DIGEST, presences([DIGEST]))
    missing = (HistoryEntry(b"gone"), HistoryEntry(b"lost", b"hint"), HistoryEntry(b"x", b""))
    response = SdsMessagesPage.FromString(sds_response(SdsPage(entry, 1, missing, truncated=True)))
    assert [one.entry.message_id for one in response.messages] == ["id"]
    assert response.messages[0].stored.message_hash == DIGEST
    assert [one.message_id for one in response.missing] == ["gone", "lost", "x"]
    assert [one.HasField("retrieval_hint") for one in response.missing] == [False, True, True]
    assert response.truncated
