from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.quota import Account, Bucket, CallKind, ClientLimits, Quota, QuotaExceededError
from storenode.message.limits import NS_PER_S

CALL, STREAM = CallKind.CALL, CallKind.STREAM
TIGHT = ClientLimits(2, 10, 100, concurrent_calls=3)


def open_account(quota: Quota, key: str = "a", now_ns: int = 0) -> Account:
    return quota.account(key, TIGHT, now_ns, named=False)


def wait_ns(bucket: Bucket, amount: int, now_ns: int) -> int:
    """Return the time to wait; 0: the tokens were taken."""
    try:
        bucket.take(amount, now_ns)
    except QuotaExceededError as exceeded:
        return exceeded.retry_after_ns
    return 0


@contextmanager
def refused(limit: str, wait_ns: int = 0) -> Iterator[None]:
    with pytest.raises(QuotaExceededError, match=f"^limit of {limit} is ") as caught:
        yield
    assert caught.value.retry_after_ns == wait_ns


def test_an_amount_above_the_burst_passes_when_the_bucket_is_full_and_is_paid_back() -> None:
    bucket = Bucket(10, "apples")
    assert wait_ns(bucket, 50, 0) == 0
    assert wait_ns(bucket, 1, 4 * NS_PER_S) > 0
    assert wait_ns(bucket, 1, 4 * NS_PER_S + NS_PER_S // 10) == 0


def test_a_refusal_takes_nothing_and_names_the_earliest_retry() -> None:
    bucket = Bucket(3, "apples")
    assert wait_ns(bucket, 3, 0) == 0
    pause_ns = wait_ns(bucket, 2, 0)
    assert wait_ns(bucket, 2, pause_ns - 1) == 1
    assert wait_ns(bucket, 2, pause_ns) == 0


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 3 * NS_PER_S), st.integers(1, 3000)), max_size=60),
)
def test_a_bucket_never_gives_more_than_its_rate(rate: int, steps: list[tuple[int, int]]) -> None:
    bucket, now_ns, given_out, largest = Bucket(rate, "apples"), 0, 0, 0
    for pause_ns, amount in steps:
        now_ns += pause_ns
        if wait_ns(bucket, amount, now_ns) == 0:
            given_out += amount
            largest = max(largest, amount)
        bucket.check()
        assert given_out <= rate * now_ns / NS_PER_S + rate + largest
    assert bucket.is_full(now_ns + 10_000 * NS_PER_S)


def test_the_node_bounds_the_calls_of_all() -> None:
    quota = Quota(max_calls=2, max_streams=1)
    accounts = [open_account(quota, name) for name in "abc"]
    accounts[0].begin(CALL, 0)
    accounts[1].begin(CALL, 0)
    with refused("2 concurrent calls of this node"):
        accounts[2].begin(CALL, 0)
    accounts[0].end(CALL)
    accounts[2].begin(CALL, 0)
    assert quota.running[CALL] == 2


def test_strangers_are_bounded_and_share_what_is_left() -> None:
    quota = Quota(max_strangers=2)
    first, second = open_account(quota, "1"), open_account(quota, "2")
    first.begin(CALL, 0)
    second.begin(CALL, 0)
    third, fourth = open_account(quota, "3"), open_account(quota, "4")
    quota.check()
    third.begin(CALL, 0)
    assert open_account(quota, "5") is third
    fourth.begin(CALL, 0)
    with refused("2 requests per second", NS_PER_S // 2):
        open_account(quota, "5").begin(CALL, 0)


def test_a_stranger_at_rest_makes_room() -> None:
    quota = Quota(max_strangers=1)
    first = open_account(quota, "1")
    first.begin(CALL, 0)
    first.end(CALL)
    later_ns = 10 * NS_PER_S
    open_account(quota, "2", later_ns).begin(CALL, later_ns)
    assert open_account(quota, "1", later_ns) is not first
    quota.check()


def test_new_limits_hold_at_once_and_calls_stay_counted() -> None:
    quota = Quota()
    account = open_account(quota)
    account.begin(CALL, 0)
    again = quota.account("a", ClientLimits(concurrent_calls=1), 0, named=False)
    assert again is account
    with refused("1 concurrent calls of one client"):
        again.begin(CALL, 0)
    again.end(CALL)
    again.begin(CALL, 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "messages"]),
            st.integers(0, 5),
            st.sampled_from([CALL, STREAM]),
            st.integers(0, NS_PER_S),
        ),
        max_size=80,
    )
)
def test_counts_agree_with_a_list_of_calls(steps: list[tuple[str, int, CallKind, int]]) -> None:
    quota, now_ns = Quota(max_strangers=3, max_calls=4, max_streams=3), 0
    running: list[tuple[Account, CallKind]] = []
    for action, who, kind, pause_ns in steps:
        now_ns += pause_ns
        account = open_account(quota, str(who), now_ns)
        if action == "begin":
            with suppress(QuotaExceededError):
                account.begin(kind, now_ns)
                running.append((account, kind))
        elif action == "end" and running:
            ended, its_kind = running.pop(0)
            ended.end(its_kind)
        elif action == "messages":
            with suppress(QuotaExceededError):
                account.messages.take(3, now_ns)
        quota.check()
        for counted in (CALL, STREAM):
            assert quota.running[counted] == sum(one[1] is counted for one in running)
        for busy, _ in running:
            assert not busy.at_rest(now_ns)


def test_strangers_do_not_touch_named_clients() -> None:
    quota = Quota(max_strangers=1)
    for name in range(5):
        with suppress(QuotaExceededError):
            open_account(quota, str(name)).begin(CALL, 0)
    named = quota.account("0", TIGHT, 0, named=True)
    assert quota.account("0", TIGHT, 0, named=True) is named
    named.begin(CALL, 0)
    named.begin(CALL, 0)
