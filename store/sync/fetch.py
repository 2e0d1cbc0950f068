"""Messages fetched from a peer: those missed while the store was off, and SDS messages by ID.

What is fetched takes the way of every message between stores: admission judges it, the writer
makes it durable.

Resume. The store keeps the time at which it was last online (`OnlineRecorder`). At its next start
the gap from then to now is read from a peer by ``Scan``, in order of time. As the scan advances so
does the "last online" time, which therefore always says: up to here nothing of the gap is missing.
A restart in mid-resume continues from there (WAKU-STORE-SYNC, "Store resume").

- The first peer is random. Where a fetch fails, the next peer continues; after as many failures as
  there are peers there is a pause, and reconciliation no longer waits for the resume.
- A peer that lies can send for ever messages that are worth nothing. So no fetch is longer
  than `LONGEST_FETCH_NS`, and reconciliation waits no longer for the resume either.
- A cursor is the peer's that gave it: where another one continues, it begins by the time reached.
- A peer may have been off as well. Where it comes to the end of the gap and has shown nothing of
  its second half, the others are asked for the rest too, each once, until one has some. What they
  all lack is left to reconciliation: the wide session finds it.

Lookups. Stored messages are not requested, so that a long list may be processed again; but
for IDs that could prove their message and do not prove the one that is held, which may be forged.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from store.domain.admission import Admission, AdmissionCounts, Admitted
from store.domain.claims import name_of
from store.domain.coverage import Interval
from store.domain.environment import Environment
from store.domain.ports import (
    CursorOutOfRangeError,
    HistoryEntry,
    NotServingError,
    PeerAddress,
    PeerError,
    SdsLookup,
    SdsLookups,
    Source,
    StoreUnavailableError,
    TopicFilter,
    Writer,
)
from store.messages.transfer import decode_message
from store.sync.errors import Fault, ProtocolBrokenError, SessionFaultError
from store.sync.limits import ADMITTED_AT_ONCE, ONLINE_INTERVAL_S
from store.sync.peers import PeerCaller, ScannedPage
from storenode.common.backoff import Backoff
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy

SHORTEST_GAP_NS: Final = 15 * NS_PER_S
"""The first reconciliation repairs a shorter gap, where there is one."""

FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0

LONGEST_FETCH_NS: Final = 600 * NS_PER_S
"""A fetch that takes longer continues at the next peer; the only one is asked again."""

_ADVANCE_EVERY_NS: Final = NS_PER_S
"""Progress is persisted no more often: a row that is written with every page grows old versions."""

_MAX_NOTES: Final = 10

_LONGEST_STEP_NS: Final = 30 * NS_PER_S


@dataclass(frozen=True, slots=True)
class FetchWork:
    """The parts that fetches work on; ``policy``: the node's rules, horizon included."""

    caller: PeerCaller
    writer: Writer
    policy: Callable[[], Policy]
    environment: Environment

    async def store(
        self, messages: Sequence[bytes], hashes: Sequence[bytes], source: Source
    ) -> tuple[Admitted, AdmissionCounts]:
        """Store a page of messages, as far as the rules allow.

        ``hashes`` are those that the peer gives, where it does.

        Raises:
            ProtocolBrokenError: it has given others.
            NotServingError: the database takes nothing now.
        """
        admission = Admission(self.policy(), self.environment.now_ns(), source)
        for start in range(0, len(messages), ADMITTED_AT_ONCE):
            admission.admit(messages[start : start + ADMITTED_AT_ONCE])
            await asyncio.sleep(0)
        admitted = admission.admitted
        # A message that cannot be decoded may have none; it is refused.
        named = zip(admitted.hashes, hashes, strict=True) if hashes else ()
        if any(found and found != given for found, given in named):
            raise ProtocolBrokenError(
                "the peer sends messages that do not have the hashes it gives"
            )
        stored = await self.writer.store(admitted.batch, source)
        admitted.refuse_conflicts(stored)
        counts = admitted.count(stored)
        self.environment.count_intake(source.value, counts.duplicate, counts.rejected)
        return admitted, counts


