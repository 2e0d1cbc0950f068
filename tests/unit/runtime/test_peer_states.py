"""The states of peers after sessions that ended in different ways."""

from dataclasses import replace

from structlog.testing import capture_logs

from store.domain.ports import (
    Equality,
    Hidden,
    PeerAddress,
    PeerState,
    SyncDone,
    SyncEnding,
    SyncOutcome,
    SyncRole,
    Window,
)
from store.observe.metrics import Metrics
from store.runtime.peer_states import PeerStates

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


class Book:
    """The states of one peer, and the metrics of them."""

    def __init__(self) -> None:
        self.metrics = Metrics("1.0")
        self.states = PeerStates((PEER,), self.metrics, lambda: 1)

    def ended(self, ending: SyncEnding, error: str = "") -> PeerState:
        """Note a session that this node began, and return the state after it."""
        self.states.ended(done(ending, error))
        (state,) = self.states.states()
        return state

    def value(self, name: str, **labels: str) -> float | None:
        """Return a metric of the peer."""
        return self.count(name, peer=str(PEER), **labels)

    def count(self, name: str, **labels: str) -> float | None:
        """Return a metric."""
        return self.metrics.registry.get_sample_value(f"storenode_{name}", labels)


def test_failures_are_those_of_sessions_with_the_peer() -> None:
    book = Book()
    assert book.value("peer_failures") == 0
    failed = book.ended(SyncEnding.FAILED, "it could not be reached")
    assert (failed.failures, failed.last_error) == (1, "it could not be reached")
    last = failed.last
    book.states.begun(PEER)
    # A lost tie ends failures and is no report; the own database is not blamed on a peer.
    state = book.ended(SyncEnding.ABORTED)
    assert (state.failures, state.last_error, state.last, state.in_session) == (0, "", last, False)
    for failures, ending in ((0, SyncEnding.UNAVAILABLE), (1, SyncEnding.FAILED)):
        state = book.ended(ending, "it broke")
        assert (state.failures, state.last_error) == (failures, "it broke")
    book.ended(SyncEnding.UNAVAILABLE)
    assert book.value("peer_failures") == 1


def test_differences_left_are_counted_by_the_window() -> None:
    book, whole = Book(), done(SyncEnding.DONE)
    assert book.value("peer_differences", window="whole") is None
    recent = replace(whole, window=Window(time_start_ns=1))
    for in_sync, each, window, left in (
        (True, whole, "whole", 0),
        (False, whole, "whole", 5),
        (True, recent, "recent", 0),
    ):
        outcome = replace(each.outcome, differences=7, messages_received=2, in_sync=in_sync)
        book.states.ended(replace(each, outcome=outcome))
        assert book.value("peer_differences", window=window) == left
    assert book.value("peer_differences", window="whole") == 5


def test_a_session_that_the_peer_begins_ends_a_refusal() -> None:
    book, outcome = Book(), done(SyncEnding.DONE).outcome
    for _ in range(3):
        book.ended(SyncEnding.REFUSED)
    for ending, refusals in ((SyncEnding.FAILED, 3), (SyncEnding.DONE, 0)):
        ended = replace(outcome, ending=ending)
        book.states.session_ended(SyncRole.RESPONDER, "b.example", "store-b", ended)
        assert book.value("peer_refusals") == refusals


def test_how_stores_were_compared_is_counted_and_forged_sets_are_logged() -> None:
    book, whole = Book(), done(SyncEnding.DONE).outcome
    hidden = Hidden(131, first_ns=5, last_ns=9, hashes=(b"\1" * 32, b"\2" * 32))
    with capture_logs() as lines:
        for outcome in (
            replace(whole, equality=Equality.XOR),
            replace(whole, equality=Equality.KEYED),
            replace(whole, equality=Equality.PARTLY_KEYED, hidden=hidden),
            replace(whole, ending=SyncEnding.FAILED, equality=Equality.KEYED, hidden=hidden),
        ):
            book.states.session_ended(SyncRole.RESPONDER, "b.example", "store-b", outcome)
    for equality in ("xor", "keyed", "partly_keyed"):
        assert book.count("sync_comparisons_total", equality=equality) == 1
    assert book.count("sync_modes_total", mode="base") == 3
    assert book.count("sync_hidden_differences_total") == 262
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
