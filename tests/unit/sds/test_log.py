"""The log against a sorted list, the set of IDs against a set, and filters against positions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds import log as log_module
from storenode.sds.bloom import FilterShape, RollingFilter, filter_of, holds
from storenode.sds.ids import IdSet
from storenode.sds.log import MessageLog
from storenode.sds.pages import LogEntry, PageError, pack_page, unpack_page
from tests.unit.sds.worlds import make_rng

SALT = bytes(16)
HEX = "0123456789abcdef" * 4

ids = st.one_of(
    st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
    st.sampled_from([HEX, HEX.upper(), HEX[:-1] + "g", HEX[1:] + "é"]),
)
entries = st.builds(
    LogEntry,
    st.integers(0, 2**64 - 1),
    ids,
    st.sampled_from(["", "alice", "bob"]),
    st.none() | st.binary(max_size=256),
)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "OPEN_ENTRIES", 8)
    monkeypatch.setattr(log_module, "PAGE_ENTRIES", 4)


@given(st.lists(entries, max_size=30))
def test_a_page_reads_as_it_was_written(given_entries: list[LogEntry]) -> None:
    page = pack_page(given_entries)
    assert unpack_page(page) == given_entries


@given(st.lists(entries, min_size=1, max_size=5), st.data())
def test_a_page_that_is_cut_or_longer_is_refused(
    given_entries: list[LogEntry], data: st.DataObject
) -> None:
    page = pack_page(given_entries)
    cut = data.draw(st.integers(0, len(page) - 1))
    for damaged in (page[:cut], page + b"x"):
        with pytest.raises(PageError):
            unpack_page(damaged)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("seed", range(6))
def test_random_insertions_match_a_sorted_list(seed: int) -> None:
    rng, log = make_rng(seed), MessageLog(SALT)
    expected: list[tuple[int, str]] = []
    gone = 0
    for number in range(300):
        near_end = rng.random() < 0.7
        lamport = number * 3 + rng.randrange(8) if near_end else rng.randrange(900)
        message_id = f"{rng.randrange(10**9)}"
        horizon = gone > 0 and (lamport, message_id) < expected[gone]
        if message_id in log or horizon:
            continue
        expected.append((lamport, message_id))
        expected.sort()
        after = log.insert(LogEntry(lamport, message_id, "s", b"hint"))
        place = expected.index((lamport, message_id))
        assert after == len(expected) - 1 - place
        if rng.random() < 0.03:
            pages = log.prune(keep=40)
            gone += sum(len(unpack_page(page)) for page in pages)
        log.check()
        assert [entry.key for entry in log.entries()] == expected[gone:]
        key = rng.choice(expected)
        count = rng.randrange(1, 12)
        before = expected[gone : expected.index(key)][-count:]
        assert [entry.key for entry in log.preceding(key, count)] == before
        assert all(message_id in log for _, message_id in expected)
    assert log.pruned == gone


@pytest.mark.usefixtures("small_pages")
def test_a_pruned_message_stays_met() -> None:
    log = MessageLog(SALT)
    for number in range(100):
        log.insert(LogEntry(number, f"id{number}", "s"))
    pages = log.prune(keep=20)
    assert [e.message_id for page in pages for e in unpack_page(page)] == [
        f"id{number}" for number in range(log.pruned)
    ]
    assert 20 <= len(log) == 100 - log.pruned < 24
    assert all(f"id{number}" in log for number in range(100))
    assert "id100" not in log
    assert log.prune(keep=20) == []


@pytest.mark.usefixtures("small_pages")
def test_entries_far_ahead_do_not_keep_others_from_being_inserted() -> None:
    log = MessageLog(SALT)
    for number in range(50):
        log.insert(LogEntry(2**63 + number, f"far{number}", "s"))
    for number in range(50):
        log.insert(LogEntry(number, f"near{number}", "s"))
        assert log.preceding((number + 1, ""), 1)[0].message_id == f"near{number}"
    log.check()


@given(st.lists(st.integers(0, 3_000)))
def test_the_set_of_ids_matches_a_set(numbers: list[int]) -> None:
    found, expected = IdSet(SALT), set()
    for number in numbers:
        found.add(str(number))
        expected.add(number)
    assert len(found) == len(expected)
    assert all((str(number) in found) == (number in expected) for number in range(0, 3_000, 7))


@settings(max_examples=3, deadline=None)
@given(st.binary(min_size=16, max_size=16))
def test_the_set_of_ids_grows_and_is_made_again(salt: bytes) -> None:
    found = IdSet(salt)
    for number in range(2_000):
        found.add(f"id{number}")
    found.check()
    again = IdSet.from_digests(salt, found.digests())
    again.check()
    assert len(again) == 2_000
    assert all(f"id{number}" in again for number in range(2_000))
    assert not any(f"id{number}" in again for number in range(2_000, 2_500))


def test_a_digest_that_spans_two_others_is_not_found() -> None:
    found = IdSet(SALT)
    found.add("one")
    found.add("two")
    joined = found.digests()
    shifted = IdSet.from_digests(SALT, joined[-8:] + joined[:-8])
    assert "one" not in shifted
    assert "two" not in shifted


@pytest.mark.parametrize("damage", [b"x", b"x" * 17])
def test_parts_of_digests_are_refused(damage: bytes) -> None:
    with pytest.raises(ValueError, match="whole digests"):
        IdSet.from_digests(SALT, damage)
    with pytest.raises(ValueError, match="salt"):
        IdSet(damage)


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
    again = RollingFilter.from_pairs(shape, rolling.pairs())
    assert (again.encode(), len(again)) == (encoded, len(kept))


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


def test_pairs_of_another_shape_are_refused() -> None:
    large, small = FilterShape(100), FilterShape(10)
    rolling = RollingFilter(large)
    for number in range(20):
        rolling.add(str(number))
    with pytest.raises(ValueError, match="shape"):
        RollingFilter.from_pairs(small, rolling.pairs())
