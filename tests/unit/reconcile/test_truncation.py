"""A session that comes to its limit on differences: both sides must find the same ones."""

import random

import pytest

from reconcile.algorithm.plan import Tuning
from reconcile.ids import SyncId
from reconcile.limits import CodecLimits, SessionLimits
from reconcile.session import Result
from tests.support.reconcile_pair import initiator, join, memory_view, responder, some_ids

Ids = list[SyncId]


def reconciled(ours: Ids, theirs: Ids, limits: SessionLimits, tuning: Tuning) -> list[Result]:
    """Return both results of one session."""
    first = initiator(memory_view(ours), limits=limits, tuning=tuning)
    second = responder(memory_view(theirs), limits=limits, tuning=tuning)
    return list(join(first, second))


def assert_alike(results: list[Result], ours: Ids, theirs: Ids, most: int) -> None:
    """Check that one side sends what the other expects, and that both report truncation."""
    first, second = results
    assert first.to_send == second.to_receive
    assert first.to_receive == second.to_send
    assert first.truncated == second.truncated
    only_ours, only_theirs = set(ours) - set(theirs), set(theirs) - set(ours)
    found = len(first.to_send) + len(first.to_receive)
    assert set(first.to_send) <= only_ours
    assert set(first.to_receive) <= only_theirs
    if first.truncated:
        assert found == most
    else:
        assert found == len(only_ours) + len(only_theirs) < most


LIMITS = [
    CodecLimits(),
    CodecLimits(max_payload_bytes=8_192, max_ranges=64, max_elements=16),
    CodecLimits(max_elements=40),
]
TUNINGS = [Tuning(), Tuning(first_parts=2, last_fingerprints=1, min_parts=1, largest_late_set=8)]


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("payload", LIMITS)
@pytest.mark.parametrize("moments", [1, 7, 500])
@pytest.mark.parametrize("most", [1, 5, 50, 300])
def test_both_sides_stop_at_the_same_differences(
    most: int, moments: int, payload: CodecLimits, tuning: Tuning
) -> None:
    rng = random.Random(most * moments)
    limits = SessionLimits(payload=payload, max_differences=most)
    for mine, yours in ((0, 80), (80, 0), (40, 40), (2, 3)):
        shared = some_ids(rng, rng.choice((0, 100)), moments)
        ours = shared + some_ids(rng, mine, moments)
        theirs = shared + some_ids(rng, yours, moments)
        assert_alike(reconciled(ours, theirs, limits, tuning), ours, theirs, most)


@pytest.mark.parametrize("most", [1, 3, 20])
def test_sessions_go_on_until_all_in_one_nanosecond_is_found(most: int) -> None:
    rng = random.Random(most)
    ids = some_ids(rng, 90, 1)
    ours, theirs = set(ids[:60]), set(ids[30:])
    limits = SessionLimits(max_differences=most)
    for _ in range(60 // most + 1):
        results = reconciled(sorted(ours), sorted(theirs), limits, TUNINGS[1])
        assert_alike(results, sorted(ours), sorted(theirs), most)
        theirs |= set(results[0].to_send)
        ours |= set(results[0].to_receive)
    assert ours == theirs == set(ids)
