"""The sessions of a node with its peers: who may begin one, and which of two gives way.

A session is one `Reconcile` and the `Transfer` of what it found. Source: the node's contract
("Peers") and the schema of the frames.

Rules.

1. Two peers have one session at a time, begun by either; a peer is a node, and all nodes of one
   store. A node has `MAX_SESSIONS` in all, shared out by `store.domain.places`; a further peer is
   refused as busy, or a session that only waits loses its place to it. One waits
   for its transfer, or when its peer has kept it waiting for `STALLED_NS`, or when it has
   reconciled for `SLOW_RECONCILE_NS`. A session that this node began never waits in this sense.
2. Nodes of one store (of one database) do not reconcile, nor does a node with itself.
3. When both begin at once, the session begun by the lower node ID wins. The other is answered
   ABORTED, and who began it counts that as done.
4. A new session of a node takes the place of one that it began and whose transfer has not come
   yet. While it reconciles or transfers, the new one is answered ABORTED. An untrusted session that
   has waited for `WAIT_PATIENCE_NS` gives way to any of the node or store that it names.
5. What a session found is bound to it, to the node that began it, and to one transfer.
6. A session ends when its peer keeps it waiting for a frame, or for its transfer, for what the node
   calls silence, and when it has reconciled for `MAX_RECONCILE_NS`. A transfer has limits of its
   own (`store.sync.transfer.transfer.Patience`).
7. A session that found nothing ends at once, and takes no place. For as long as it would have
   waited its peer may transfer nothing, once; of each node the last one is known.

A caller may not know whom it calls until it is answered: then `Sessions.begin` takes an
address, and `Sessions.identify` the node. A new session that may not take the place of another of
its peer is refused with GAVE_WAY.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from reconcile.ids import SyncIds
from reconcile.session import Role
from store.domain.places import FREE, Caller, Places, Standing
from store.sync.errors import SILENT, Fault, SessionFaultError
from store.sync.limits import (
    MAX_NOTED_PEERS,
    MAX_RECONCILE_NS,
    MAX_SESSIONS,
    RESERVED_SESSIONS,
    SILENCE_NS,
    SLOW_RECONCILE_NS,
    STALLED_NS,
    WAIT_PATIENCE_NS,
)
from store.sync.session.report import SessionReport
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import NS_PER_S

_IN_SESSION: Final = "another session with this peer is under way: retry later"
_GAVE_WAY: Final = "another session with this peer goes first"
_REPLACED: Final = "the peer began a new session before it transferred"
_DISPLACED: Final = "the session only waited for the peer, and its place went to another peer"
_TOO_LONG: Final = (
    f"the reconciliation was not done within {MAX_RECONCILE_NS // NS_PER_S} s: reconcile a shorter "
    "window"
)

_T = TypeVar("_T")


class SessionState(Enum):
    """The state of a session; only one that a peer began waits for its transfer."""

    RECONCILING = "reconciling"
    WAITING = "waiting"
    TRANSFERRING = "transferring"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class PeerSession:
    """A session, with its report; only `Sessions` and `Exchange` change it.

    ``address``: which this node calls, or where the peer calls from. ``awaits_ns``: since when
    the peer has sent and taken no frame that this node waits for; None: it does not wait. ``waits``
    are these frames.
    ``task`` drives it, and ``timer`` looks for its end (rule 6). ``stopped``: the fault, and a
    sentence, for which it ends before its end.
    """

    report: SessionReport
    address: str
    since_ns: int
    session_id: str = ""
    trusted: bool = True
    state: SessionState = SessionState.RECONCILING
    awaits_ns: int | None = None
    waits: int = 0
    task: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    stopped: tuple[Fault, str] | None = None
    to_send: SyncIds = field(default_factory=SyncIds.empty)
    to_receive: SyncIds = field(default_factory=SyncIds.empty)

    def enter(self, state: SessionState, now_ns: int) -> None:
        """Begin the next state, at a time of the monotonic clock."""
        assert self.state is not SessionState.ENDED, f"{state} after the end"
        self.state, self.since_ns, self.awaits_ns = state, now_ns, None

    async def wait(self, steady_ns: Callable[[], int], work: Awaitable[_T]) -> _T:
        """Wait until the peer has sent or taken a frame."""
        self.waits += 1
        if self.waits == 1:
            self.awaits_ns = steady_ns()
        try:
            return await work
        finally:
            self.waits -= 1
            self.awaits_ns = steady_ns() if self.waits else None

    def deadline(self, now_ns: int, silence_ns: int) -> tuple[int, Fault, str] | None:
        """Return when the session ends if nothing comes until then, and why (rule 6).

        None: a transfer, or the end, has come.
        """
        if self.state is SessionState.WAITING:
            sentence = f"the peer did not transfer within {silence_ns // NS_PER_S} s"
            return self.since_ns + silence_ns, Fault.LOST, sentence
        if self.state is not SessionState.RECONCILING:
            assert self.task is not None, "the timer of a session that is over"
            return None
        silent_ns = (now_ns if self.awaits_ns is None else self.awaits_ns) + silence_ns
        if self.since_ns + MAX_RECONCILE_NS <= silent_ns:
            return self.since_ns + MAX_RECONCILE_NS, Fault.SLOW, _TOO_LONG
        return silent_ns, Fault.SILENCE, SILENT.format(silence_ns / NS_PER_S)

    @property
    def own(self) -> bool:
        """True if this node began it."""
        return self.report.role is Role.INITIATOR

    @property
    def node_id(self) -> str:
        """The ID of the peer; empty while it is unknown."""
        return self.report.node_id


class Sessions:
    """The registry of one node; it calls ``stop`` for each session that gives way to a new one.

    `begin`, `identify` and `accept` raise `SessionFaultError` where there is no session.
    """

    def __init__(
        self,
        node_id: str,
        store_id: str,
        stop: Callable[[PeerSession, Fault, str], None],
        *,
        limit: int = MAX_SESSIONS,
        silence_ns: int = SILENCE_NS,
    ) -> None:
        self._node_id = node_id
        self._store_id = store_id
        self._stop = stop
        self._limit = limit
        self._places = Places(limit, min(RESERVED_SESSIONS, limit - 1), WAIT_PATIENCE_NS)
        self._useful = BoundedDict[tuple[str, str], None](MAX_NOTED_PEERS)
        self._silence_ns = silence_ns
        self._sessions: list[PeerSession] = []
        self._equal = BoundedDict[str, PeerSession](MAX_NOTED_PEERS)

    def __iter__(self) -> Iterator[PeerSession]:
        """Return the sessions under way."""
        return iter(tuple(self._sessions))

    def __len__(self) -> int:
        """Return the number of sessions under way."""
        return len(self._sessions)

    def begin(self, now_ns: int, address: str, report: SessionReport) -> PeerSession:
        """Open a session with a peer to call, whose IDs are in the report as far as known."""
        session = PeerSession(report, address, now_ns)
        others = self._of_peer(session) or [
            other for other in self._sessions if other.own and other.address == address
        ]
        self._require_way(now_ns, others, None)
        return self._admit(now_ns, session, others)

    def identify(self, now_ns: int, session: PeerSession, node_id: str, store_id: str) -> None:
        """Note who the callee of an own session is; a refusal ends the session."""
        session.report.node_id, session.report.store_id = node_id, store_id
        try:
            if session.state is SessionState.ENDED:  # it gave way while the answer was on its way
                raise SessionFaultError(Fault.GAVE_WAY, _IN_SESSION)
            others = self._of_peer(session)
            self._require_way(now_ns, others, session)
        except SessionFaultError:
            self.end(session)
            raise
        self._replace(others)

    def accept(
        self, now_ns: int, caller: Caller, session_id: str, report: SessionReport
    ) -> PeerSession:
        """Open a session that a peer begins; ``session_id`` is new random bits."""
        session = PeerSession(report, caller.address, now_ns, session_id, caller.trusted)
        others = self._of_peer(session)
        self._require_way(now_ns, others, session)
        return self._admit(now_ns, session, others)

    def useful(self, session: PeerSession) -> None:
        """Note that a transfer moved messages: its peer is worth more for a while."""
        self._useful[session.node_id, session.address] = None

    def reconciled(
        self, now_ns: int, session: PeerSession, to_send: SyncIds, to_receive: SyncIds
    ) -> None:
        """Note the end of the reconciliation; a session that found nothing ends here."""
        if len(to_send) or len(to_receive):
            session.to_send, session.to_receive = to_send, to_receive
            follows = SessionState.TRANSFERRING if session.own else SessionState.WAITING
            session.enter(follows, now_ns)
            return
        if not session.own:
            session.since_ns = now_ns
            self._equal[session.node_id] = session
        self.end(session)

    def claim(self, now_ns: int, node_id: str, session_id: str) -> PeerSession:
        """Return the session that a peer names in `Transfer`, only once.

        One that found nothing has ended already, and has nothing to transfer (rule 7).

        Raises:
            SessionFaultError: there is none.
        """
        equal = self._equal.get(node_id)
        if equal is not None and equal.session_id == session_id:
            del self._equal[node_id]
            if now_ns - equal.since_ns < self._silence_ns:
                return equal
        for session in self._sessions:
            if (
                session.state is SessionState.WAITING
                and session.session_id == session_id
                and session.node_id == node_id
            ):
                session.enter(SessionState.TRANSFERRING, now_ns)
                return session
        raise SessionFaultError(
            Fault.UNKNOWN,
            "no session of this peer with this ID waits for a transfer: reconcile first, and "
            f"transfer once, within {self._silence_ns // NS_PER_S} s",
        )

    def end(self, session: PeerSession) -> None:
        """Remove a session, however it ended; may be called twice."""
        if session.state is SessionState.ENDED:
            return
        self._sessions.remove(session)
        session.state = SessionState.ENDED
        session.to_send = session.to_receive = SyncIds.empty()

    def check(self) -> None:
        """Verify the invariants of the registry.

        Raises:
            AssertionError: one is broken.
        """
        assert len(self._sessions) <= self._limit
        untrusted = sum(not session.trusted for session in self._sessions)
        assert untrusted <= self._limit - self._places.reserved
        assert all(session.state is not SessionState.ENDED for session in self._sessions)
        nodes = [session.node_id for session in self._sessions if session.node_id]
        stores = [each.report.store_id for each in self._sessions if each.report.store_id]
        assert len(nodes) == len(set(nodes)), "two sessions with one node"
        assert len(stores) == len(set(stores)), "two sessions with one store"
        assert self._node_id not in nodes
        assert len(self._equal) <= MAX_NOTED_PEERS
        assert self._store_id not in stores

    def _admit(self, now_ns: int, session: PeerSession, replaced: list[PeerSession]) -> PeerSession:
        holders = [each for each in self._sessions if each not in replaced]
        standings = [self._standing(now_ns, each) for each in (session, *holders)]
        place = self._places.choose(standings[0], standings[1:])
        if place is None:
            others = "1 session is" if len(holders) == 1 else f"{len(holders)} sessions are"
            kept = "" if len(holders) >= self._limit else ", and the others are for trusted peers"
            sentence = f"busy: {others} under way of {self._limit}{kept}; retry later"
            raise SessionFaultError(Fault.REFUSED, sentence)
        self._replace(replaced)
        if place != FREE:
            self.end(holders[place])
            self._stop(holders[place], Fault.CROWDED, _DISPLACED)
        self._sessions.append(session)
        return session

    def _standing(self, now_ns: int, session: PeerSession) -> Standing:
        useful = (session.node_id, session.address) in self._useful
        waits_ns = self._waits_ns(now_ns, session)
        return Standing(session.trusted, useful, session.address, waits_ns)

    def _waits_ns(self, now_ns: int, session: PeerSession) -> int | None:
        if session.own:
            return None
        if session.state is SessionState.WAITING:
            return now_ns - session.since_ns
        waits_ns = -1
        if session.awaits_ns is not None:
            waits_ns = now_ns - session.awaits_ns - STALLED_NS
        if session.state is SessionState.RECONCILING:
            waits_ns = max(waits_ns, now_ns - session.since_ns - SLOW_RECONCILE_NS)
        return waits_ns if waits_ns >= 0 else None

    def _require_way(self, now_ns: int, others: list[PeerSession], new: PeerSession | None) -> None:
        """Require that all other sessions with a peer give way to a new one (rules 3 and 4).

        None: a new one whose peer has not answered, for which only those do that wait for too long.
        """
        for other in others:
            waits_ns = None if other.trusted else self._waits_ns(now_ns, other)
            if waits_ns is not None and waits_ns >= WAIT_PATIENCE_NS:
                continue
            gives_way = False
            if new is not None and other.state is SessionState.WAITING:
                gives_way = not new.own and other.node_id == new.node_id
            elif new is not None and other.state is SessionState.RECONCILING:
                gives_way = other.own != new.own and (self._node_id < new.node_id) == new.own
            if not gives_way:
                raise SessionFaultError(Fault.GAVE_WAY, _IN_SESSION)

    def _of_peer(self, session: PeerSession) -> list[PeerSession]:
        """Return others with the peer, which may not be this node or another of its store."""
        node_id, store_id = session.node_id, session.report.store_id
        if node_id == self._node_id:
            raise SessionFaultError(
                Fault.REFUSED, "this is the node itself: remove it from its peers"
            )
        if store_id == self._store_id:
            raise SessionFaultError(
                Fault.REFUSED,
                "both nodes work on one database, where there is nothing to reconcile: remove one "
                "from the peers of the other",
            )
        return [
            other
            for other in self._sessions
            if other is not session
            and (
                (node_id and other.node_id == node_id)
                or (store_id and other.report.store_id == store_id)
            )
        ]

    def _replace(self, sessions: list[PeerSession]) -> None:
        for session in sessions:
            is_waiting = session.state is SessionState.WAITING
            self.end(session)
            if is_waiting:
                self._stop(session, Fault.LOST, _REPLACED)
            else:
                self._stop(session, Fault.GAVE_WAY, _GAVE_WAY)
