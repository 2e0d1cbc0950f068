"""A rate limit by epochs lets no more through than it says, whatever the clock does."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.sds.epochs import Epochs, RateLimit

S = 10**9


@given(
    st.integers(1, 5),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(-30, 60), st.integers(0, 8)), max_size=40),
)
def test_no_epoch_has_more_than_its_messages(
    messages: int, epoch_s: int, steps: list[tuple[int, int]]
) -> None:
    now_s = latest_s = 1_000
    epochs = Epochs(RateLimit(messages, epoch_s), now_s * S, used_up=True)
    sent: Counter[int] = Counter()
    for forward_s, wanted in steps:
        now_s = max(now_s + forward_s, 0)
        latest_s = max(latest_s, now_s)
        epochs.left(now_s * S)
        for _ in range(wanted):
            if epochs.left(now_s * S) > 0:
                epochs.spend(1)
                sent[latest_s // epoch_s] += 1
    assert all(count <= messages for count in sent.values())
    assert not sent[1_000 // epoch_s]


def test_a_message_waits_for_the_next_epoch() -> None:
    epochs = Epochs(RateLimit(2, 600), 1_250 * S, used_up=False)
    assert epochs.left(1_250 * S) == 2
    epochs.spend(2)
    assert epochs.left(1_799 * S) == 0
    assert epochs.wait_s(1_799 * S) == 1
    assert epochs.left(1_800 * S) == 2
    assert epochs.left(100 * S) == 2


def test_a_limit_that_lets_nothing_through_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        RateLimit(0)
    with pytest.raises(ValueError, match="epochs of a second"):
        RateLimit(1, 0)
