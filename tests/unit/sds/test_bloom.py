"""Filters against a set of positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.sds.bloom import FilterShape, RollingFilter, filter_of, holds

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
