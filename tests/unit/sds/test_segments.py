"""Contents in segments, against naive readings: a join in order, and sets as plain dictionaries."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.limits import (
    MAX_ATTEMPTS,
    MAX_CLAIMS,
    MAX_PLACES,
    MAX_SEGMENTS,
    MAX_SETS,
    MAX_SETS_PER_SENDER,
)
from storenode.sds.pages import Key
from storenode.sds.reassembly import Complete, Dropped, Reassembly
from storenode.sds.segments import (
    Revision,
    Segment,
    SegmentError,
    SegmentSet,
    join,
    read_segment,
    split,
)
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessage, SegmentMessageProto

DAY_MS = 86_400_000
REVISIONS = st.sampled_from(Revision)


@given(st.binary(max_size=5_000), st.integers(256, 700), REVISIONS, st.randoms())
def test_parts_in_any_order_and_twice_are_the_content(
    content: bytes, segment_bytes: int, revision: Revision, dice: random.Random
) -> None:
    encoded = split(content, segment_bytes, revision)
    log = {(number, "id"): data for number, data in enumerate(encoded + encoded)}
    reassembly = Reassembly(DAY_MS)
    found: list[bytes | None] = []
    for place in dice.sample(list(log), len(log)):
        complete = reassembly.add(0, "alice", read_segment(log[place]), place)
        reassembly.check()
        if complete is not None:
            (places, *_) = complete.attempts()
            found.append(join(complete.whole, [read_segment(log[each]).part for each in places]))
    # The second copies are a set of their own, or claims that were not needed.
    assert found[0] == content
    assert all(each == content for each in found)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_within_bounds(data: bytes) -> None:
    try:
        segment = read_segment(data)
    except SegmentError:
        return
    assert len(segment.whole.content_hash) == 32
    assert 0 <= segment.index < segment.whole.count <= MAX_SEGMENTS


def published(**fields: Any) -> SegmentMessageProto:  # noqa: ANN401 - as of the message
    return SegmentMessageProto(**{"entire_message_hash": bytes(32), **fields})


def of_nim(**fields: Any) -> SegmentMessage:  # noqa: ANN401 - as of the message
    return SegmentMessage(original_payload_hash=bytes(32), data_segment_count=1, **fields)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\x7f", "no segment"),
        (b"", "0 bytes, not 32"),
        (published(), "number 0 of 0"),
        (published(entire_message_hash=bytes(31), data_segment_count=1), "31 bytes"),
        (published(data_segment_count=2, data_segment_index=2), "number 2 of 2"),
        (published(data_segment_count=256), "number 0 of 256"),
        (published(data_segment_count=1, is_parity=True), "parity"),
        (of_nim(segment_payload=b"12"), "content has 0 bytes"),
        (of_nim(original_payload_length=2**32 - 1), "content has 4294967295 bytes"),
    ],
)
def test_what_lies_about_its_numbers_is_refused(
    data: bytes | SegmentMessage | SegmentMessageProto, why: str
) -> None:
    encoded = data if isinstance(data, bytes) else data.SerializeToString()
    with pytest.raises(SegmentError, match=why):
        read_segment(encoded)


def test_a_content_too_large_for_its_segments_is_refused() -> None:
    assert len(split(bytes(256 * MAX_SEGMENTS), 256, Revision.PUBLISHED)) == MAX_SEGMENTS
    with pytest.raises(ValueError, match="65280 fit into 255 segments"):
        split(bytes(256 * MAX_SEGMENTS + 1), 256, Revision.PUBLISHED)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3_000),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(1, 3),
        st.integers(0, 2),
    ),
    max_size=120,
)


@settings(max_examples=60)
@given(STEPS)
def test_sets_are_those_of_a_naive_reading(steps: list[tuple[int, str, int, int, int]]) -> None:
    """Sets by what they have in common; complete with one place for each index, dropped by age."""
    patience_ms, now_ms = 10_000, 0
    reassembly = Reassembly(patience_ms)
    naive: dict[tuple[str, SegmentSet], tuple[int, dict[int, list[Key]]]] = {}
    for number, (later_ms, sender, hashed, count, index) in enumerate(steps):
        now_ms += later_ms
        if index >= count:
            continue
        whole, place = SegmentSet(bytes([hashed]) * 32, count), (number, "id")
        found = reassembly.add(now_ms, sender, Segment(whole, index, b""), place)
        changed_ms, places = naive.pop((sender, whole), (now_ms, {}))
        claims = places.setdefault(index, [])
        if len(claims) < MAX_CLAIMS:
            claims.insert(0, place)
            changed_ms = now_ms
        if set(places) == set(range(count)):
            wanted = tuple(tuple(places[each]) for each in range(count))
            assert found == Complete(sender, whole, wanted)
        else:
            assert found is None
            naive[sender, whole] = changed_ms, places
        old = {key for key, (at_ms, _) in naive.items() if now_ms - at_ms >= patience_ms}
        assert {(each.sender_id, each.whole) for each in reassembly.sweep(now_ms)} == old
        naive = {key: each for key, each in naive.items() if key not in old}
        reassembly.check()
        assert len(reassembly) == len(naive)


def test_one_sender_cannot_push_out_the_sets_of_others() -> None:
    reassembly = Reassembly(DAY_MS)
    honest = SegmentSet(bytes(32), 2)
    reassembly.add(0, "honest", Segment(honest, 0, b""), (0, "id"))
    for number in range(MAX_SETS * 2):
        flood = SegmentSet(number.to_bytes(32), MAX_SEGMENTS)
        reassembly.add(0, "hostile", Segment(flood, 0, b""), (number, "flood"))
        reassembly.sweep(0)
        assert len(reassembly) <= MAX_SETS_PER_SENDER + 1
    assert reassembly.add(0, "honest", Segment(honest, 1, b""), (1, "id")) is not None


def test_sets_of_many_invented_senders_are_bounded() -> None:
    reassembly = Reassembly(DAY_MS)
    for number in range(MAX_PLACES + 2_000):
        whole = SegmentSet((number // 200).to_bytes(32), MAX_SEGMENTS)
        segment = Segment(whole, number % 200, b"")
        reassembly.add(0, f"sender {number // 200 % 500}", segment, (number, "id"))
        reassembly.sweep(0)
        assert reassembly.places <= MAX_PLACES
    assert len(reassembly) <= MAX_SETS
    reassembly.check()


def test_forged_segments_that_come_first_cost_a_few_attempts() -> None:
    """The genuine segments come last, one for each index that was taken."""
    content = bytes(range(256)) * 4
    genuine = split(content, 256, Revision.PUBLISHED)
    log: dict[Key, bytes] = {(number, "id"): data for number, data in enumerate(genuine)}
    forged = SegmentMessageProto.FromString(genuine[0])
    forged.payload = b"forged"
    log[99, "id"] = forged.SerializeToString()
    reassembly = Reassembly(DAY_MS)
    found = None
    for place in [(99, "id"), (1, "id"), (2, "id"), (3, "id")]:
        found = reassembly.add(0, "alice", read_segment(log[place]), place)
    assert found is not None
    (places,) = found.attempts()
    assert join(found.whole, [read_segment(log[each]).part for each in places]) is None
    assert reassembly.put_back(0, found, 1) is None
    reassembly.check()
    again = reassembly.add(0, "alice", read_segment(log[0, "id"]), (0, "id"))
    assert again is not None
    first = next(again.attempts())
    assert join(again.whole, [read_segment(log[each]).part for each in first]) == content


def test_a_content_that_never_has_its_hash_is_given_up() -> None:
    reassembly = Reassembly(DAY_MS)
    whole = SegmentSet(bytes(32), 6)
    attempts = 0
    dropped = None
    for number in range(6 * MAX_CLAIMS):
        segment = Segment(whole, number % 6, b"")
        complete = reassembly.add(0, "hostile", segment, (number, "id"))
        if complete is not None:
            made = len(list(complete.attempts()))
            attempts += made
            dropped = dropped or reassembly.put_back(0, complete, made)
            if dropped is not None:
                break
    assert attempts == MAX_ATTEMPTS
    assert dropped == Dropped("hostile", whole, 6)
    assert len(reassembly) == reassembly.places == 0
