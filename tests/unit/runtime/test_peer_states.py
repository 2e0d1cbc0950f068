"""The states of peers after sessions that ended in different ways."""

from dataclasses import replace

from structlog.testing import capture_logs

from store.domain.ports import PeerAddress
from store.observe.metrics import Metrics
from store.runtime.peer_states import PeerStates
from store.sync.peers import Window
from store.sync.schedule import SyncDone
from store.sync.session.report import Equality, Hidden, SyncEnding, SyncOutcome, SyncRole

PEER = PeerAddress("127.0.0.1", 7420, "b.example")


def done(ending: SyncEnding, error: str = "") -> SyncDone:
    outcome = SyncOutcome(
        in_sync=ending is SyncEnding.DONE,
        round_trips=1,
        bytes_sent=0,
        bytes_received=0,
        messages_sent=0,
        messages_received=0,
        seconds=0.1,
        error=error,
        ending=ending,
    )
    return SyncDone(PEER, Window(), outcome)


def test_a_lost_tie_ends_failures_and_is_no_report() -> None:
    book = PeerStates((PEER,), Metrics("1.0"), lambda: 1)
    failed = done(SyncEnding.FAILED, "it could not be reached")
    book.ended(failed)
    (state,) = book.states()
    assert (state.failures, state.last_error) == (1, "it could not be reached")
    book.begun(PEER)
    book.ended(done(SyncEnding.ABORTED))
    (state,) = book.states()
    assert (state.failures, state.last_error) == (0, "")
    assert state.last is failed
    assert not state.in_session


def test_differences_left_are_counted_by_the_window() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)
    label = {"peer": str(PEER)}

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {**label, **labels})

    assert value("storenode_peer_failures") == 0
    book.ended(done(SyncEnding.FAILED))
    assert value("storenode_peer_failures") == 1
    assert value("storenode_peer_differences", window="whole") is None
    whole = done(SyncEnding.DONE)
    book.ended(replace(whole, outcome=replace(whole.outcome, differences=7, in_sync=True)))
    assert value("storenode_peer_failures") == 0
    assert value("storenode_peer_differences", window="whole") == 0
    short = replace(whole.outcome, differences=7, messages_received=2, in_sync=False)
    book.ended(replace(whole, outcome=short))
    assert value("storenode_peer_differences", window="whole") == 5
    book.ended(replace(whole, window=Window(time_start_ns=1)))
    assert value("storenode_peer_differences", window="recent") == 0
    assert value("storenode_peer_differences", window="whole") == 5


def test_the_own_database_is_not_blamed_on_a_peer() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)
    for failures, ending in ((0, SyncEnding.UNAVAILABLE), (1, SyncEnding.FAILED)):
        book.ended(done(ending, "it broke"))
        (state,) = book.states()
        assert (state.failures, state.last_error) == (failures, "it broke")
    book.ended(done(SyncEnding.UNAVAILABLE))
    assert metrics.registry.get_sample_value("storenode_peer_failures", {"peer": str(PEER)}) == 1


def test_a_session_that_the_peer_begins_ends_a_refusal() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)

    def refusals() -> float | None:
        return metrics.registry.get_sample_value("storenode_peer_refusals", {"peer": str(PEER)})

    for _ in range(3):
        book.ended(done(SyncEnding.REFUSED))
    assert refusals() == 3
    outcome = done(SyncEnding.DONE).outcome
    for failed in (True, False):
        ended = replace(outcome, ending=SyncEnding.FAILED) if failed else outcome
        book.session_ended(SyncRole.RESPONDER, "b.example", "store-b", ended)
        assert refusals() == (3 if failed else 0)


def test_how_stores_were_compared_is_counted_and_forged_sets_are_logged() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)
    whole = done(SyncEnding.DONE).outcome
    hidden = Hidden(131, first_ns=5, last_ns=9, hashes=(b"\1" * 32, b"\2" * 32))
    outcomes = [
        replace(whole, equality=Equality.XOR),
        replace(whole, equality=Equality.KEYED),
        replace(whole, equality=Equality.PARTLY_KEYED, hidden=hidden),
        replace(whole, ending=SyncEnding.FAILED, equality=Equality.KEYED, hidden=hidden),
    ]
    with capture_logs() as lines:
        for outcome in outcomes:
            book.session_ended(SyncRole.RESPONDER, "b.example", "store-b", outcome)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    for equality in ("xor", "keyed", "partly_keyed"):
        assert value("storenode_sync_comparisons_total", equality=equality) == 1
    assert value("storenode_sync_modes_total", mode="base") == 3
    assert value("storenode_sync_hidden_differences_total") == 262
    forged = [line for line in lines if line["event"] == "fingerprint_forged"]
    assert len(forged) == 2
    assert forged[0] == {
        "component": "store.sync",
        "event": "fingerprint_forged",
        "log_level": "error",
        "peer": "b.example",
        "differences": 131,
        "first_timestamp": 5,
        "last_timestamp": 9,
        "hashes": ["01" * 32, "02" * 32],
    }
