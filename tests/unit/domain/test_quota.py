from hypothesis import given
from hypothesis import strategies as st

from store.domain.quota import Account, Bucket, CallKind, ClientLimits, Exceeded, Quota
from storenode.message.limits import NS_PER_S

CALL, STREAM = CallKind.CALL, CallKind.STREAM
TIGHT = ClientLimits(requests_per_s=2, messages_per_s=10, received_bytes_per_s=100, calls=3)


def open_account(quota: Quota, key: str = "a", now_ns: int = 0) -> Account:
    return quota.account(key, TIGHT, now_ns, named=False)


def test_a_bucket_holds_one_second_and_fills_at_its_rate() -> None:
    bucket = Bucket(10)
    assert [bucket.take(1, 0) for _ in range(10)] == [0] * 10
    assert bucket.take(1, 0) == NS_PER_S // 10
    assert bucket.take(1, NS_PER_S // 10) == 0
    assert bucket.take(5, NS_PER_S // 10) == NS_PER_S // 2


def test_an_amount_above_the_burst_passes_when_the_bucket_is_full_and_is_paid_back() -> None:
    bucket = Bucket(10)
    assert bucket.take(50, 0) == 0
    assert bucket.take(1, 4 * NS_PER_S) > 0
    assert bucket.take(1, 4 * NS_PER_S + NS_PER_S // 10) == 0


def test_a_refusal_takes_nothing_and_names_the_earliest_retry() -> None:
    bucket = Bucket(3)
    assert bucket.take(3, 0) == 0
    wait_ns = bucket.take(2, 0)
    assert bucket.take(2, wait_ns - 1) == 1
    assert bucket.take(2, wait_ns) == 0


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 3 * NS_PER_S), st.integers(1, 3000)), max_size=60),
)
def test_a_bucket_never_gives_more_than_its_rate(rate: int, steps: list[tuple[int, int]]) -> None:
    bucket, now_ns, given_out, largest = Bucket(rate), 0, 0, 0
    for pause_ns, amount in steps:
        now_ns += pause_ns
        if bucket.take(amount, now_ns) == 0:
            given_out += amount
            largest = max(largest, amount)
        bucket.check()
        assert given_out <= rate * now_ns / NS_PER_S + rate + largest
    assert bucket.is_full(now_ns + 10_000 * NS_PER_S)


def test_calls_and_streams_are_counted_apart() -> None:
    quota = Quota()
    account = quota.account("a", ClientLimits(calls=1, streams=1), 0, named=False)
    assert account.begin(CALL, 0) is None
    assert account.begin(STREAM, 0) is None
    assert account.begin(CALL, 0) == Exceeded("concurrent calls of one client", 1)
    account.end(CALL)
    assert account.begin(CALL, 0) is None
    assert account.begin(STREAM, 0) == Exceeded("concurrent streams of one client", 1)


def test_the_node_bounds_the_calls_of_all() -> None:
    quota = Quota(max_calls=2, max_streams=1)
    accounts = [open_account(quota, name) for name in "abc"]
    assert accounts[0].begin(CALL, 0) is None
    assert accounts[1].begin(CALL, 0) is None
    assert accounts[2].begin(CALL, 0) == Exceeded("concurrent calls of this node", 2)
    accounts[0].end(CALL)
    assert accounts[2].begin(CALL, 0) is None
    assert quota.running[CALL] == 2


def test_requests_messages_and_bytes_have_rates_of_their_own() -> None:
    account = open_account(Quota())
    assert account.request(100, 0) is None
    assert account.request(1, 0) == Exceeded("received bytes per second", 100, NS_PER_S // 100)
    assert account.request(0, 0) == Exceeded("requests per second", 2, NS_PER_S // 2)
    assert account.request(0, 0, counted=True) is None
    assert account.messages(10, 0) is None
    assert account.messages(1, 0) == Exceeded("messages per second", 10, NS_PER_S // 10)


def test_no_rate_means_no_limit() -> None:
    limits = ClientLimits(requests_per_s=None, messages_per_s=None, received_bytes_per_s=None)
    account = Quota().account("a", limits, 0, named=False)
    assert account.request(2**60, 0) is None
    assert account.messages(2**60, 0) is None


def test_sentences_name_the_limit_its_value_and_the_retry() -> None:
    waiting = Exceeded("messages per second", 1000, 1_500_001).sentence
    assert waiting == "limit of 1,000 messages per second is used up: retry in 2 ms"
    assert "3 concurrent calls" in Exceeded("concurrent calls of one client", 3).sentence


def test_strangers_are_bounded_and_share_what_is_left() -> None:
    quota = Quota(max_strangers=2)
    first, second = open_account(quota, "1"), open_account(quota, "2")
    assert first.begin(CALL, 0) is None
    assert second.begin(CALL, 0) is None
    third, fourth = open_account(quota, "3"), open_account(quota, "4")
    assert quota.accounts == 2
    assert third.begin(CALL, 0) is None
    assert open_account(quota, "5") is third
    assert fourth.begin(CALL, 0) is None
    assert open_account(quota, "5").begin(CALL, 0) is not None


def test_a_stranger_at_rest_makes_room() -> None:
    quota = Quota(max_strangers=1)
    first = open_account(quota, "1")
    assert first.begin(CALL, 0) is None
    first.end(CALL)
    later_ns = 10 * NS_PER_S
    assert open_account(quota, "2", later_ns).begin(CALL, later_ns) is None
    assert open_account(quota, "1", later_ns) is not first
    quota.check()


def test_strangers_do_not_touch_named_clients() -> None:
    quota = Quota(max_strangers=1)
    for name in range(5):
        open_account(quota, str(name)).begin(CALL, 0)
    named = quota.account("0", TIGHT, 0, named=True)
    assert quota.account("0", TIGHT, 0, named=True) is named
    assert named.begin(CALL, 0) is None
    assert named.begin(CALL, 0) is None


def test_new_limits_hold_at_once_and_calls_stay_counted() -> None:
    quota = Quota()
    account = open_account(quota)
    assert account.begin(CALL, 0) is None
    again = quota.account("a", ClientLimits(calls=1), 0, named=False)
    assert again is account
    assert again.begin(CALL, 0) == Exceeded("concurrent calls of one client", 1)
    again.end(CALL)
    assert again.begin(CALL, 0) is None


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
def test_counts_agree_with_a_list_of_calls(
    steps: list[tuple[str, int, CallKind, int]],
) -> None:
    quota, now_ns = Quota(max_strangers=3, max_calls=4, max_streams=3), 0
    running: list[tuple[Account, CallKind]] = []
    for action, who, kind, pause_ns in steps:
        now_ns += pause_ns
        account = open_account(quota, str(who), now_ns)
        if action == "begin" and account.begin(kind, now_ns) is None:
            running.append((account, kind))
        elif action == "end" and running:
            ended, its_kind = running.pop(0)
            ended.end(its_kind)
        elif action == "messages":
            account.messages(3, now_ns)
        quota.check()
        for counted in (CALL, STREAM):
            assert quota.running[counted] == sum(one[1] is counted for one in running)
        for busy, _ in running:
            assert not busy.at_rest(now_ns)
