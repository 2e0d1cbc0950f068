"""Tests of the requests of a reliable channel, with segments settled in any order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from storenode.sds.aio.reliable.events import (
    MessageDelivered,
    MessageDeliveryError,
    MessageSendError,
    MessageSent,
)
from storenode.sds.aio.reliable.requests import SendRequests
from storenode.sds.segments import Segment, SegmentSet

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(COUNTS, st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3))), st.randoms())
def test_a_request_is_sent_and_then_delivered_or_not_once(
    counts: list[int], lost: set[tuple[int, int]], rng: random.Random
) -> None:
    requests = SendRequests()
    steps = []
    for number, count in enumerate(counts):
        # All contents are equal: what belongs together follows from the order alone.
        whole = SegmentSet(bytes(32), count)
        for index in range(count):
            name = f"{number}-{index}"
            added = requests.add(name, Segment(whole, index, b""), unsent=True, unacknowledged=True)
            assert added == f"{number}-0"
            ends = requests.given_up if (number, index) in lost else requests.acknowledged
            steps += [(name, requests.stored), (name, ends), (name, requests.stored)]
    rng.shuffle(steps)
    reported = [event for name, step in steps for event in step(name)]
    for number, count in enumerate(counts):
        mine = [event for event in reported if event.request_id == f"{number}-0"]
        failed = any((number, index) in lost for index in range(count))
        end = MessageDeliveryError if failed else MessageDelivered
        assert [type(each) for each in mine] == [MessageSent, end]
    assert len(requests) == 0


def test_a_request_of_the_last_life_goes_on_under_its_id() -> None:
    # Two of three segments were acknowledged before, and nodes hold all.
    requests = SendRequests()
    whole = SegmentSet(bytes(32), 3)
    for index in range(3):
        requests.add(
            f"m{index}", Segment(whole, index, b""), unsent=False, unacknowledged=index == 1
        )
    requests.loaded()
    assert requests.stored("m1") == []
    assert requests.acknowledged("m1") == [MessageDelivered("m0")]
    assert len(requests) == 0


def test_what_was_given_up_before_is_not_delivered_now() -> None:
    requests = SendRequests()
    whole = SegmentSet(bytes(32), 2)
    requests.add("m0", Segment(whole, 0, b""), unsent=False, unacknowledged=False, given_up=True)
    requests.add("m1", Segment(whole, 1, b""), unsent=False, unacknowledged=True)
    requests.loaded()
    (event,) = requests.acknowledged("m1")
    assert isinstance(event, MessageDeliveryError)
    assert "1 of 2 segments" in event.error


def test_a_refusal_is_reported_once() -> None:
    requests = SendRequests()
    for index in range(2):
        segment = Segment(SegmentSet(bytes(32), 2), index, b"")
        requests.add(f"m{index}", segment, unsent=True, unacknowledged=True)
    assert requests.refused("m1", "too large") == [MessageSendError("m0", "too large")]
    assert requests.refused("m0", "too large") == []
    assert requests.refused("unknown", "too large") == requests.stored("unknown") == []
