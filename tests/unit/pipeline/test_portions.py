"""Work is shared out evenly, in its order, whatever the sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.pipeline.portions import shared_out


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 80))
def test_portions_keep_the_order_and_come_near_their_share(sizes: list[int], share: int) -> None:
    portions = shared_out(sizes, int, share)
    assert [size for portion in portions for size in portion] == sizes
    assert all(portions)
    assert len(portions) <= max(bool(sizes), -(-sum(sizes) // share))
    assert all(sum(portion) <= share + max(portion) for portion in portions)


def test_equal_files_are_shared_out_equally() -> None:
    """A portion that ends where its share is full would have three, three and two of them."""
    assert shared_out([16] * 8, int, 33) == [[16, 16]] * 4
