"""Fetches at the start what was missed while the store was off, and keeps "last online" true.

The rules are in `store.sync.resume.core`; here are the peers, admission and the database.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, Protocol

from store.domain.admission import Admission
from store.domain.coverage import Interval
from store.domain.environment import Environment
from store.domain.ports import (
    CursorOutOfRange,
    PeerAddress,
    PeerCaller,
    PeerFailed,
    ResumeState,
    ScannedPage,
    Source,
    StoreBusy,
    StoreUnavailable,
    Writer,
)
from store.sync.errors import PeerSilentError, ProtocolBrokenError
from store.sync.resume.core import (
    LONGEST_FETCH_NS,
    Advance,
    Begun,
    Fetch,
    FetchEnded,
    Finished,
    Input,
    Leave,
    PageStored,
    Proceed,
    Resume,
    ResumeConfig,
    Tick,
    WakeAt,
)
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy

_CHUNK: Final = 256
"""Messages that are judged at a time, so that others on the event loop get their turn."""

_ADVANCE_EVERY_S: Final = 1.0
"""Progress is persisted no more often: a row that is written with every page grows old versions."""


class OnlineTimes(Protocol):
    """When the store was last online, as its database remembers."""

    async def last(self) -> int:
        """Unix nanoseconds; 0: never.

        Raises:
            StoreUnavailable: the database does not answer.
        """

    async def note(self, online_ns: int, now_ns: int) -> None:
        """Persist that nothing up to ``online_ns`` was missed, by the clock ``now_ns``.

        Raises:
            StoreUnavailable: the database did not take it.
        """

    async def record(self, interval: Interval) -> None:
        """Keep what was resumed; raises as `note`."""


class Resumer:
    """One per node; runs as a task until the node stops."""

    def __init__(
        self,
        config: ResumeConfig,
        *,
        caller: PeerCaller,
        online: OnlineTimes,
        writer: Writer,
        policy: Callable[[], Policy],
        environment: Environment,
        proceed: Callable[[], None],
        failed: Callable[[PeerAddress, str], None],
    ) -> None:
        """``proceed`` is called once, when reconciliation may begin.

        ``failed`` is told why what a peer was asked for did not come.
        """
        self._peers = config.peers
        self._online_interval_s = config.online_interval_s
        self._machine = Resume(config, environment.random)
        self._caller = caller
        self._online = online
        self._writer = writer
        self._policy = policy
        self._environment = environment
        self._log = environment.log
        self._proceed = proceed
        self._failed = failed
        self._finished = False
        self._persisted_s = 0.0
        self._last_ns = 0

    def state(self) -> ResumeState | None:
        """For the node's status; None when there was no gap."""
        progress = self._machine.progress
        return progress if progress.time_end_ns else None

    async def run(self) -> None:
        """Fill the gap, then note every few seconds that the store is online."""
        if not self._peers:
            self._proceed()
            await asyncio.Event().wait()
        if not self._finished:
            await self._resume()
        while True:
            await self._note(self._environment.now_ns())
            await asyncio.sleep(self._online_interval_s)

    async def stop(self) -> None:
        """Note the time at which the store goes off."""
        if self._peers and self._finished:
            await self._note(self._environment.now_ns())

    async def _resume(self) -> None:
        horizon_ns = self._policy().horizon_ns or 0
        last_online_ns = self._last_ns = await self._online.last()
        inputs: deque[Input] = deque(
            [Begun(self._environment.now_ns(), last_online_ns, horizon_ns)]
        )
        while inputs:
            for effect in self._machine.step(self._environment.steady_ns(), inputs.popleft()):
                match effect:
                    case Fetch():
                        inputs.append(await self._fetch(effect))
                    case WakeAt():
                        await asyncio.sleep(
                            max(0, effect.time_ns - self._environment.steady_ns()) / NS_PER_S
                        )
                        inputs.append(Tick())
                    case Advance():
                        await self._advance(effect)
                    case Proceed():
                        self._proceed()
                    case Finished():
                        self._finished = True
        self._tell()

    async def _fetch(self, fetch: Fetch) -> FetchEnded:
        self._log.info(
            "resume_fetching",
            peer=str(fetch.peer),
            time_start=fetch.time_start_ns,
            time_end=fetch.time_end_ns,
        )
        try:
            pages = self._caller.scan(
                fetch.peer, fetch.time_start_ns, fetch.time_end_ns, fetch.cursor
            )
            async with aclosing(pages):
                async for page in pages:
                    await self._take(fetch.peer, page)
        except CursorOutOfRange as error:
            return self._broken(fetch.peer, error, lost_place=True)
        except (PeerFailed, StoreBusy, StoreUnavailable) as error:
            return self._broken(fetch.peer, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours; reconciliation must begin
            self._log.error("resume_failed", peer=str(fetch.peer), exc_info=error)
            return FetchEnded(f"this node failed ({type(error).__name__}): see its log")
        return FetchEnded()

    def _broken(
        self, peer: PeerAddress, error: Exception, *, lost_place: bool = False
    ) -> FetchEnded:
        self._log.warning("resume_broken", peer=str(peer), error=str(error))
        self._failed(peer, f"resume: {error}")
        return FetchEnded(str(error), lost_place)

    async def _take(self, peer: PeerAddress, scanned: ScannedPage) -> None:
        """Store one page; it counts as come only when all that may be stored is durable.

        Raises:
            PeerFailed: what the peer sends is not what it names, or takes too long.
        """
        messages = scanned.messages
        admission = Admission(self._policy(), self._environment.now_ns(), Source.RESUME)
        for start in range(0, len(messages), _CHUNK):
            admission.admit(messages[start : start + _CHUNK])
            await asyncio.sleep(0)
        # A message that cannot be decoded may have none; it is refused.
        named = zip(admission.admitted.hashes, scanned.hashes, strict=True)
        if any(found and found != given for found, given in named):
            raise ProtocolBrokenError(
                "the peer sends messages that do not have the hashes it gives"
            )
        stored = await self._writer.store(admission.admitted.batch, Source.RESUME)
        admission.admitted.refuse_conflicts(stored)
        counted = admission.admitted.count(stored)
        self._environment.counts.count_intake(
            Source.RESUME.value, counted.duplicate, counted.rejected
        )
        if counted.rejected:
            self._log.warning("resume_refused", peer=str(peer), messages=dict(counted.rejected))
        page = PageStored(scanned.cursor, scanned.reached_ns, len(messages), counted.stored)
        for effect in self._machine.step(self._environment.steady_ns(), page):
            match effect:
                case Advance() if self._due():
                    await self._advance(effect)
                case Proceed():
                    self._proceed()
                case Leave():
                    raise PeerSilentError(
                        f"the peer has not come to the end in {LONGEST_FETCH_NS // NS_PER_S} s"
                    )

    def _due(self) -> bool:
        now_s = self._environment.steady_ns() / NS_PER_S
        if now_s - self._persisted_s < _ADVANCE_EVERY_S:
            return False
        self._persisted_s = now_s
        return True

    async def _advance(self, effect: Advance) -> None:
        reached_ns = effect.last_online_ns
        fetched = Interval(self._last_ns, reached_ns, resumed=True)
        await self._note(reached_ns, fetched if 0 < self._last_ns < reached_ns else None)

    async def _note(self, online_ns: int, fetched: Interval | None = None) -> None:
        try:
            await self._online.note(online_ns, self._environment.now_ns())
            if fetched is not None:
                await self._online.record(fetched)
        except StoreUnavailable as error:
            # The time stays as it was, and the next resume fetches a little more.
            self._log.debug("online_not_noted", error=str(error))

    def _tell(self) -> None:
        state = self.state()
        if state is not None:
            self._log.info(
                "resume_finished",
                messages=state.messages,
                stored=state.stored,
                peers=list(state.peers),
            )