@dataclass(slots=True)
class ResumeState:
    """The progress of the resume at the start; times in Unix nanoseconds.

    ``stored``: those of the messages that were new. ``peers``: those that it came from, as
    configured.
    """

    running: bool = False
    time_start_ns: int = 0
    time_end_ns: int = 0
    reached_ns: int = 0
    messages: int = 0
    stored: int = 0
    error: str = ""
    peers: list[str] = field(default_factory=list)


class OnlineTimes(Protocol):
    """The record of the times at which the store was online, in its database."""

    async def last(self) -> int:
        """Return when the store was last online, in Unix nanoseconds; 0: never.

        Raises:
            StoreUnavailableError: the database does not answer.
        """

    async def note(self, online_ns: int, now_ns: int, interval: Interval | None = None) -> None:
        """Persist an interval, and that nothing up to ``online_ns`` was missed; 0: not known.

        ``now_ns`` is the clock.

        Raises:
            StoreUnavailableError: the database did not take it.
        """


class OnlineRecorder:
    """Records the intervals in which a node takes messages in, and what was missed before.

    An interval ends where the database is away, the clock leaps or the node stops. ``begin`` comes
    before the resume looks at the clock, so that no time lies between the two.

    Attributes:
        is_complete: peers have been asked for all that was missed: the next gap begins now.
    """

    def __init__(
        self,
        online: OnlineTimes,
        environment: Environment,
        *,
        interval_s: float = ONLINE_INTERVAL_S,
    ) -> None:
        self._online = online
        self._environment = environment
        self._interval_s = interval_s
        self._start_ns = self._end_ns = 0
        self.last = online.last
        self.is_complete = False

    def begin(self) -> None:
        """Begin an interval."""
        self._start_ns = self._end_ns = self._environment.now_ns()

    async def run(self) -> None:
        """Record the interval every few seconds, until the task is cancelled."""
        while True:
            await self.note()
            await asyncio.sleep(self._interval_s)

    async def note(self) -> None:
        """Record that the node was online until now; where that fails, a new interval begins."""
        now_ns = self._environment.now_ns()
        if not 0 <= now_ns - self._end_ns <= _LONGEST_STEP_NS:
            self._start_ns = now_ns
        interval = Interval(self._start_ns, now_ns, resumed=False)
        is_noted = await self._note(now_ns if self.is_complete else 0, interval)
        self._end_ns = now_ns if is_noted else 0

    async def note_resumed(self, last_ns: int, reached_ns: int) -> None:
        """Record that nothing is missing from ``last_ns``, if that is known, to ``reached_ns``."""
        interval = Interval(last_ns, reached_ns, resumed=True)
        await self._note(reached_ns, interval if last_ns < reached_ns else None)

    async def _note(self, online_ns: int, interval: Interval | None) -> bool:
        try:
            await self._online.note(online_ns, self._environment.now_ns(), interval)
        except StoreUnavailableError as error:
            # A later note makes up for it, or the next resume fetches a little more.
            self._environment.log.debug("online_not_noted", error=str(error))
            return False
        return True


