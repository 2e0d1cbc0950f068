"""The registry of sessions: every case of its table, and two registries that begin at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from reconcile.session import Role
from store.domain.places import FREE, Caller, Places, Standing
from store.sync.errors import Fault, SessionFaultError
from store.sync.limits import MAX_NOTED_PEERS, SLOW_RECONCILE_NS, STALLED_NS, WAIT_PATIENCE_NS
from store.sync.session.registry import PeerSession, Sessions, SessionState
from store.sync.session.report import SessionReport

NOW = 10**18
MINUTE_NS = 60 * 10**9
IDS = SyncIds.of([(5, bytes(32))])
NONE = SyncIds.empty()
ABORTED, BUSY = "another session with this peer", "busy: "
SELF, SAME_STORE = "this is the node itself", "both nodes work on one database"


class _Registry(Sessions):
    """The registry of a node in the middle of the alphabet; ``stopped``: sessions that gave way."""

    def __init__(self, node_id: str = "m", store_id: str = "store-m") -> None:
        self.stopped: list[PeerSession] = []
        self.faults: list[Fault] = []
        super().__init__(node_id, store_id, self._note)

    def _note(self, session: PeerSession, fault: Fault, _: str) -> None:
        self.stopped.append(session)
        self.faults.append(fault)

    def begin_with(
        self, now_ns: int, address: str, node_id: str = "", store_id: str = ""
    ) -> PeerSession:
        """Open a session with a peer to call, as far as it is known."""
        return self.begin(now_ns, address, SessionReport(Role.INITIATOR, now_ns, node_id, store_id))

    def accept_from(self, now_ns: int, caller: Caller, session_id: str) -> PeerSession:
        """Open a session that a peer begins."""
        report = SessionReport(Role.RESPONDER, now_ns, caller.node_id, caller.store_id)
        return self.accept(now_ns, caller, session_id, report)


def refused(attempt: Callable[[], object]) -> str:
    """Return how the sentence of a refusal begins."""
    with pytest.raises(SessionFaultError) as refusal:
        attempt()
    sentence = str(refusal.value)
    expected = Fault.GAVE_WAY if sentence.startswith(ABORTED) else Fault.REFUSED
    assert refusal.value.fault is expected
    return next(each for each in (ABORTED, BUSY, SELF, SAME_STORE) if sentence.startswith(each))


def is_unknown(sessions: Sessions, node: str, session_id: str, now_ns: int = NOW) -> bool:
    """Return True if a node cannot claim a session."""
    try:
        sessions.claim(now_ns, node, session_id)
    except SessionFaultError as error:
        return error.fault is Fault.UNKNOWN
    return False


def came(sessions: _Registry, node: str, session_id: str = "1") -> PeerSession:
    """Accept a session that the node began."""
    return sessions.accept_from(NOW, Caller(node, f"store-{node}"), session_id)


def called(sessions: _Registry, node: str, *, known: bool = True) -> PeerSession:
    """Begin a session; ``known``: the callee has named itself."""
    session = sessions.begin_with(NOW, f"{node}:1")
    if known:
        sessions.identify(NOW, session, node, f"store-{node}")
    return session


def waiting(sessions: _Registry, node: str) -> PeerSession:
    session = came(sessions, node)
    sessions.reconciled(NOW, session, IDS, NONE)
    assert session.state is SessionState.WAITING
    return session


def claimed(sessions: _Registry, node: str) -> PeerSession:
    session = waiting(sessions, node)
    assert sessions.claim(NOW, node, "1") is session
    return session


def transferring(sessions: _Registry, node: str) -> PeerSession:
    session = called(sessions, node)
    sessions.reconciled(NOW, session, IDS, NONE)
    assert session.state is SessionState.TRANSFERRING
    return session


Make = Callable[[_Registry, str], PeerSession]
OLD: dict[str, Make] = {
    "own": called,
    "own, unknown": partial(called, known=False),
    "own transfer": transferring,
    "reconciling": came,
    "waiting": waiting,
    "transfer": claimed,
}


@pytest.mark.parametrize(
    ("old", "node", "wins"),
    [
        ("own", "a", "new"),
        ("own", "z", "old"),
        ("own, unknown", "a", "both"),
        ("own, unknown", "z", "both"),
        ("own transfer", "a", "old"),
        ("reconciling", "a", "old"),
        ("reconciling", "z", "old"),
        ("waiting", "a", "new"),
        ("waiting", "z", "new"),
        ("transfer", "a", "old"),
    ],
)
def test_a_peer_begins_while_there_is_a_session(old: str, node: str, wins: str) -> None:
    sessions = _Registry()
    before = OLD[old](sessions, node)
    state = before.state
    caller = Caller(node, f"store-{node}")
    if wins == "old":
        assert refused(lambda: sessions.accept_from(NOW, caller, "2")) == ABORTED
        assert list(sessions) == [before]
        assert before.state is state
    else:
        session = sessions.accept_from(NOW, caller, "2")
        assert sessions.stopped == ([before] if wins == "new" else [])
        assert (before.state is SessionState.ENDED) is (wins == "new")
        assert session.state is SessionState.RECONCILING
        assert not session.own
    sessions.check()


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("node", ["a", "z"])
def test_this_node_begins_nothing_while_there_is_a_session(old: str, node: str) -> None:
    sessions = _Registry()
    before = OLD[old](sessions, node)
    if before.node_id:
        assert refused(lambda: sessions.begin_with(NOW, "elsewhere:1", node)) == ABORTED
        assert refused(lambda: sessions.begin_with(NOW, "b:1", "b", f"store-{node}")) == ABORTED
    if before.own:
        assert refused(lambda: sessions.begin_with(NOW, f"{node}:1")) == ABORTED
    assert list(sessions) == [before]


@pytest.mark.parametrize(
    ("old", "node", "wins"),
    [
        ("reconciling", "a", "old"),
        ("reconciling", "z", "new"),
        ("waiting", "z", "old"),
        ("transfer", "z", "old"),
        ("own", "z", "old"),
        ("own transfer", "z", "old"),
    ],
)
def test_a_callee_says_who_it_is_and_there_is_a_session(old: str, node: str, wins: str) -> None:
    sessions = _Registry()
    before = OLD[old](sessions, node)
    new = sessions.begin_with(NOW, "another-address:1")
    store = f"store-{node}"
    if wins == "old":
        assert refused(lambda: sessions.identify(NOW, new, node, store)) == ABORTED
        assert new.state is SessionState.ENDED
        assert list(sessions) == [before]
    else:
        sessions.identify(NOW, new, node, store)
        assert sessions.stopped == [before]
        assert list(sessions) == [new]
    sessions.check()


def test_a_session_that_gave_way_is_refused_when_its_callee_answers() -> None:
    sessions = _Registry()
    own = called(sessions, "a")
    came(sessions, "a")
    assert refused(lambda: sessions.identify(NOW, own, "a", "store-a")) == ABORTED
    assert len(sessions) == 1


def test_all_nodes_of_a_store_are_one_peer() -> None:
    sessions = _Registry()
    first = sessions.accept_from(NOW, Caller("a1", "shared"), "1")
    assert refused(lambda: sessions.accept_from(NOW, Caller("a2", "shared"), "2")) == ABORTED
    assert refused(lambda: sessions.begin_with(NOW, "x:1", "a2", "shared")) == ABORTED
    sessions.reconciled(NOW, first, IDS, NONE)
    # Another node takes no other node's place.
    assert refused(lambda: sessions.accept_from(NOW, Caller("a2", "shared"), "2")) == ABORTED
    sessions.accept_from(NOW, Caller("a1", "shared"), "3")
    assert sessions.stopped == [first]


@pytest.mark.parametrize(
    ("node", "store", "kind"), [("m", "store-x", SELF), ("x", "store-m", SAME_STORE)]
)
def test_a_node_and_its_own_database_are_no_peers(node: str, store: str, kind: str) -> None:
    sessions = _Registry()
    assert refused(lambda: sessions.accept_from(NOW, Caller(node, store), "1")) == kind
    assert refused(lambda: sessions.begin_with(NOW, "x:1", node, store)) == kind
    own = called(sessions, "x", known=False)
    assert refused(lambda: sessions.identify(NOW, own, node, store)) == kind
    assert not len(sessions)


def test_a_node_has_four_sessions_at_most() -> None:
    sessions = _Registry()
    for node in ("a", "b"):
        called(sessions, node)
    third = came(sessions, "c")
    fourth = came(sessions, "d", "4")
    with pytest.raises(SessionFaultError, match="4 sessions are under way of 4; retry later"):
        sessions.accept_from(NOW, Caller("e", "store-e"), "5")
    assert refused(lambda: sessions.begin_with(NOW, "e:1")) == BUSY
    # One that takes another's place needs no room.
    sessions.reconciled(NOW, fourth, IDS, IDS)
    assert came(sessions, "d", "6") is not fourth
    assert came(sessions, "a", "7").node_id == "a"
    sessions.end(third)
    sessions.end(third)
    came(sessions, "e", "5")
    sessions.check()


def strange(
    sessions: _Registry, node: str, address: str = "host", *, now_ns: int = NOW
) -> PeerSession:
    """Accept a session of an unknown caller."""
    return sessions.accept_from(now_ns, Caller(node, f"store-{node}", address), node)


def test_callers_that_never_transfer_keep_no_other_out() -> None:
    sessions = _Registry()
    for number in range(20):
        session = strange(sessions, f"invented-{number}", now_ns=NOW + number)
        sessions.reconciled(NOW + number, session, IDS, NONE)
        sessions.check()
    assert [each.node_id for each in sessions] == [f"invented-{n}" for n in (17, 18, 19)]
    strange(sessions, "honest", now_ns=NOW + 20)
    assert (sessions.stopped[-1].node_id, sessions.faults[-1]) == ("invented-17", Fault.CROWDED)
    sessions.begin_with(NOW + 20, "configured:1")
    assert len(sessions) == 4


def test_a_place_is_kept_for_what_this_node_begins() -> None:
    sessions = _Registry()
    for node in ("b", "c", "d"):
        strange(sessions, node)
    assert refused(lambda: strange(sessions, "e")) == BUSY
    called(sessions, "f")
    sessions.check()


@pytest.mark.parametrize("state", [SessionState.RECONCILING, SessionState.TRANSFERRING])
def test_a_session_whose_peer_stalls_gives_way(state: SessionState) -> None:
    sessions = _Registry()
    stored = [strange(sessions, node) for node in ("b", "c", "d")]
    if state is SessionState.TRANSFERRING:
        for each in stored:
            sessions.reconciled(NOW, each, IDS, NONE)
            assert sessions.claim(NOW, each.node_id, each.node_id) is each
    for each in stored:
        each.awaits_ns = NOW
    stored[0].awaits_ns = NOW + 1
    stored[1].awaits_ns = None
    assert refused(lambda: strange(sessions, "e", now_ns=NOW + STALLED_NS - 1)) == BUSY
    strange(sessions, "e", now_ns=NOW + STALLED_NS)
    assert sessions.stopped == [stored[2]]


def test_a_reconciliation_that_drips_gives_way_too() -> None:
    sessions, now_ns = _Registry(), NOW + SLOW_RECONCILE_NS
    stored = [strange(sessions, node) for node in ("b", "c", "d")]
    for each in stored:
        each.awaits_ns = now_ns
    for each in stored[1:]:  # a transfer may take as long as it works
        sessions.reconciled(NOW, each, IDS, NONE)
        sessions.claim(NOW, each.node_id, each.node_id)
    assert refused(lambda: strange(sessions, "e", now_ns=now_ns - 1)) == BUSY
    strange(sessions, "e", now_ns=now_ns)
    assert sessions.stopped == stored[:1]
    assert refused(lambda: strange(sessions, "f", now_ns=now_ns)) == BUSY


def test_a_peer_that_was_useful_may_wait_for_a_while() -> None:
    sessions = _Registry()
    for node in ("b", "c", "d"):
        session = strange(sessions, node)
        sessions.useful(session)
        sessions.reconciled(NOW, session, IDS, NONE)
    assert refused(lambda: strange(sessions, "e", now_ns=NOW + WAIT_PATIENCE_NS - 1)) == BUSY
    strange(sessions, "e", now_ns=NOW + WAIT_PATIENCE_NS)


def test_who_takes_the_name_of_a_peer_is_not_in_its_way_for_long() -> None:
    sessions = _Registry()
    session = strange(sessions, "a")
    sessions.reconciled(NOW, session, IDS, NONE)
    later_ns = NOW + WAIT_PATIENCE_NS
    assert refused(lambda: sessions.begin_with(later_ns - 1, "a:1", "a")) == ABORTED
    unknown = sessions.begin_with(NOW, "a:1")
    sessions.identify(later_ns, unknown, "a", "store-a")
    assert sessions.stopped == [session]
    sessions.end(unknown)
    sessions.reconciled(NOW, strange(sessions, "a"), IDS, NONE)
    sessions.begin_with(later_ns, "a:1", "a")
    sessions.check()


def test_a_session_belongs_to_one_peer_and_one_transfer() -> None:
    sessions = _Registry()
    session = waiting(sessions, "a")
    for node, session_id in (("b", "1"), ("a", "2"), ("a", "")):
        assert is_unknown(sessions, node, session_id)
    assert sessions.claim(NOW, "a", "1") is session
    assert (session.to_send, session.to_receive) == (IDS, NONE)
    assert is_unknown(sessions, "a", "1")


@pytest.mark.parametrize("old", [called, came, transferring, claimed])
def test_only_a_finished_reconciliation_can_be_claimed(old: Make) -> None:
    sessions = _Registry()
    old(sessions, "a")
    assert is_unknown(sessions, "a", "1")


def test_a_peer_may_transfer_nothing_once_after_a_session_that_found_nothing() -> None:
    sessions = _Registry()

    def found(node: str, name: str, now_ns: int = NOW) -> bool:
        return not is_unknown(sessions, node, name, now_ns)

    sessions.reconciled(NOW, called(sessions, "a"), NONE, NONE)
    for name in ("1", "2"):
        sessions.reconciled(NOW, came(sessions, "a", name), NONE, NONE)
        assert not len(sessions)
    assert not found("b", "2"), "it is bound to its peer"
    assert not found("a", "1"), "of each peer the last one is known"
    assert found("a", "2", NOW + MINUTE_NS - 1)
    assert not found("a", "2")
    for number in range(MAX_NOTED_PEERS + 1):
        node = f"node-{number}"
        sessions.reconciled(NOW, came(sessions, node, "3"), NONE, NONE)
        sessions.check()
    assert not found("node-0", "3"), "they are bounded"
    assert not found("node-1", "3", NOW + MINUTE_NS), "for a minute"
    assert found("node-2", "3")


# The assignment of places, against an oracle that goes through the rules one by one


def naive(places: Places, newcomer: Standing, holders: list[Standing]) -> int | None:
    """Apply the rules in the order of the module."""
    strangers = [each for each in holders if not each.trusted]
    own_share = places.limit if newcomer.trusted else places.limit - places.reserved
    share_used = holders if newcomer.trusted else strangers
    if len(holders) < places.limit and len(share_used) < own_share:
        return FREE

    def places_of(address: str) -> int:
        return sum(each.address == address for each in strangers)

    def worth(index: int) -> tuple[bool, bool, int, int]:
        each = holders[index]
        return each.trusted, each.useful, -places_of(each.address), -(each.waits_ns or 0)

    leaving = []
    for index, each in enumerate(holders):
        if each.waits_ns is None or (each.trusted and not newcomer.trusted):
            continue
        if not newcomer.trusted and len(strangers) >= own_share and each.trusted:
            continue
        enough = places.patience_ns
        if (newcomer.trusted and not each.trusted) or (
            newcomer.trusted == each.trusted and newcomer.useful and not each.useful
        ):
            enough = places.least_wait_ns
        worthless = not each.trusted and not each.useful
        if worthless and places_of(each.address) >= places_of(newcomer.address):
            enough = places.least_wait_ns
        if each.waits_ns >= enough:
            leaving.append(index)
    return min(leaving, key=worth, default=None)


@given(st.integers(0, 2**32))
def test_places_are_shared_out_as_the_oracle_says(seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.randint(1, 6)
    places = Places(limit, rng.randrange(limit), rng.randint(0, 60), rng.randint(0, 20))
    holders: list[Standing] = []
    for _ in range(40):
        waits_ns = None if rng.random() < 0.3 else rng.randint(0, 80)
        newcomer = Standing(rng.random() < 0.3, rng.random() < 0.3, rng.choice("abc"), waits_ns)
        chosen = places.choose(newcomer, holders)
        assert chosen == naive(places, newcomer, holders)
        if chosen == FREE:
            holders.append(newcomer)
        elif chosen is not None:
            assert newcomer.trusted or not holders[chosen].trusted
            holders[chosen] = newcomer
        elif holders and rng.random() < 0.3:
            holders.pop(rng.randrange(len(holders)))
        assert len(holders) <= limit
        assert sum(not each.trusted for each in holders) <= limit - places.reserved
