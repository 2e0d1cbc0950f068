"""What was missed while a store was off, and the scans that serve it.

See `store.sync.resume.driver`, which does the same on the edge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reconcile.ids import SyncId
from sim.calls import Closed, End, Ended, Status
from sim.database import Unavailable
from sim.dice import happens
from sim.exchange import Exchange
from sim.limits import NS_PER_S, SCAN_PAGE_MESSAGES
from sim.marks import Mark
from sim.process import Handler, Process
from sim.tasks import Steps, Task
from store.domain.ports import PeerAddress, Source
from store.messages.cursor import ScanCursor
from store.messages.transfer import parse, transferred
from store.messages.validate import Verdict
from store.sync.resume.core import (
    Advance,
    Begun,
    Fetch,
    FetchEnded,
    Finished,
    Input,
    PageStored,
    Proceed,
    Resume,
    ResumeConfig,
    Tick,
    WakeAt,
)

SCAN: Final = "Scan"

_NO_HASH: Final = bytes(32)
_ONLINE_EVERY_NS: Final = 5 * NS_PER_S
_LOST_PLACE: Final = 0.3
"""Share of scans from a cursor that a peer does not serve, while there are faults."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A ``ScanRequest``: what of a half-open range of time comes after a cursor."""

    start_ns: int
    end_ns: int
    cursor: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """A ``ScanPage``, its messages as ``WakuMessageAndTopic``."""

    messages: list[bytes]
    cursor: bytes


class Scans:
    """Serves `Scan`; a `sim.process.Service`."""

    def __init__(self, process: Process, exchange: Exchange) -> None:
        self._process = process
        self._exchange = exchange

    def methods(self) -> Mapping[str, Handler]:
        """The one."""
        return {SCAN: self._serve}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """None."""
        return {}

    def start(self) -> None:
        """Nothing to begin with."""

    def check(self) -> None:
        """Nothing is kept."""

    def _serve(self, end: End, _: Task) -> Steps[None]:
        process = self._process
        request = yield from self._exchange.in_time(end.read())
        if not isinstance(request, Scan):
            end.finish(Status.INVALID_ARGUMENT)
            return
        if request.cursor and process.node.world.faulty and happens(process.dice, _LOST_PLACE):
            end.finish(Status.OUT_OF_RANGE, "this cursor cannot be served")
            return
        cursor = request.cursor
        try:
            while page := (yield from self._read(request, cursor)):
                yield from self._exchange.in_time(end.send(page))
                cursor = page.cursor
        except Unavailable as error:
            end.finish(Status.UNAVAILABLE, str(error))
            return
        end.finish()

    def _read(self, request: Scan, cursor: bytes) -> Steps[Page | None]:
        return (yield from self._process.database.look(lambda: self._page(request, cursor)).wait())

    def _page(self, request: Scan, cursor: bytes) -> Page | None:
        database = self._process.database
        ids = database.ids
        first = bisect_left(ids, (request.start_ns, _NO_HASH))
        if cursor:
            after = ScanCursor.decode(cursor)
            first = max(first, bisect_right(ids, (after.timestamp, after.hash)))
        last = bisect_left(ids, (request.end_ns, _NO_HASH))
        some = ids[first : min(last, first + SCAN_PAGE_MESSAGES)]
        if not some:
            return None
        messages = [transferred(database.held[digest][1]) for _, digest in some]
        return Page(messages, ScanCursor(*some[-1]).encode())


