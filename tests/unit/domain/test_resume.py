"""Store resume: the gap, its pages, peers that fail, and what a restart goes on from."""

import random

import pytest

from store.domain.ports import PeerAddress
from store.sync.resume.core import (
    LONGEST_FETCH_NS,
    SHORTEST_GAP_NS,
    Advance,
    Begun,
    Effect,
    Fetch,
    FetchEnded,
    Finished,
    Leave,
    PageStored,
    Proceed,
    Resume,
    ResumeConfig,
    ResumeError,
    Tick,
    WakeAt,
)
from storenode.message.limits import NS_PER_S

NOW = 1_800_000_000 * NS_PER_S
GAP = 3_600 * NS_PER_S
SLACK = 20 * NS_PER_S
PEERS = tuple(PeerAddress("127.0.0.1", port) for port in (1, 2, 3))


def machine(peers: tuple[PeerAddress, ...] = PEERS, seed: int = 1) -> Resume:
    return Resume(ResumeConfig(peers=peers, slack_ns=SLACK), random.Random(seed))


def fetch_of(effects: list[Effect]) -> Fetch:
    """The fetch that is all that is wanted."""
    (fetch,) = effects
    assert isinstance(fetch, Fetch)
    return fetch


def begun(each: Resume, last_online_ns: int = NOW - GAP, **more: int) -> Fetch:
    return fetch_of(each.step(NOW, Begun(NOW, last_online_ns, **more)))


