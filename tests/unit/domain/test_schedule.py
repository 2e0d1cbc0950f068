"""The schedule of reconciliations: what begins when, with whom, and how failures are met."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from store.domain.ports import PeerAddress, Window
from store.sync.limits import MAX_SESSIONS
from store.sync.schedule import core as schedule
from store.sync.schedule.core import (
    FIRST_WIDE_NS,
    MAX_PARTS,
    Asked,
    BeginSession,
    Effect,
    Kind,
    Refuse,
    RequestWithdrawn,
    Schedule,
    ScheduleConfig,
    ScheduleError,
    ScheduleTick,
    SessionFinished,
    Started,
    WakeAt,
    halves,
)
from storenode.message.limits import NS_PER_S

MINUTE = 60 * NS_PER_S
HOUR = 60 * MINUTE
NOW = 1_800_000_000 * NS_PER_S
PEERS = tuple(PeerAddress("127.0.0.1", port) for port in (1, 2, 3, 4, 5, 6))


def config(peers: tuple[PeerAddress, ...] = PEERS[:3], **changes: object) -> ScheduleConfig:
    values: dict[str, object] = {
        "peers": peers,
        "interval_ns": 5 * MINUTE,
        "range_ns": HOUR,
        "offset_ns": 20 * NS_PER_S,
        "wide_interval_ns": None,
    }
    return ScheduleConfig(**(values | changes))  # type: ignore[arg-type]


def machine(seed: int = 1, **changes: object) -> Schedule:
    return Schedule(config(**changes), random.Random(seed))  # type: ignore[arg-type]


def begun(effects: list[Effect]) -> list[BeginSession]:
    return [effect for effect in effects if isinstance(effect, BeginSession)]


def wake(effects: list[Effect]) -> int:
    (found,) = [effect.time_ns for effect in effects if isinstance(effect, WakeAt)]
    assert found is not None
    return found


def test_the_first_session_begins_at_once_over_the_configured_window() -> None:
    each = machine()
    (begin,) = begun(each.step(0, Started()))
    end = NOW - 20 * NS_PER_S
    assert each.window(NOW, begin) == Window(end - HOUR, end)
    assert begin.kind is Kind.PERIODIC
    assert begin.peer in PEERS[:3]


def test_nothing_begins_before_the_start() -> None:
    assert not begun(machine().step(NOW, ScheduleTick()))


def run(
    each: Schedule, until_ns: int, end: Callable[[BeginSession], SessionFinished]
) -> list[tuple[int, BeginSession]]:
    """Let every session end at once, as ``end`` says; what began when."""
    found: list[tuple[int, BeginSession]] = []
    now, effects = NOW, each.step(NOW, Started())
    while now < until_ns:
        for begin in begun(effects):
            found.append((now, begin))
            effects = each.step(now, end(begin))
        now = max(now + 1, wake(effects))
        effects = each.step(now, ScheduleTick())
    return found


def well(begin: BeginSession) -> SessionFinished:
    return SessionFinished(begin.peer, failed=False)


def test_the_next_session_follows_after_the_interval_give_or_take_a_tenth() -> None:
    for seed in range(50):
        each = machine(seed)
        (first,) = begun(each.step(NOW, Started()))
        due = wake(each.step(NOW, well(first)))
        assert 0.9 * 5 * MINUTE <= due - NOW <= 1.1 * 5 * MINUTE
        assert not begun(each.step(due - 1, ScheduleTick()))
        assert len(begun(each.step(due, ScheduleTick()))) == 1


def test_every_peer_gets_its_turn() -> None:
    found = run(machine(), NOW + 5 * HOUR, well)
    assert {begin.peer for _, begin in found} == set(PEERS[:3])


def test_a_wide_session_covers_everything_on_a_schedule_of_its_own() -> None:
    each = machine(wide_interval_ns=HOUR)
    found = run(each, NOW + 3 * HOUR, well)
    wide = [(now, begin) for now, begin in found if begin.kind is Kind.WIDE]
    assert 3 <= len(wide) <= 4
    assert 30 <= len(found) - len(wide) <= 42
    for now, begin in wide:
        assert each.window(now, begin) == Window(0, now - 20 * NS_PER_S)


def test_a_wide_session_that_failed_is_tried_again_before_its_interval() -> None:
    wide = []

    def end(begin: BeginSession) -> SessionFinished:
        wide.extend([begin] if begin.kind is Kind.WIDE else [])
        return SessionFinished(begin.peer, failed=begin.kind is Kind.WIDE and len(wide) < 3)

    each = machine(peers=PEERS[:1], wide_interval_ns=24 * HOUR)
    found = run(each, NOW + 12 * HOUR, end)
    times = [now for now, begin in found if begin.kind is Kind.WIDE]
    assert len(times) == 3
    assert times[-1] < NOW + 10 * MINUTE


def test_wide_sessions_that_always_fail_are_not_hurried() -> None:
    each = machine(peers=PEERS[:1], wide_interval_ns=HOUR)
    found = run(
        each,
        NOW + 6 * HOUR,
        lambda begin: SessionFinished(begin.peer, failed=begin.kind is Kind.WIDE),
    )
    times = [now for now, begin in found if begin.kind is Kind.WIDE]
    assert 8 <= len(times) <= 16
    assert times[-1] - times[-2] > 0.8 * HOUR
    periodic = [now for now, begin in found if begin.kind is Kind.PERIODIC]
    assert max(later - now for now, later in pairwise(periodic)) < 6 * MINUTE


@pytest.mark.parametrize("kind", [Kind.PERIODIC, Kind.WIDE])
def test_what_a_session_left_over_is_fetched_at_once(kind: Kind) -> None:
    rests = [True, True, False]

    def end(begin: BeginSession) -> SessionFinished:
        left_over = begin.kind is kind and bool(rests) and rests.pop(0)
        return SessionFinished(begin.peer, failed=False, left_over=left_over)

    found = run(machine(peers=PEERS[:1], wide_interval_ns=HOUR), NOW + 4 * MINUTE, end)
    assert len([begin for _, begin in found if begin.kind is kind]) == 3


def test_a_wide_session_that_gave_way_is_tried_again_soon() -> None:
    found = run(
        machine(peers=PEERS[:1], wide_interval_ns=HOUR),
        NOW + 4 * MINUTE,
        lambda begin: SessionFinished(begin.peer, failed=False, aborted=begin.kind is Kind.WIDE),
    )
    times = [now_ns for now_ns, begin in found if begin.kind is Kind.WIDE]
    assert len(times) >= 4
    pauses = {later - sooner for sooner, later in pairwise(times)}
    assert len(pauses) > 1, "two nodes that began together do not do so again and again"
    assert all(0.9 * FIRST_WIDE_NS <= pause <= 1.1 * FIRST_WIDE_NS for pause in pauses)


def test_halves_of_a_window() -> None:
    assert halves(Window(10, 20), 13) == (Window(10, 13), Window(13, 20))
    assert halves(Window(10, 20), 10) == halves(Window(10, 20), 20) == ()


@pytest.mark.parametrize("kind", [Kind.PERIODIC, Kind.WIDE])
@pytest.mark.parametrize("refused", [10, 95, 300])
def test_what_policy_refuses_hides_nothing_for_ever(kind: Kind, refused: int) -> None:
    """Let a session report 10 differences, the oldest first; all but the newest stay."""
    each = machine(peers=PEERS[:2], range_ns=2**62, offset_ns=0, wide_interval_ns=HOUR)
    reached = []

    def end(begin: BeginSession) -> SessionFinished:
        if begin.kind is not kind:
            return SessionFinished(begin.peer, failed=False)
        window = each.window(NOW, begin)
        times = range(window.time_start_ns, window.time_end_ns)
        found = [moment for moment in range(1_000, 1_000 + refused) if moment in times][:10]
        if len(found) < 10:
            reached.append(window.time_end_ns > 1_000 + refused)
            return SessionFinished(begin.peer, failed=False)
        return SessionFinished(begin.peer, failed=False, parts=halves(window, found[5]))

    begun_at = [now_ns for now_ns, begin in run(each, NOW + 20 * MINUTE, end)]
    assert any(reached), "the newest was in a window that was not full"
    assert len(begun_at) < 2_000


def test_parts_of_a_window_are_few_and_wait_for_their_own_peer() -> None:
    each = machine(peers=PEERS[:2])
    (first,) = begun(each.step(NOW, Started()))
    parts = tuple(Window(number, number + 1) for number in range(MAX_PARTS + 9))
    due = wake(each.step(NOW, SessionFinished(first.peer, failed=False, parts=parts)))
    each.check()
    (second,) = begun(each.step(due, ScheduleTick()))
    assert (second.peer, second.part) == (first.peer, parts[0])
    assert each.window(NOW, second) == parts[0]
    due = wake(each.step(due, SessionFinished(second.peer, failed=True)))
    (third,) = begun(each.step(due, ScheduleTick()))
    assert (third.peer != first.peer, third.part) == (True, None), "it does not wait for one"


def test_a_range_of_everything_needs_no_wide_sessions() -> None:
    each = machine(range_ns=None, wide_interval_ns=HOUR)
    (begin,) = begun(each.step(NOW, Started()))
    assert each.window(NOW, begin).time_start_ns == 0
    assert wake(each.step(NOW, well(begin))) > NOW + 4 * MINUTE


def test_an_interval_of_zero_switches_off_all_but_what_is_asked_for() -> None:
    each = machine(interval_ns=0, wide_interval_ns=HOUR)
    effects = each.step(NOW, Started())
    assert effects == [WakeAt(None)]
    (begin,) = begun(each.step(NOW, Asked(7, None)))
    assert begin.asked == Asked(7, None)


def test_a_failing_peer_rests_longer_each_time_and_the_others_go_on() -> None:
    bad = PEERS[0]
    found = run(
        machine(peers=PEERS[:2]),
        NOW + 2 * HOUR,
        lambda begin: SessionFinished(begin.peer, failed=begin.peer == bad),
    )
    failures = [now for now, begin in found if begin.peer == bad]
    rests = [later - earlier for earlier, later in pairwise(failures)]
    assert rests[0] >= 0.9 * schedule.FIRST_BACKOFF_NS
    assert max(rests) >= 4 * MINUTE
    assert len(found) - len(failures) >= 15


def test_another_peer_is_tried_soon_after_a_failure() -> None:
    each = machine(peers=PEERS[:2])
    (first,) = begun(each.step(NOW, Started()))
    due = wake(each.step(NOW, SessionFinished(first.peer, failed=True)))
    assert due <= NOW + schedule.RETRY_NS
    (second,) = begun(each.step(due, ScheduleTick()))
    assert second.peer != first.peer


def test_a_success_ends_the_backoff() -> None:
    each = machine(peers=PEERS[:1])
    (begin,) = begun(each.step(NOW, Started()))
    now = NOW
    for _ in range(5):
        now = wake(each.step(now, SessionFinished(PEERS[0], failed=True)))
        (begin,) = begun(each.step(now, ScheduleTick()))
    assert now > NOW + MINUTE
    each.step(now, SessionFinished(begin.peer, failed=False))
    (begin,) = begun(each.step(now, Asked(1, None)))
    due = wake(each.step(now, SessionFinished(begin.peer, failed=True)))
    assert due - now <= 1.1 * schedule.FIRST_BACKOFF_NS


def test_never_two_sessions_with_one_peer() -> None:
    each = machine(peers=PEERS[:1])
    (begin,) = begun(each.step(NOW, Started()))
    assert not begun(each.step(NOW + HOUR, ScheduleTick()))
    assert not begun(each.step(NOW + HOUR, Asked(1, PEERS[0])))
    after = begun(each.step(NOW + HOUR, SessionFinished(begin.peer, failed=False)))
    assert [each.asked for each in after] == [Asked(1, PEERS[0])]


def test_at_most_a_few_sessions_in_all() -> None:
    each = machine(peers=PEERS)
    each.step(NOW, Started())
    started = 1
    for number, peer in enumerate(PEERS):
        started += len(begun(each.step(NOW, Asked(number, peer))))
        each.check()
    assert started == MAX_SESSIONS == each.running


def test_a_request_names_its_window() -> None:
    each = machine(interval_ns=0)
    (begin,) = begun(each.step(NOW, Asked(3, PEERS[1], 5, 9)))
    assert begin == BeginSession(PEERS[1], Kind.ASKED, Asked(3, PEERS[1], 5, 9))
    assert each.window(NOW, begin) == Window(5, 9)
    (other,) = begun(each.step(NOW, Asked(4, PEERS[0], time_start_ns=5)))
    assert each.window(NOW, other) == Window(5, NOW - 20 * NS_PER_S)


def test_a_clock_near_the_epoch_gives_no_negative_window() -> None:
    each = machine()
    (begin,) = begun(each.step(NOW, Started()))
    assert each.window(NS_PER_S, begin) == Window(0, 0)


def test_a_request_does_not_wait_for_a_backoff_and_avoids_failing_peers() -> None:
    each = machine(peers=PEERS[:2], interval_ns=0)
    each.step(NOW, Asked(1, PEERS[0]))
    each.step(NOW, SessionFinished(PEERS[0], failed=True))
    for number in range(2, 12):
        (begin,) = begun(each.step(NOW, Asked(number, None)))
        assert begin.peer == PEERS[1]
        each.step(NOW, SessionFinished(begin.peer, failed=False))
    (begin,) = begun(each.step(NOW, Asked(12, PEERS[0])))
    assert begin.peer == PEERS[0]


def test_what_cannot_be_served_is_refused_by_name() -> None:
    (refusal, _) = machine(peers=()).step(NOW, Asked(1, None))
    assert refusal == Refuse(1, "this node has no peers: start it with --peer HOST:PORT")
    (refusal, _) = machine(peers=PEERS[:1]).step(NOW, Asked(2, PEERS[4]))
    assert isinstance(refusal, Refuse)
    assert "127.0.0.1:5 is none of" in refusal.reason
    assert "127.0.0.1:1" in refusal.reason
    each = machine(peers=PEERS[:1], interval_ns=0)
    refused = []
    for number in range(schedule.MAX_WAITING + 3):
        refused += [
            effect for effect in each.step(NOW, Asked(number, None)) if isinstance(effect, Refuse)
        ]
        each.check()
    assert [each.number for each in refused] == [schedule.MAX_WAITING + 1, schedule.MAX_WAITING + 2]


def test_a_request_that_was_withdrawn_does_not_begin() -> None:
    each = machine(peers=PEERS[:1], interval_ns=0)
    each.step(NOW, Asked(1, None))
    each.step(NOW, Asked(2, None))
    each.step(NOW, RequestWithdrawn(2))
    assert not begun(each.step(NOW, SessionFinished(PEERS[0], failed=False)))


def test_inputs_out_of_place_change_nothing() -> None:
    each = machine(peers=PEERS[:1])
    each.step(NOW, Started())
    with pytest.raises(ScheduleError):
        each.step(NOW, Started())
    with pytest.raises(ScheduleError):
        each.step(NOW, SessionFinished(PEERS[3], failed=False))
    assert each.running == 1


def test_random_inputs_keep_the_invariants() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        each = machine(seed, peers=PEERS, wide_interval_ns=7 * MINUTE)
        now, under_way = NOW, []
        effects = each.step(now, Started())
        for number in range(300):
            under_way += [begin.peer for begin in begun(effects)]
            assert len(set(under_way)) == len(under_way) == each.running
            each.check()
            now += rng.randrange(MINUTE)
            if under_way and rng.random() < 0.5:
                peer = under_way.pop(rng.randrange(len(under_way)))
                effects = each.step(now, SessionFinished(peer, failed=rng.random() < 0.3))
            elif rng.random() < 0.3:
                effects = each.step(now, Asked(number, rng.choice([None, *PEERS])))
            else:
                effects = each.step(now, ScheduleTick())