class Resumer:
    """Fills the gap, then notes that the store is online; a `sim.process.Service`."""

    def __init__(
        self,
        process: Process,
        exchange: Exchange,
        peers: tuple[PeerAddress, ...],
        proceed: Callable[[], None],
    ) -> None:
        config = ResumeConfig(peers=peers, slack_ns=process.scenario.offset_ns)
        self._process = process
        self._exchange = exchange
        self._machine: Resume = process.cores.resume(config, process.dice)
        self._proceed = proceed
        self._expected: list[SyncId] = []
        self._refused: set[bytes] = set()

    def methods(self) -> Mapping[str, Handler]:
        """None."""
        return {}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """None."""
        return {}

    def start(self) -> None:
        """Begin."""
        self._process.spawn("resume", self._run())

    def check(self) -> None:
        """Verify the machine."""
        self._machine.check()

    def _run(self) -> Steps[None]:
        process = self._process
        yield from self._resume()
        while True:
            yield from self._note(process.clock.unix_ns())
            yield from process.sleep(_ONLINE_EVERY_NS)

    def _resume(self) -> Steps[None]:
        process = self._process
        inputs: deque[Input] = deque([(yield from self._begun())])
        while inputs:
            for effect in self._machine.step(process.clock.steady_ns(), inputs.popleft()):
                match effect:
                    case Fetch():
                        inputs.append((yield from self._fetch(effect)))
                    case WakeAt():
                        yield from process.sleep(effect.time_ns - process.clock.steady_ns())
                        inputs.append(Tick())
                    case Advance():
                        yield from self._note(effect.last_online_ns)
                    case Proceed():
                        self._proceed()
                    case Finished():
                        process.note("resume finished")
            self._machine.check()

    def _begun(self) -> Steps[Begun]:
        process, database = self._process, self._process.database
        while True:
            try:
                online_ns = yield from database.look(lambda: database.last_online_ns).wait()
            except Unavailable:
                yield from process.sleep(NS_PER_S)
            else:
                horizon_ns = process.policy().horizon_ns or 0
                return Begun(process.clock.unix_ns(), online_ns, horizon_ns)

    def _fetch(self, fetch: Fetch) -> Steps[FetchEnded]:
        process = self._process
        process.note(f"scans {fetch.peer.host}")
        try:
            end = yield from process.network.call(
                process.name, fetch.peer.host, SCAN, process.identity
            )
            try:
                yield from self._take_pages(fetch, end)
            finally:
                end.cancel()
        except Closed as error:
            lost_place = error.status is Status.OUT_OF_RANGE
            if lost_place:
                process.mark(Mark.LOST_PLACE)
            return FetchEnded(str(error), lost_place)
        except Unavailable as error:
            return FetchEnded(str(error))
        process.judge.advanced(process.database, self._expected, fetch.time_end_ns, self._refused)
        return FetchEnded()

    def _take_pages(self, fetch: Fetch, end: End) -> Steps[None]:
        scan = Scan(fetch.time_start_ns, fetch.time_end_ns, fetch.cursor)
        self._expected = self._promised(fetch)
        yield from self._exchange.in_time(end.send(scan))
        while not isinstance(page := (yield from self._exchange.in_time(end.read())), Ended):
            yield from self._take(page)

    def _promised(self, fetch: Fetch) -> list[SyncId]:
        """What the peer holds now of what it is asked for."""
        ids = self._process.node.world.database_at(fetch.peer.host).ids
        lower = (fetch.time_start_ns, _NO_HASH)
        if fetch.cursor:
            after = ScanCursor.decode(fetch.cursor)
            lower = max(lower, (after.timestamp, after.hash + b"\0"))
        return ids[bisect_left(ids, lower) : bisect_left(ids, (fetch.time_end_ns, _NO_HASH))]

    def _take(self, page: Page) -> Steps[None]:
        process, database = self._process, self._process.database
        reached = ScanCursor.decode(page.cursor)
        door = process.cores.door(process.policy(), process.clock.unix_ns(), Source.RESUME)
        door.admit(parse(page.messages))
        published = door.published
        self._refused.update(
            digest
            for digest, verdict in zip(published.hashes, published.verdicts, strict=True)
            if verdict is Verdict.REJECTED
        )
        new = yield from database.write(process, published.batch).wait()
        stored = PageStored(page.cursor, reached.timestamp, len(page.messages), sum(new))
        process.mark(Mark.SCANNED)
        for effect in self._machine.step(process.clock.steady_ns(), stored):
            if isinstance(effect, Advance):
                process.judge.advanced(
                    database, self._expected, effect.last_online_ns, self._refused
                )
                yield from self._note(effect.last_online_ns)

    def _note(self, online_ns: int) -> Steps[None]:
        process, database = self._process, self._process.database
        clock_ns = process.clock.unix_ns()
        try:
            yield from database.look(lambda: database.note_online(online_ns, clock_ns)).wait()
        except Unavailable:
            process.note("online not noted")
