"""Shipped drivers with one fault each, such as somebody might make: the simulator must find them.

Each plants its fault by replacing an attribute of a shipped module, and says which words a failing
run has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.index import Index
from reconcile.keyed import DIGEST_BYTES, Sum, digest_of
from reconcile.lattice import LatticeSum
from reconcile.session import Result
from reconcile.view import Measured
from store.domain import coverage
from store.domain.admission import Admission
from store.domain.commits import CommitRow
from store.domain.coverage import Comparison, Run, Span, Statement
from store.domain.hub import Place
from store.domain.places import Caller
from store.domain.ports import (
    FetchDone,
    FetchRequest,
    HistoryEntry,
    PeerAddress,
    PeerFailed,
    ScannedPage,
    Source,
    StoreBusy,
    StoreUnavailable,
    SyncDone,
)
from store.domain.view import Times
from store.sync import lookup
from store.sync.errors import TooManyCalls
from store.sync.index import hot
from store.sync.index.warm_up import at
from store.sync.resume import driver as resume
from store.sync.resume.core import Advance, Fetch, FetchEnded, PageStored
from store.sync.schedule import driver as schedule
from store.sync.schedule.core import Begin as ScheduleBegin
from store.sync.schedule.core import Tick as ScheduleTick
from store.sync.session import (
    checking,
    exchange,
    initiator,
    locating,
    reconciling,
    responder,
    stating,
)
from store.sync.session.agreement import Agreement, Proof
from store.sync.session.outcome import NOTHING_TRANSFERRED
from store.sync.session.registry import Refusal, Session, State
from store.sync.transfer import driver as transfer
from store.sync.transfer.events import Begin, Ended, Input, Persist, Persisted, Report
from tests.sim.planting import Mutant, replace_with

_T = TypeVar("_T")

_STATE = stating.statements_of
_COUNT = coverage.stated
_COMPUTE = checking.Checking.compute
_RUNS = coverage._runs

# Reconciliation


async def _one_digest_for_all(
    self: checking.Checking, result: Result, *, lattice: bool = True
) -> checking.Digests:
    found = await _COMPUTE(self, result, lattice=lattice)
    self.own = replace(found, keyed=bytes(DIGEST_BYTES) if found.keyed else b"")
    return self.own


async def _one_lattice_digest_for_all(self: locating.Below) -> bytes:
    del self
    return bytes(DIGEST_BYTES)


async def _sum_what_is_held(
    self: locating.Below, spans: Sequence[Times]
) -> list[LatticeSum] | None:
    return await self._view.lattices(spans)


async def _state_whatever_was_transferred(
    compared: stating.Compared,
    result: Result,
    proof: Proof,
    report: Report,
    opened_ns: int,
    *,
    equal: bool,
) -> list[Statement]:
    del report, equal
    return await _STATE(compared, result, proof, NOTHING_TRANSFERRED, opened_ns, equal=True)


def _count_without_what_came(
    where: Sequence[Span], measured: Measured, found: Comparison
) -> list[Statement]:
    return _COUNT(where, measured, replace(found, to_receive=SyncIds.of(())))


async def _state_as_of_the_end(
    compared: stating.Compared,
    result: Result,
    proof: Proof,
    report: Report,
    opened_ns: int,
    *,
    equal: bool,
) -> list[Statement]:
    return await _STATE(compared, result, proof, report, opened_ns + 10**9, equal=equal)


_Held = Mapping[Span, tuple[int, bytes]]


def _runs_whatever_is_held(
    step: Span, statements: Sequence[Statement], held: _Held
) -> Iterator[Run]:
    del held
    unchanged = {
        (each.start_ns, each.end_ns): (each.count, each.fingerprint) for each in statements
    }
    return _RUNS(step, statements, unchanged)


def _runs_of_what_has_grown(
    step: Span, statements: Sequence[Statement], held: _Held
) -> Iterator[Run]:
    kept = [each for each in statements if held[each.start_ns, each.end_ns][0] >= each.count]
    return _runs_whatever_is_held(step, kept, held)


def _runs_of_what_has_shrunk(
    step: Span, statements: Sequence[Statement], held: _Held
) -> Iterator[Run]:
    kept = [each for each in statements if held[each.start_ns, each.end_ns][0] <= each.count]
    return _runs_whatever_is_held(step, kept, held)


def _digest_of_what_is_held(self: Agreement, result: Result, own: Sum) -> bytes:
    assert self.key is not None
    return digest_of(self.key, own, self.cut, result.window[1])


def _own_cut(self: Agreement) -> SyncId:
    return self._keyed_from_ns(), LOWEST[1]


# Transfer


async def _persist_without_storing(_: transfer._Driver, effect: Persist) -> Persisted:
    return Persisted(effect.token, [True] * len(effect.batch))


async def _persist_after_the_answer(self: transfer._Driver, effect: Persist) -> Persisted:
    self._spawn(lambda: _ignored(self._work.writer.store(effect.batch, Source.TRANSFER)))
    return Persisted(effect.token, [True] * len(effect.batch))


async def _ignored(work: Awaitable[object]) -> None:
    try:
        await work
    except (StoreBusy, StoreUnavailable):
        return


def _take_and_read_no_more(self: transfer._Driver, given: Input) -> Report | None:
    for effect in self._machine.step(self._work.environment.steady_ns(), given):
        if isinstance(effect, Ended):
            return effect.report
        self._do(effect)
    if isinstance(given, Begin):
        self._readable.set()
    else:
        self._readable.clear()
    return None


def _take_and_always_read(self: transfer._Driver, given: Input) -> Report | None:
    for effect in self._machine.step(self._work.environment.steady_ns(), given):
        if isinstance(effect, Ended):
            return effect.report
        self._do(effect)
    self._readable.set()
    return None


async def _read_and_report_no_error(self: transfer._Driver) -> None:
    try:
        while await self._read_frame():
            continue
    except PeerFailed:
        await asyncio.Event().wait()


async def _stop_nothing(self: transfer._Driver) -> None:
    self._reader = None


async def _run_past_the_end(self: transfer._Driver) -> Report:
    report = await _RUN(self)
    await asyncio.sleep(3600)
    return report


_RUN = transfer._Driver.run


# Sessions


@contextmanager
def _drive_and_never_free(self: exchange.Exchange, session: Session) -> Iterator[None]:
    self._tasks[session] = asyncio.current_task()  # type: ignore[assignment]
    try:
        yield
    finally:
        del self._tasks[session]


@contextmanager
def _drive_and_free_only_success(self: exchange.Exchange, session: Session) -> Iterator[None]:
    self._tasks[session] = asyncio.current_task()  # type: ignore[assignment]
    yield
    del self._tasks[session]
    if session.state is not State.WAITING:
        self.sessions.end(session)


def _keep_for_ever(self: exchange.Exchange, session: Session, account: exchange.Account) -> None:
    timer = asyncio.get_running_loop().call_later(10**6, lambda: None)
    self._waiting[session] = account, timer


def _claim_and_leave_the_timer(
    self: exchange.Exchange, node_id: str, session_id: str
) -> tuple[Session, exchange.Account] | Refusal:
    found = self.sessions.claim(self.environment.steady_ns(), node_id, session_id)
    if isinstance(found, Refusal):
        return found
    return found, self._waiting[found][0]


def _forget_half(self: exchange.Exchange, session: Session, sentence: str) -> None:
    del sentence
    self.sessions.end(session)


async def _wait_without_end(work: Awaitable[_T], silence_s: float) -> _T:
    del silence_s
    return await work


def _plant_patience(patch: pytest.MonkeyPatch) -> None:
    for module in (reconciling, responder):
        patch.setattr(module, "in_time", _wait_without_end)


@asynccontextmanager
async def _slot_that_is_kept(self: responder.Responder, caller: Caller) -> AsyncIterator[None]:
    self._openers[caller.node_id] += 1
    if self._openers[caller.node_id] > 2:
        raise TooManyCalls("limit reached")
    yield


async def _transfer_and_call_it_done(
    self: initiator.Initiator, session: Session, session_id: str
) -> None:
    del self, session, session_id


# Schedule and resume


def _wake_never(self: schedule.Synchronizer, time_ns: int | None) -> None:
    del self, time_ns


def _wake_at_once(self: schedule.Synchronizer, time_ns: int | None) -> None:
    if time_ns is not None:
        asyncio.get_running_loop().call_later(0, self._step, ScheduleTick())


def _answer_nobody(self: schedule.Synchronizer, number: int, done: object) -> None:
    del self, number, done


async def _session_that_is_never_over(self: schedule.Synchronizer, begin: ScheduleBegin) -> None:
    window = self._schedule.window(self._environment.now_ns(), begin)
    outcome = await self._caller.synchronize(begin.peer, window)
    if begin.asked is not None:
        self._answer(begin.asked.number, SyncDone(begin.peer, window, outcome))


async def _count_before_storing(self: resume.Resumer, peer: object, scanned: ScannedPage) -> None:
    count = len(scanned.messages)
    page = PageStored(scanned.cursor, scanned.reached_ns, count, count)
    for effect in self._machine.step(self._environment.steady_ns(), page):
        if isinstance(effect, Advance):
            await self._note(effect.last_online_ns)
    del peer


async def _fetch_and_hide_the_error(self: resume.Resumer, fetch: Fetch) -> FetchEnded:
    await _FETCH(self, fetch)
    return FetchEnded()


_FETCH = resume.Resumer._fetch


# The index


async def _ids_that_others_wrote(self: hot.HotIndex, commits: Sequence[CommitRow]) -> SyncIds:
    others = [each for each in commits if self._written_ids.take(each.place[1]) is None]
    return await self._stored.ids_of(others)


async def _take_in_or_pass_over(self: hot.HotIndex) -> None:
    while self._waiting and not self._lost.is_set():
        try:
            await self._take_in()
        except StoreUnavailable:
            self._place = self._waiting.popleft().place


def _prune_below_the_floor(self: hot.HotIndex, index: Index, floor_ns: int) -> None:
    del self
    index.prune(at(floor_ns))


def _lose_nothing(self: hot.HotIndex) -> None:
    self._waiting.clear()


async def _view_of_what_is_there(
    self: hot.HotIndex, place: Place, horizon_ns: int
) -> hot.HotView | None:
    del place, horizon_ns
    if self._index is None:
        return None
    return hot.HotView(self._index.view(), at(self._floor_ns), self._place)


async def _warm_and_forget_the_rest(self: hot.HotIndex) -> None:
    await _WARM(self)
    self._waiting.clear()


_WARM = hot.HotIndex._warm


# Look-ups


async def _take_without_storing(
    self: lookup.Fetcher, encoded: list[bytes], taken: lookup._Taken
) -> None:
    admission = Admission(self._policy(), self._environment.now_ns(), Source.TRANSFER)
    admission.admit(encoded)
    taken.stored += len(admission.admitted.batch)


async def _take_the_first_page(
    self: lookup.Fetcher, encoded: list[bytes], taken: lookup._Taken
) -> None:
    if not taken.stored:
        await _TAKE(self, encoded, taken)


_TAKE = lookup.Fetcher._take


async def _fetch_and_believe(
    self: lookup.Fetcher, peer: PeerAddress, request: FetchRequest
) -> FetchDone:
    done = await _FETCH_SDS(self, peer, request)
    return replace(done, found=(*done.found, *done.missing), missing=())


async def _fetch_and_call_the_rest_missing(
    self: lookup.Fetcher, peer: PeerAddress, request: FetchRequest
) -> FetchDone:
    done = await _FETCH_SDS(self, peer, request)
    known = {*done.held, *done.found, *done.refused}
    missing = tuple(entry for entry in request.entries if entry not in known)
    return replace(done, missing=missing, error="")


_FETCH_SDS = lookup.Fetcher.fetch


async def _missing_all(
    self: lookup.Fetcher, channel_id: bytes, entries: Sequence[HistoryEntry]
) -> tuple[lookup.Entries, lookup.Entries]:
    del self, channel_id
    return tuple(entries), ()


class _Sleepless:
    """`asyncio` whose pauses take no time."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(_: float) -> None:
        await asyncio.sleep(0)