class Resumer:
    """The resume of one node; it runs as a task until the node stops."""

    def __init__(
        self,
        peers: Sequence[PeerAddress],
        work: FetchWork,
        recorder: OnlineRecorder,
        *,
        slack_ns: int,
        shortest_ns: int = SHORTEST_GAP_NS,
        proceed: Callable[[], None],
        failed: Callable[[PeerAddress, str], None],
    ) -> None:
        """Take the parts; ``proceed`` is called once, when reconciliation may begin.

        ``slack_ns``: how far before "last online" the gap begins, for clocks that differ.
        ``shortest_ns``: a shorter time off is no gap. ``failed`` is called with the reason why what
        a peer was asked for did not come.
        """
        self._configured = tuple(peers)
        self._slack_ns = slack_ns
        self._shortest_ns = shortest_ns
        self._work = work
        self._recorder = recorder
        self._environment = work.environment
        self._log = work.environment.log
        self._proceed = proceed
        self._failed = failed
        self._progress = ResumeState()
        self._has_proceeded = False
        self._peers: deque[PeerAddress] = deque()  # the first is asked
        self._cursor = b""  # of the first peer
        self._last_ns = self._fetch_ns = self._persisted_ns = 0
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def state(self) -> ResumeState | None:
        """Return the state for the node's status; None when there was no gap."""
        return self._progress if self._progress.time_end_ns else None

    async def run(self) -> None:
        """Resume, once, until the task is cancelled."""
        await self.resume()
        await asyncio.Event().wait()

    def check(self) -> None:
        """Verify the invariants.

        Raises:
            AssertionError: one is broken.
        """
        progress = self._progress
        start_ns = progress.time_start_ns
        assert start_ns <= progress.reached_ns <= max(start_ns, progress.time_end_ns)
        assert not self._peers or set(self._peers) == set(self._configured)
        assert progress.stored <= progress.messages
        assert self._has_proceeded or not self._recorder.is_complete
        assert bool(progress.peers) == bool(progress.messages)

    async def resume(self) -> None:
        """Fill the gap, if there is one."""
        progress = self._progress
        if self._recorder.is_complete or not self._configured:
            self._proceed_once()
            return
        last_ns = await self._recorder.last()
        now_ns, horizon_ns = self._environment.now_ns(), self._work.policy().horizon_ns or 0
        if last_ns and now_ns - last_ns >= self._shortest_ns:
            self._last_ns, progress.time_end_ns = last_ns, now_ns
            progress.time_start_ns = max(0, horizon_ns, last_ns - self._slack_ns)
            progress.reached_ns = progress.time_start_ns
            peers = list(self._configured)
            self._environment.random.shuffle(peers)
            self._peers = deque(peers)
            progress.running = True
            await self._fetch_all()
            progress.running, progress.error = False, ""
            progress.reached_ns = progress.time_end_ns
            await self._recorder.note_resumed(last_ns, progress.reached_ns)
            self._log.info(
                "resume_finished",
                messages=progress.messages,
                stored=progress.stored,
                peers=list(progress.peers),
            )
        self._recorder.is_complete = True
        self._proceed_once()

    async def _fetch_all(self) -> None:
        """Fetch from one peer after the other until the gap is filled."""
        progress, failures = self._progress, 0
        while error := await self._fetch(self._peers[0]):
            progress.error = error
            failures += 1
            self._turn()
            if failures % len(self._peers) == 0:
                self._proceed_once()
                pause_s = self._backoff.take() * self._environment.random.uniform(0.5, 1.0)
                await asyncio.sleep(pause_s)
        # One came to the end; where it has shown nothing of the second half, it was off as well.
        middle_ns = (progress.time_start_ns + progress.time_end_ns) // 2
        for _ in range(len(self._peers) - 1):
            if not error and progress.reached_ns >= middle_ns:
                return
            self._turn()
            error = await self._fetch(self._peers[0])

    def _turn(self) -> None:
        """Make the next peer the first; a cursor is the peer's that gave it."""
        if len(self._peers) > 1:
            self._cursor = b""
            self._peers.rotate(-1)

    async def _fetch(self, peer: PeerAddress) -> str:
        """Scan a peer from where the last fetch ended; return the error, empty at the end."""
        progress = self._progress
        start_ns = progress.time_start_ns if self._cursor else progress.reached_ns
        self._fetch_ns = self._environment.steady_ns()
        end_ns = progress.time_end_ns
        self._log.info("resume_fetching", peer=str(peer), time_start=start_ns, time_end=end_ns)
        try:
            pages = self._work.caller.scan(peer, start_ns, end_ns, self._cursor)
            async with aclosing(pages):
                async for page in pages:
                    await self._take(peer, page)
        except (CursorOutOfRangeError, PeerError, NotServingError) as error:
            if isinstance(error, CursorOutOfRangeError):
                self._cursor = b""
            self._log.warning("resume_broken", peer=str(peer), error=str(error))
            self._failed(peer, f"resume: {error}")
            return str(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours; reconciliation must begin
            self._log.error("resume_failed", peer=str(peer), exc_info=error)
            return f"this node failed ({type(error).__name__}): see its log"
        return ""

    async def _take(self, peer: PeerAddress, page: ScannedPage) -> None:
        """Store one page; it counts as fetched only when all that may be stored is durable.

        Raises:
            PeerError: what the peer sends is not what it names, or takes too long.
        """
        messages, progress = page.messages, self._progress
        _, counted = await self._work.store(messages, page.hashes, Source.RESUME)
        if counted.rejected:
            self._log.warning("resume_refused", peer=str(peer), messages=dict(counted.rejected))
        self._cursor, progress.error = page.cursor, ""
        self._backoff.reset()
        progress.messages += len(messages)
        progress.stored += counted.stored
        if messages and str(peer) not in progress.peers:
            progress.peers.append(str(peer))
        now_ns = self._environment.steady_ns()
        if page.reached_ns > progress.reached_ns:
            progress.reached_ns = page.reached_ns
            if now_ns - self._persisted_ns >= _ADVANCE_EVERY_NS:
                self._persisted_ns = now_ns
                await self._recorder.note_resumed(self._last_ns, page.reached_ns)
        if now_ns - self._fetch_ns >= LONGEST_FETCH_NS:
            self._proceed_once()
            seconds = LONGEST_FETCH_NS // NS_PER_S
            sentence = f"the peer has not come to the end in {seconds} s"
            raise SessionFaultError(Fault.SLOW, sentence)

    def _proceed_once(self) -> None:
        if not self._has_proceeded:
            self._has_proceeded = True
            self._proceed()


@dataclass(frozen=True, slots=True)
class FetchDone:
    """The outcome of each entry that a peer was asked for, and of what came.

    ``already_stored`` here; ``found`` at the peer, and stored here now; ``missing`` there;
    ``refused`` by the rules that ``notes`` name. ``error``: why it was not asked to the end.
    """

    peer: PeerAddress
    already_stored: tuple[HistoryEntry, ...] = ()
    found: tuple[HistoryEntry, ...] = ()
    missing: tuple[HistoryEntry, ...] = ()
    refused: tuple[HistoryEntry, ...] = ()
    stored: int = 0
    notes: tuple[str, ...] = ()
    error: str = ""


Entries = tuple[HistoryEntry, ...]


class Fetcher:
    """The lookups of one node; on the event loop's thread."""

    def __init__(self, work: FetchWork, sds: SdsLookups) -> None:
        self._work = work
        self._sds = sds

    async def fetch(self, peer: PeerAddress, request: SdsLookup) -> FetchDone:
        """Ask one peer, once; see `store.sync.schedule.Synchronizer.fetch`."""
        wanted, doubtful = await self._missing(request.channel_id, request.entries)
        done = FetchDone(peer, already_stored=_without(request.entries, wanted))
        asked = wanted + doubtful
        if not asked:
            return done
        stored, error = 0, ""
        names: set[bytes | None] = set()  # of refused messages: their IDs or hashes
        reasons: Counter[str] = Counter()
        try:
            pages = self._work.caller.lookup(peer, request.channel_id, asked)
            async with aclosing(pages):
                async for page in pages:
                    admitted, counted = await self._work.store(page, (), Source.TRANSFER)
                    stored += counted.stored
                    for place, refusal in admitted.refusals.items():
                        payload = decode_message(page[place]).payload
                        names.add(name_of(payload, admitted.hashes[place]))
                        if refusal.sentence in reasons or len(reasons) < _MAX_NOTES:
                            reasons[refusal.sentence] += 1
        except PeerError as failed:
            error = str(failed)
        left, _ = await self._missing(request.channel_id, wanted)
        refused = tuple(entry for entry in left if {entry.message_id, entry.retrieval_hint} & names)
        self._work.environment.log.info(
            "fetched", peer=str(peer), asked=len(asked), stored=stored, error=error
        )
        return replace(
            done,
            found=_without(wanted, left),
            missing=() if error else _without(left, refused),
            refused=refused,
            stored=stored,
            notes=tuple(f"{count:,} refused: {why}" for why, count in reasons.most_common()),
            error=error,
        )

    async def _missing(
        self, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> tuple[Entries, Entries]:
        wanted = SdsLookup(
            channel_id, tuple(entries), TopicFilter(), claimants=1, prefer_proven=True
        )
        missing, unproven = await self._sds.doubtful(wanted)
        return tuple(missing), tuple(unproven)


def _without(entries: Entries, left: Entries) -> Entries:
    gone = set(left)
    return tuple(entry for entry in entries if entry not in gone)
