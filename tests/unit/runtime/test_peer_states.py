"""The states of peers after sessions that ended in different ways."""

from dataclasses import replace

import pytest

from store.domain.ports import PeerAddress
from store.observe.metrics import Metrics
from store.runtime.peer_states import PeerStates
from store.sync.session.report import Equality, Hidden, SessionReport, SyncEnding, SyncRole, Window

PEER = PeerAddress("127.0.0.1", 7420, "b.example")


def done(ending: SyncEnding, error: str = "", peer: PeerAddress | None = PEER) -> SessionReport:
    """Return the report of a session; ``peer`` None: the peer began it."""
    return SessionReport(
        SyncRole.INITIATOR if peer else SyncRole.RESPONDER,
        0,
        "" if peer else "b.example",
        peer=peer,
        ending=ending,
        error=error,
        in_sync=ending is SyncEnding.DONE,
        round_trips=1,
    )


def test_a_lost_tie_ends_failures_and_is_no_report() -> None:
    book = PeerStates((PEER,), Metrics("1.0"), lambda: 1)
    failed = done(SyncEnding.FAILED, "it could not be reached")
    book.session_ended(failed)
    (state,) = book.states()
    assert (state.failures, state.last_error) == (1, "it could not be reached")
    book.session_began(PEER)
    book.session_ended(done(SyncEnding.ABORTED))
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
    book.session_ended(done(SyncEnding.FAILED))
    assert value("storenode_peer_failures") == 1
    assert value("storenode_peer_differences", window="whole") is None
    whole = done(SyncEnding.DONE)
    book.session_ended(replace(whole, missing_here=7))
    assert value("storenode_peer_failures") == 0
    assert value("storenode_peer_differences", window="whole") == 0
    book.session_ended(replace(whole, missing_here=7, stored=2, in_sync=False))
    assert value("storenode_peer_differences", window="whole") == 5
    book.session_ended(replace(whole, window=Window(time_start_ns=1)))
    assert value("storenode_peer_differences", window="recent") == 0
    assert value("storenode_peer_differences", window="whole") == 5


def test_the_own_database_is_not_blamed_on_a_peer() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)
    for failures, ending in ((0, SyncEnding.UNAVAILABLE), (1, SyncEnding.FAILED)):
        book.session_ended(done(ending, "it broke"))
        (state,) = book.states()
        assert (state.failures, state.last_error) == (failures, "it broke")
    book.session_ended(done(SyncEnding.UNAVAILABLE))
    assert metrics.registry.get_sample_value("storenode_peer_failures", {"peer": str(PEER)}) == 1


def test_a_session_that_the_peer_begins_ends_a_refusal() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)

    def refusals() -> float | None:
        return metrics.registry.get_sample_value("storenode_peer_refusals", {"peer": str(PEER)})

    for _ in range(3):
        book.session_ended(done(SyncEnding.REFUSED))
    assert refusals() == 3
    for failed in (True, False):
        book.session_ended(done(SyncEnding.FAILED if failed else SyncEnding.DONE, peer=None))
        assert refusals() == (3 if failed else 0)


def test_how_stores_were_compared_is_counted_and_forged_sets_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)
    whole = done(SyncEnding.DONE, peer=None)
    hidden = Hidden(131, first_ns=5, last_ns=9, hashes=(b"\1" * 32, b"\2" * 32))
    reports = [
        replace(whole, equality=Equality.XOR),
        replace(whole, equality=Equality.KEYED),
        replace(whole, equality=Equality.PARTLY_KEYED, hidden=hidden),
        replace(whole, ending=SyncEnding.FAILED, equality=Equality.KEYED, hidden=hidden),
    ]
    for report in reports:
        book.session_ended(report)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    for equality in ("xor", "keyed", "partly_keyed"):
        assert value("storenode_sync_comparisons_total", equality=equality) == 1
    assert value("storenode_sync_modes_total", mode="base") == 3
    assert value("storenode_sync_hidden_differences_total") == 262
    forged = [record for record in caplog.records if record.msg == "fingerprint_forged"]
    assert len(forged) == 2
    assert (forged[0].name, forged[0].levelname) == ("store.sync", "ERROR")
    assert vars(forged[0])["fields"] == {
        "peer": "b.example",
        "differences": 131,
        "first_timestamp": 5,
        "last_timestamp": 9,
        "hashes": ["01" * 32, "02" * 32],
    }


def test_messages_are_counted_while_their_transfer_goes_on() -> None:
    metrics, report = Metrics("1.0"), done(SyncEnding.DONE)
    book, labels = PeerStates((PEER,), metrics, lambda: 1), {"direction": "received"}
    for report.stored in (2, 5):
        book.session_progressed(report)
        stored = metrics.transfer_messages.labels(**labels, outcome="stored")
        assert stored._value.get() == report.stored