DRIVERS = {
    "says stored without storing": Mutant(
        replace_with(transfer._Driver, "_persist", _persist_without_storing),
        "acknowledged .* does not hold",
        10,
    ),
    "answers before it stores": Mutant(
        replace_with(transfer._Driver, "_persist", _persist_after_the_answer),
        "acknowledged .* does not hold",
    ),
    "never reads again": Mutant(
        replace_with(transfer._Driver, "_take", _take_and_read_no_more),
        "do not become equal|circles",
    ),
    "reads although it must not": Mutant(
        replace_with(transfer._Driver, "_take", _take_and_always_read), "too much waits"
    ),
    "never reports a broken stream": Mutant(
        replace_with(transfer._Driver, "_read", _read_and_report_no_error),
        "after its stream has failed|names of sessions are kept",
    ),
    "leaves the tasks of a transfer": Mutant(
        replace_with(transfer._Driver, "stop", _stop_nothing),
        "tasks are left|stream has failed|step",
    ),
    "goes on after the end": Mutant(
        replace_with(transfer._Driver, "run", _run_past_the_end),
        "do not become equal|stream has failed|circles",
    ),
    "never frees a session": Mutant(
        replace_with(exchange.Exchange, "driving", _drive_and_never_free),
        "are left|do not become equal|refused",
    ),
    "frees a session on success only": Mutant(
        replace_with(exchange.Exchange, "driving", _drive_and_free_only_success),
        "are left|do not become equal",
        2,
    ),
    "lets a session wait for ever": Mutant(
        replace_with(exchange.Exchange, "keep", _keep_for_ever), "waits too long", 34
    ),
    "leaves the timer of a claimed session": Mutant(
        replace_with(exchange.Exchange, "claim", _claim_and_leave_the_timer), "that are over"
    ),
    "forgets a session by half": Mutant(
        replace_with(exchange.Exchange, "_forget", _forget_half), "that are over|are left", 11
    ),
    "waits for a silent peer for ever": Mutant(_plant_patience, "waited", 26),
    "keeps the slots of callers": Mutant(
        replace_with(responder.Responder, "_slot", _slot_that_is_kept), "do not become equal"
    ),
    "takes every digest for its own": Mutant(
        replace_with(checking.Checking, "compute", _one_digest_for_all), "are missing", 64
    ),
    "takes every lattice digest for its own": Mutant(
        replace_with(locating.Below, "digest", _one_lattice_digest_for_all), "are missing"
    ),
    "leaves out of its lattice sums what it expects": Mutant(
        replace_with(locating.Below, "_sums", _sum_what_is_held), "accuses an honest peer"
    ),
    "leaves out of its digest what it expects": Mutant(
        replace_with(Agreement, "digest", _digest_of_what_is_held), "accuses an honest peer"
    ),
    "compares digests that begin at its own time": Mutant(
        replace_with(Agreement, "cut", property(_own_cut)), "from other times|accuses", 11
    ),
    "leaves the transfer out": Mutant(
        replace_with(initiator.Initiator, "_transfer", _transfer_and_call_it_done),
        "calls itself in sync|do not become equal|waits too long",
    ),
    "states equality whatever was transferred": Mutant(
        replace_with(exchange, "statements_of", _state_whatever_was_transferred), "states equality"
    ),
    "states counts without what came": Mutant(
        replace_with(stating, "stated", _count_without_what_came), "states equality"
    ),
    "dates statements later than it read": Mutant(
        replace_with(exchange, "statements_of", _state_as_of_the_end), "dated too late"
    ),
    "never withdraws a statement": Mutant(
        replace_with(coverage, "_runs", _runs_whatever_is_held), "is equal over", 9
    ),
    "withdraws no statement after a late message": Mutant(
        replace_with(coverage, "_runs", _runs_of_what_has_grown), "is equal over", 9
    ),
    "keeps statements after commits were lost": Mutant(
        replace_with(coverage, "_runs", _runs_of_what_has_shrunk), "is equal over", 20_110
    ),
    "misses its wake-up": Mutant(
        replace_with(schedule.Synchronizer, "_wake_at", _wake_never),
        "do not become equal|nothing is left",
    ),
    "wakes up without a pause": Mutant(
        replace_with(schedule.Synchronizer, "_wake_at", _wake_at_once),
        "circles|too much is under way",
    ),
    "answers no operator": Mutant(
        replace_with(schedule.Synchronizer, "_answer", _answer_nobody), "circles|nothing is left"
    ),
    "never ends a session for the schedule": Mutant(
        replace_with(schedule.Synchronizer, "_session", _session_that_is_never_over),
        "do not become equal|circles",
    ),
    "counts a page before it is stored": Mutant(
        replace_with(resume.Resumer, "_take", _count_before_storing), "has passed over"
    ),
    "hides the error of a resume": Mutant(
        replace_with(resume.Resumer, "_fetch", _fetch_and_hide_the_error), "has passed over", 40
    ),
    "leaves out of its index what it writes": Mutant(
        replace_with(hot.HotIndex, "_ids_of", _ids_that_others_wrote), "lacks .* that are durable"
    ),
    "passes over a commit that it could not read": Mutant(
        replace_with(hot.HotIndex, "_take_in_all", _take_in_or_pass_over),
        "lacks .* that are durable",
        29,
    ),
    "prunes its index and leaves the floor": Mutant(
        replace_with(hot.HotIndex, "_raise_floor", _prune_below_the_floor),
        "lacks .* that are durable|do not become equal",
    ),
    "does not notice that commits were lost": Mutant(
        replace_with(hot.HotIndex, "lost", _lose_nothing),
        "lacks .* that are durable|keeps what its database has lost",
        13,
    ),
    "opens a view of an index that is behind": Mutant(
        replace_with(hot.HotIndex, "view_at", _view_of_what_is_there),
        "lacks .* that are durable",
        26,
    ),
    "forgets what came while it warmed up": Mutant(
        replace_with(hot.HotIndex, "_warm", _warm_and_forget_the_rest),
        "lacks .* that are durable",
        16,
    ),
    "looks up messages and stores none": Mutant(
        replace_with(lookup.Fetcher, "_take", _take_without_storing), "misses .* SDS messages"
    ),
    "takes one page of a look-up": Mutant(
        replace_with(lookup.Fetcher, "_take", _take_the_first_page), "misses .* SDS messages", 2
    ),
    "calls found what a peer lacks": Mutant(
        replace_with(lookup.Fetcher, "fetch", _fetch_and_believe), "calls found"
    ),
    "hides the error of a look-up": Mutant(
        replace_with(lookup.Fetcher, "fetch", _fetch_and_call_the_rest_missing),
        "misses .* SDS messages",
        15,
    ),
    "looks up what it holds": Mutant(
        replace_with(lookup.Fetcher, "_missing", _missing_all), "SDS messages that it holds"
    ),
    "resumes without a pause": Mutant(replace_with(resume, "asyncio", _Sleepless()), "circles", 10),
}
