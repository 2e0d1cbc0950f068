"""The memory of a channel: its log and its filters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.sds.bloom import FilterShape, RollingFilter, filter_of, holds
from storenode.sds.log import LogEntry, MessageLog
from tests.unit.sds.worlds import make_rng


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_match_a_sorted_list(seed: int) -> None:
    rng, log = make_rng(seed), MessageLog(bytes(16), kept=40)
    came: list[tuple[int, str]] = []
    here: list[tuple[int, str]] = []
    for number in range(1_500):
        lamport = number * 3 + rng.randrange(8) if rng.random() < 0.7 else rng.randrange(4_500)
        key = lamport, f"{rng.randrange(10**9)}"
        assert log.insert(LogEntry(*key, "s", b"hint")) == sum(each > key for each in here)
        came.append(key)
        here = sorted(came[-len(list(log.entries())) :])
        if number % 10 == 9:
            gone = rng.choice(here)
            came.remove(gone)
            here.remove(gone)
            log.remove(gone)
            assert gone[1] not in log
        assert [entry.key for entry in log.entries()] == here
        key, count = rng.choice(came), rng.randrange(1, 12)
        before = [each for each in here if each < key][-count:]
        assert [entry.key for entry in log.preceding(key, count)] == before
    log.check()
    assert len(log) == len(came) > len(here) >= 40
    assert all(message_id in log for _, message_id in came)
    assert "other" not in log
    log.remove(came[0])
    assert came[0][1] not in log


def test_entries_far_ahead_do_not_keep_others_out_of_memory() -> None:
    log = MessageLog(bytes(16), kept=40)
    for number in range(1_000):
        log.insert(LogEntry(2**63 + number, f"far{number}", "s"))
    for number in range(50):
        log.insert(LogEntry(number, f"near{number}", "s"))
        assert log.preceding((number + 1, ""), 1)[0].message_id == f"near{number}"
    log.check()


shapes = st.builds(FilterShape, st.integers(1, 60), st.sampled_from([0.5, 0.1, 0.01, 1e-6]))


def bit(encoded: bytes, position: int) -> int:
    """Return bit of the words as the layout describes them, one step at a time."""
    word = int.from_bytes(encoded[position // 64 * 8 : position // 64 * 8 + 8], "big")
    return word >> (position % 64) & 1


@given(shapes, st.lists(st.text(max_size=12), unique=True, max_size=150), st.text(max_size=12))
def test_a_rolling_filter_holds_the_newest(
    shape: FilterShape, inserted: list[str], other: str
) -> None:
    rolling = RollingFilter(shape)
    kept: list[str] = []
    for item in inserted:
        if len(kept) == shape.capacity:
            kept = kept[len(kept) - shape.capacity // 2 :]
        kept.append(item)
        rolling.add(item)
        assert len(rolling) == len(kept)
    positions = {position for item in kept for position in shape.positions(item)}
    encoded = rolling.encode()
    assert [bit(encoded, n) for n in range(shape.bits)] == [
        n in positions for n in range(shape.bits)
    ]
    assert encoded == filter_of(shape, kept)
    assert (other in rolling) == (set(shape.positions(other)) <= positions)
    assert holds(encoded, shape.probe(other)) == (other in rolling)


def test_the_error_probability_follows_from_fill_and_hashes() -> None:
    shape = FilterShape(1_000, 0.001)
    full = filter_of(shape, [str(n) for n in range(1_000)])
    assert shape.false_positive_rate(bytes(shape.size_bytes)) == 0
    assert 0.0003 < shape.false_positive_rate(full) < 0.0015
    wrong = sum(holds(full, shape.probe(f"other{n}")) for n in range(20_000)) / 20_000
    assert wrong == pytest.approx(shape.false_positive_rate(full), rel=0.8)
    assert shape.false_positive_rate(b"\xff" * shape.size_bytes) == 1


@pytest.mark.parametrize(
    ("capacity", "rate"), [(0, 0.1), (-1, 0.1), (10**6 + 1, 0.1), (1, 0), (1, 1.0), (1, -0.1)]
)
def test_a_shape_that_cannot_be_is_refused(capacity: int, rate: float) -> None:
    with pytest.raises(ValueError, match=r"filter|rate"):
        FilterShape(capacity, rate)