def test_a_gap_is_fetched_from_one_peer_and_ends_the_resume() -> None:
    each = machine()
    fetch = begun(each)
    assert (fetch.time_start_ns, fetch.time_end_ns, fetch.cursor) == (NOW - GAP - SLACK, NOW, b"")
    assert each.step(NOW, PageStored(b"c", NOW - GAP // 2, 10, 7)) == [Advance(NOW - GAP // 2)]
    assert each.step(NOW, FetchEnded()) == [Advance(NOW), Proceed(), Finished()]
    assert not each.progress.running
    assert (each.progress.messages, each.progress.stored) == (10, 7)


@pytest.mark.parametrize(
    ("peers", "last_online_ns"),
    [
        ((), NOW - GAP),
        (PEERS, 0),
        (PEERS, NOW - SHORTEST_GAP_NS + 1),
        (PEERS, NOW + GAP),
    ],
    ids=["no peers", "never online", "a short gap", "a clock that was set back"],
)
def test_without_a_gap_that_can_be_filled_reconciliation_begins_at_once(
    peers: tuple[PeerAddress, ...], last_online_ns: int
) -> None:
    assert machine(peers).step(NOW, Begun(NOW, last_online_ns)) == [Proceed(), Finished()]


def test_without_reconciliations_the_shortest_gap_is_fetched() -> None:
    each = Resume(ResumeConfig(peers=PEERS, slack_ns=SLACK, shortest_ns=0), random.Random(1))
    fetch = begun(each, NOW - 1)
    assert (fetch.time_start_ns, fetch.time_end_ns) == (NOW - 1 - SLACK, NOW)


def test_nothing_behind_the_horizon_is_fetched() -> None:
    assert begun(machine(), horizon_ns=NOW - GAP // 2).time_start_ns == NOW - GAP // 2


def test_a_broken_scan_goes_on_at_the_next_peer_at_the_time_reached() -> None:
    each = machine()
    first = begun(each)
    each.step(NOW, PageStored(b"here", NOW - GAP // 2, 1, 1))
    second = fetch_of(each.step(NOW, FetchEnded("gone")))
    assert second.peer != first.peer
    assert (second.cursor, second.time_start_ns) == (b"", NOW - GAP // 2), "they are a peer's own"
    assert each.progress.error == "gone"


def test_a_broken_scan_goes_on_at_the_only_peer_after_the_last_page() -> None:
    each = machine(PEERS[:1])
    first = begun(each)
    each.step(NOW, PageStored(b"here", NOW - GAP // 2, 1, 1))
    _, pause = each.step(NOW, FetchEnded("gone"))
    assert isinstance(pause, WakeAt)
    (second,) = each.step(pause.time_ns, Tick())
    assert second == Fetch(PEERS[0], first.time_start_ns, NOW, b"here")


def test_a_cursor_that_is_not_served_is_replaced_by_the_time_reached() -> None:
    each = machine()
    begun(each)
    each.step(NOW, PageStored(b"here", NOW - GAP // 2, 1, 1))
    fetch = fetch_of(each.step(NOW, FetchEnded("unknown cursor", lost_place=True)))
    assert (fetch.cursor, fetch.time_start_ns) == (b"", NOW - GAP // 2)


def test_when_all_peers_fail_reconciliation_begins_and_the_gap_is_tried_again() -> None:
    each = machine()
    each.step(NOW, Begun(NOW, NOW - GAP))
    pauses = []
    now, proceeded = NOW, 0
    for _ in range(30):
        effects = each.step(now, FetchEnded("down"))
        proceeded += effects.count(Proceed())
        wakes = [effect for effect in effects if isinstance(effect, WakeAt)]
        if wakes:
            pauses.append(wakes[0].time_ns - now)
            assert each.step(wakes[0].time_ns - 1, Tick()) == wakes
            now = wakes[0].time_ns
            fetch_of(each.step(now, Tick()))
    assert proceeded == 1
    assert len(pauses) == 10
    assert pauses[0] <= 2 * NS_PER_S < 30 * NS_PER_S <= pauses[-1] <= 60 * NS_PER_S
    assert each.progress.running


def test_peers_that_send_a_page_and_fail_hold_up_nothing() -> None:
    each = machine()
    effects = each.step(NOW, Begun(NOW, NOW - GAP))
    reached = NOW - GAP
    for _ in PEERS:
        assert any(isinstance(effect, Fetch) for effect in effects)
        reached += 1
        each.step(NOW, PageStored(b"here", reached, 1, 1))
        effects = each.step(NOW, FetchEnded("gone"))
    proceed, pause = effects
    assert proceed == Proceed()
    assert isinstance(pause, WakeAt)
    assert pause.time_ns > NOW
    each.check()


def test_a_peer_whose_pages_never_end_holds_up_nothing() -> None:
    each = machine()
    first = begun(each)
    page = PageStored(b"here", NOW - GAP - SLACK, 2_000, 0)
    assert each.step(NOW + LONGEST_FETCH_NS - 1, page) == []
    late = NOW + LONGEST_FETCH_NS
    assert each.step(late, page) == [Proceed(), Leave()]
    second = fetch_of(each.step(late, FetchEnded("it takes too long")))
    assert second.peer != first.peer
    assert each.step(late + LONGEST_FETCH_NS - 1, page) == [], "the next one has as long"
    assert each.step(late + LONGEST_FETCH_NS, page) == [Leave()]
    each.check()


def test_what_is_persisted_never_says_more_than_has_come() -> None:
    rng = random.Random(5)
    for seed in range(50):
        each = machine(seed=seed)
        effects = each.step(NOW, Begun(NOW, NOW - GAP))
        reached = NOW - GAP - SLACK
        for _ in range(40):
            if rng.random() < 0.6 and any(isinstance(effect, Fetch) for effect in effects):
                reached = rng.randrange(reached, NOW)
                for effect in each.step(NOW, PageStored(b"c", reached, 1, 1)):
                    assert not isinstance(effect, Advance) or effect.last_online_ns <= reached
            elif any(isinstance(effect, Fetch) for effect in effects):
                effects = each.step(NOW, FetchEnded("broken", lost_place=rng.random() < 0.5))
            else:
                effects = each.step(NOW + 10**15, Tick())


def test_inputs_out_of_place_are_refused() -> None:
    each = machine()
    for given in (PageStored(b"", 1, 1, 1), FetchEnded()):
        with pytest.raises(ResumeError):
            each.step(NOW, given)
    each.step(NOW, Begun(NOW, NOW - GAP))
    with pytest.raises(ResumeError):
        each.step(NOW, Begun(NOW, NOW - GAP))
    assert each.step(NOW, Tick()) == []


def test_a_peer_that_was_off_itself_is_not_the_last_that_is_asked() -> None:
    each = machine()
    first = begun(each)
    early = NOW - GAP + NS_PER_S
    each.step(NOW, PageStored(b"early", early, 5, 5))
    second = fetch_of(each.step(NOW, FetchEnded()))
    assert (second.cursor, second.time_start_ns, second.peer != first.peer) == (b"", early, True)
    assert each.progress.running, "the gap is not taken for filled yet"
    each.step(NOW, PageStored(b"late", NOW - NS_PER_S, 7, 7))
    assert each.step(NOW, FetchEnded()) == [Advance(NOW), Proceed(), Finished()]
    assert each.progress.peers == (str(first.peer), str(second.peer))
    each.check()


@pytest.mark.parametrize("error", ["", "down"])
def test_each_other_peer_is_asked_once_where_one_has_come_to_the_end(error: str) -> None:
    each = machine()
    (fetch,) = each.step(NOW, Begun(NOW, NOW - GAP))
    asked = []
    ended = FetchEnded()
    for _ in PEERS:
        assert isinstance(fetch, Fetch)
        asked.append(fetch.peer)
        each.check()
        fetch, *rest = each.step(NOW, ended)
        ended = FetchEnded(error)
    assert sorted(asked, key=str) == sorted(PEERS, key=str)
    assert [fetch, *rest] == [Advance(NOW), Proceed(), Finished()], "the rest is for the wide sync"
    assert (each.progress.peers, each.progress.error) == ((), "")
