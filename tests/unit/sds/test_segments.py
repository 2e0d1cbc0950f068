"""Contents in segments, against naive readings: a join in order, and sets as plain dictionaries."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.limits import (
    MAX_ATTEMPTS,
    MAX_CANDIDATES,
    MAX_LINKED_ATTEMPTS,
    MAX_PLACES,
    MAX_SEGMENTS,
    MAX_SETS,
)
from storenode.sds.log import Key
from storenode.sds.segments import (
    Reassembly,
    Revision,
    Segment,
    SegmentError,
    SegmentSet,
    SetName,
    join,
    read_segment,
    split,
)
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessage, SegmentMessageProto

DAY_MS = 86_400_000
REVISIONS = st.sampled_from(Revision)


@given(st.integers(0, 5_000), st.integers(256, 700), REVISIONS, st.randoms())
def test_parts_in_any_order_and_twice_are_the_content(
    length: int, segment_bytes: int, revision: Revision, rng: random.Random
) -> None:
    content = rng.randbytes(length)
    encoded = split(content, segment_bytes, revision)
    sized = encoded if revision is Revision.NIM else [read_segment(each).part for each in encoded]
    assert all(len(each) <= segment_bytes for each in sized)
    log = {(number, "id"): data for number, data in enumerate(encoded + encoded)}
    reassembly = Reassembly(DAY_MS)
    found: list[bytes | None] = []
    for place in rng.sample(list(log), len(log)):
        name = reassembly.add(0, "alice", read_segment(log[place]), place)
        reassembly.check()
        if name is not None:
            places = next(reassembly.attempts(name))
            found.append(join(name[1], [read_segment(log[each]).part for each in places]))
            reassembly.remove(name)
    # The second copies are a set of their own, or candidates that were not needed.
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
    # Sets by what they have in common; tried once every index has a place, dropped by age.
    patience_ms, now_ms = 10_000, 0
    reassembly = Reassembly(patience_ms)
    naive: dict[SetName, tuple[int, dict[int, list[Key]]]] = {}
    for number, (later_ms, sender, hashed, count, index) in enumerate(steps):
        now_ms += later_ms
        if index >= count:
            continue
        name = sender, SegmentSet(bytes([hashed]) * 32, count)
        found = reassembly.add(now_ms, sender, Segment(name[1], index, b""), (number, "id"))
        _, places = naive.get(name, (now_ms, {}))
        places.setdefault(index, []).append((number, "id"))
        naive[name] = now_ms, places
        if set(places) == set(range(count)):
            assert found == name
            newest = tuple(places[each][-1] for each in range(count))
            assert next(reassembly.attempts(name)) == newest
            assert reassembly.remove(name) == count
            del naive[name]
        else:
            assert found is None
        old = {key for key, (at_ms, _) in naive.items() if now_ms - at_ms >= patience_ms}
        assert {name for name, _ in reassembly.sweep(now_ms)} == old
        naive = {key: each for key, each in naive.items() if key not in old}
        reassembly.check()
        assert len(reassembly.sets) == len(naive)


def test_one_sender_cannot_push_out_the_sets_of_others() -> None:
    reassembly = Reassembly(DAY_MS)
    honest = SegmentSet(bytes(32), 2)
    reassembly.add(0, "honest", Segment(honest, 0, b""), (0, "id"))
    for number in range(MAX_SETS * 2):
        flood = SegmentSet(number.to_bytes(32), MAX_SEGMENTS)
        reassembly.add(0, "hostile", Segment(flood, 0, b""), (number, "flood"))
        reassembly.sweep(0)
        assert len(reassembly.sets) <= MAX_SETS
    assert reassembly.add(0, "honest", Segment(honest, 1, b""), (1, "id")) is not None


def test_sets_of_many_invented_senders_are_bounded() -> None:
    reassembly = Reassembly(DAY_MS)
    for number in range(MAX_PLACES + 2_000):
        whole = SegmentSet((number // 200).to_bytes(32), MAX_SEGMENTS)
        segment = Segment(whole, number % 200, b"")
        reassembly.add(0, f"sender {number // 200 % 500}", segment, (number, "id"))
        reassembly.sweep(0)
        assert reassembly.places <= MAX_PLACES
    assert len(reassembly.sets) <= MAX_SETS
    reassembly.check()


def test_forged_sets_of_a_sender_do_not_push_out_its_content() -> None:
    reassembly = Reassembly(DAY_MS)
    genuine = SegmentSet(bytes(32), 3)
    for index in range(2):
        reassembly.add(0, "alice", Segment(genuine, index, b""), (index, "id"))
    for number in range(MAX_SETS * 2):
        forged = SegmentSet(number.to_bytes(32, "little"), number % 250 + 2, number)
        reassembly.add(0, "alice", Segment(forged, 0, b""), (number, "forged"))
        reassembly.sweep(0)
        reassembly.check()
    assert reassembly.add(0, "alice", Segment(genuine, 2, b""), (2, "id")) == ("alice", genuine)


def test_candidates_and_attempts_are_bounded() -> None:
    # Two thousand forged segments that name each other: every attempt seems right.
    reassembly = Reassembly(DAY_MS)
    name = "hostile", SegmentSet(bytes(32), 2)
    attempts = 0
    for number in range(1_000):
        first, last = f"a{number}", f"b{number}"
        for index, key, causes in ((0, first, []), (1, last, [first])):
            added = reassembly.add(
                0, "hostile", Segment(name[1], index, b""), (number, key), causes=causes
            )
            if added is not None:
                attempts += len(list(reassembly.attempts(name)))
        reassembly.check()
        assert reassembly.places <= 2 * MAX_CANDIDATES
    assert attempts == MAX_LINKED_ATTEMPTS + MAX_ATTEMPTS
    assert reassembly.is_exhausted(name)
