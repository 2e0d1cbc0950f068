"""The exchange of a simulated node with its peers: shipped drivers, and a judge who looks on."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from reconcile.ids import LOWEST, SyncId
from reconcile.session import Result, Role, SessionStep
from sim.calls import Status
from sim.judge import Side
from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.process import Process
from sim.service import LOOKUP, NO_HASH, SCAN, Entry, ScanRequest
from sim.store import ENDED, JudgedIndex, JudgedStatements, JudgedView, SimStore
from sim.streams import SimConnector, StatusReceivedError
from store.domain.admission import Admission, Verdict
from store.domain.claims import RequestedEntries
from store.domain.ports import (
    CursorOutOfRangeError,
    HistoryEntry,
    PeerAddress,
    SdsLookup,
    Source,
    TopicFilter,
)
from store.messages.cursor import ScanCursor
from store.messages.transfer import MalformedMessageError, decode_message
from store.sync.errors import Fault, ProtocolBrokenError
from store.sync.peers import ScannedPage
from store.sync.session import exchange as shipped
from store.sync.session.exchange import ExchangeWork
from store.sync.session.reconciliation import Reconciliation, in_time
from store.sync.session.registry import PeerSession, SessionState
from store.sync.session.report import SessionReport, SyncEnding
from store.sync.transfer.policy_memory import Side as Whose
from store.sync.transfer.transfer import Transfer
from storenode.message.rules import Reason

CLUSTER: Final = 7
SHARDS: Final = ()

_SLACK_NS: Final = 1_000_000_000
_TIMER_NS: Final = 1_000_000


class _Reconciliation(Reconciliation):
    """The shipped reconciliation, which is checked after each step; the judge sees its result."""

    async def _step(self, *given: Any, **named: Any) -> SessionStep:  # noqa: ANN401 - as there
        found = await super()._step(*given, **named)
        self.base.check()
        return found

    def conclude(self, result: Result) -> None:
        """Compare the results of both sides."""
        name, report, exchange = self.session.session_id, self.report, self.exchange
        assert isinstance(exchange, JudgedExchange)
        if name and not result.refusal:
            process, view = exchange.process, self.view
            assert isinstance(view, JudgedView)
            side = Side(process.database, view.shown, report.horizon or LOWEST, view.asked_ns)
            process.judge.meet(name, self.role, side)
            process.judge.found(name, self.role, result, report.keyed_from_ns)
            exchange.last[report.node_id] = result
            if self.role is Role.INITIATOR:
                exchange.names[asyncio.current_task()] = name
        super().conclude(result)


class JudgedExchange(shipped.Exchange):
    """The shipped exchange and its observer; the judge sees how sessions end."""

    reconciliation = _Reconciliation

    def __init__(self, process: Process, store: SimStore, index: JudgedIndex) -> None:
        scenario = process.scenario
        self.process = process
        self.last: dict[str, Result] = {}
        """The result of the last reconciliation with each peer."""
        self.names: dict[asyncio.Task[Any] | None, str] = {}
        self.statements = JudgedStatements(process)
        super().__init__(
            ExchangeWork(
                node_id=process.identity.node_id,
                store_id=process.identity.store_id,
                cluster=CLUSTER,
                shards=SHARDS,
                index=index,
                reads=store,
                writer=store,
                policy=process.policy,
                observer=self,
                environment=process.world_env,
                limits=scenario.limits,
                transfer_limits=scenario.transfer,
                tuning=scenario.tuning,
                max_sessions=scenario.sessions,
                sums=process.node.number not in scenario.plain_nodes,
                compact_from=None if process.node.number % 3 == 2 else 0,
                statements=self.statements,
            )
        )

    async def transfer(self, session: PeerSession) -> Transfer:
        """Return the transfer of what a session has found, which is checked after each step."""
        self._judge_memory(session.node_id)
        transfer = await super().transfer(session)
        go_on = transfer._go_on

        def checked() -> None:
            go_on()
            transfer.check()

        transfer._go_on = checked  # type: ignore[method-assign]
        return transfer

    def session_began(self, peer: PeerAddress) -> None:
        """Note nothing of a session that begins."""

    def session_progressed(self, report: SessionReport) -> None:
        """Note nothing of a transfer."""

    def session_ended(self, report: SessionReport) -> None:
        """Note that a session ended."""
        process = self.process
        name = self.names.pop(asyncio.current_task(), "")
        process.note(f"{report.role} session with {report.node_id}: {described(report)}")
        if report.fault in (Fault.PROTOCOL, Fault.LIMIT):
            process.judge.fail(f"{process.name} accuses an honest peer: {report.error}")
        for mark in _marks(report):
            process.mark(mark)
        if report.ending is SyncEnding.REFUSED:
            process.mark(Mark.SAME_STORE if "one database" in report.error else Mark.BUSY)
        if report.role is Role.INITIATOR:
            ENDED.set(name)
            if report.in_sync:
                process.judge.in_sync(name, report.refused_by_policy)
            process.node.world.counts.update(("sessions", f"sessions {report.ending}"))

    def stop(self, session: PeerSession, fault: Fault, sentence: str) -> None:
        """End the driver of a session, which must end at once."""
        if fault in (Fault.GAVE_WAY, Fault.CROWDED):
            self.process.mark(Mark.GAVE_WAY)
        elif session.state is SessionState.WAITING:
            self.process.mark(Mark.EXPIRED)
        super().stop(session, fault, sentence)
        self.process.timeline.after(_SLACK_NS, partial(self._demand_stopped, session))

    @contextmanager
    def driving(
        self, report: SessionReport, begin: Callable[[], PeerSession]
    ) -> Iterator[PeerSession]:
        """Run all that is done for a session inside; it may then wait for a silence at most."""
        with super().driving(report, begin) as session:
            yield session
        if session.state is SessionState.WAITING:
            silence_ns = self.work.transfer_limits.silence_ns
            delay_ns = self.process.clock.true_delay_ns(silence_ns) + _TIMER_NS
            demand = partial(self._demand_claimed, session, session.since_ns)
            self.process.timeline.after(delay_ns, demand)

    def _demand_claimed(self, session: PeerSession, since_ns: int) -> None:
        if session.since_ns == since_ns and not self.process.life.ended:
            assert session.state is SessionState.ENDED, "a session waits too long for its transfer"

    def _demand_stopped(self, session: PeerSession) -> None:
        alive = session.task is not None and not self.process.life.ended
        assert not alive, "the driver of a session that was stopped goes on"

    def check(self) -> None:
        """Verify the registry, the memory, and that nothing is kept of what is over."""
        self.sessions.check()
        self.memory.check()
        idle = [each for each in self.sessions if each.task is None and each.timer is None]
        assert not idle, f"sessions that nothing ends: {idle}"
        assert len(self.names) <= len(self.sessions) + 1, "names of sessions are kept"

    def check_empty(self) -> None:
        """Verify that nothing is left of a node that was stopped."""
        assert not len(self.sessions), "sessions are left of a node that was stopped"

    def _judge_memory(self, node_id: str) -> None:
        process, now_ns = self.process, self.process.clock.unix_ns()
        labels = self.memory.known(node_id, Whose.OURS, now_ns)
        too_new = [digest for digest, label in labels.items() if label == Reason.TOO_NEW]
        process.judge.remembered(process.name, now_ns, too_new)


class SimCaller(SimConnector):
    """Calls peers: a `store.sync.peers.PeerCaller`."""

    def __init__(self, process: Process, store: SimStore) -> None:
        super().__init__(process)
        self._store = store
        self._silence_s = process.scenario.silence_ns / NS_PER_S
        self.asked: dict[asyncio.Task[Any] | None, Sequence[HistoryEntry]] = {}
        """The entries that each lookup has requested from its peer."""

    async def scan(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> AsyncGenerator[ScannedPage, None]:
        """Yield what a peer has of a time range."""
        process, store = self._process, self._store
        process.note(f"scans {peer.host}")
        whole = False
        try:
            async with self.call(peer, SCAN) as stream:
                store.expected = self._promised(peer, start_ns, end_ns, cursor)
                await stream.write(ScanRequest(start_ns, end_ns, cursor))
                page: list[Entry] | None
                while (page := await in_time(stream.read(), self._silence_s)) is not None:
                    process.mark(Mark.SCANNED)
                    times, hashes, messages = map(list, zip(*page, strict=True))
                    store.refused |= self._refused(messages)
                    cursor = ScanCursor(times[-1], hashes[-1]).encode()
                    yield ScannedPage(messages, hashes, cursor, times[-1])
                await stream.half_close()
                whole = True
        except StatusReceivedError as error:
            if error.status is Status.OUT_OF_RANGE:
                process.mark(Mark.LOST_PLACE)
                raise CursorOutOfRangeError(str(error)) from error
            raise
        finally:
            if whole:
                store.scanned = store.expected
            elif store.scanned is not None:
                # One whole scan is enough: others are asked in case that they hold more.
                store.expected = store.scanned
        process.judge.advanced(process.database, store.expected, end_ns, store.refused)

    async def lookup(
        self, peer: PeerAddress, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield what a peer has of some SDS messages."""
        self.asked[asyncio.current_task()] = entries
        asked = RequestedEntries(channel_id, entries)
        async with self.call(peer, LOOKUP) as stream:
            await stream.write(SdsLookup(channel_id, tuple(entries), TopicFilter()))
            page: list[Entry] | None
            while (page := await in_time(stream.read(), self._silence_s)) is not None:
                messages = [encoded for _, _, encoded in page]
                for encoded in messages:
                    _check_asked(asked, encoded)
                yield messages
            await stream.half_close()

    def _promised(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> list[SyncId]:
        """Return what the peer has now of what it is asked for."""
        ids = self._process.node.world.database_at(peer.host).ids
        lower = (start_ns, NO_HASH)
        if cursor:
            after = ScanCursor.decode(cursor)
            lower = max(lower, (after.timestamp, after.hash + b"\0"))
        return ids[bisect_left(ids, lower) : bisect_left(ids, (end_ns, NO_HASH))]

    def _refused(self, messages: list[bytes]) -> set[bytes]:
        admission = Admission(self._process.policy(), self._process.clock.unix_ns(), Source.RESUME)
        admission.admit(messages)
        published = admission.admitted
        return {
            digest
            for digest, verdict in zip(published.hashes, published.verdicts, strict=True)
            if verdict is Verdict.REJECTED
        }


def _check_asked(asked: RequestedEntries, encoded: bytes) -> None:
    """Check a message as the edge does, with the shipped rule.

    Raises:
        ProtocolBrokenError: the message cannot be decoded, or was not asked for.
    """
    try:
        payload = decode_message(encoded).payload
    except MalformedMessageError as error:
        raise ProtocolBrokenError(str(error)) from None
    # No hint of a simulation names a message that cannot be read.
    if not asked.selects(payload, lambda: b""):
        raise ProtocolBrokenError("the peer sends a message that was not asked for")


def described(report: SessionReport) -> str:
    """Return a report in a line of the trace."""
    return (
        f"{report.ending} {report.error} rounds {report.round_trips}, "
        f"to send {report.missing_there}, to receive {report.missing_here}, stored "
        f"{report.messages_received} here and {report.messages_sent} there"
        + (", truncated" if report.left_over else "")
    )


def _marks(report: SessionReport) -> Iterator[Mark]:
    happened = (
        (Mark.TRUNCATED, report.left_over),
        (Mark.MANY_ROUNDS, report.round_trips > 4),
        (Mark.REFUSED_HERE, bool(report.refused)),
        (Mark.REFUSED_THERE, bool(report.refused_by_peer)),
        (Mark.DUPLICATE, report.duplicates > 0),
        (Mark.ANOTHER_WAY, report.elsewhere > 0),
        (Mark.PRUNED, report.pruned > 0),
        (Mark.INTERRUPTED, bool(report.fault)),
        (Mark.SUMMED, report.keyed_from_ns is not None),
        (Mark.COMPACT, report.compact),
        (Mark.FORGED, report.hidden is not None),
        (Mark.CONFLICT, report.conflicts > 0),
    )
    return (mark for mark, whether in happened if whether)
