"""A pair of reconciliations that are joined in memory, and concluded by sums."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import IndexView
from reconcile.lattice import LatticeSum
from reconcile.limits import DEFAULT_SESSION_LIMITS, SessionLimits
from reconcile.session import Result, Role, SessionConfig
from reconcile.view import ViewAnswer as Answer
from reconcile.view import ViewRead as Read
from store.domain.hub import START
from store.domain.ports import PeerError
from store.domain.view import Span
from store.sync.frames import parse_reconcile
from store.sync.session.agreement import Agreement
from store.sync.session.reconciliation import Reconciliation, asked_range
from store.sync.session.report import SessionReport, SyncObserver, SyncRole
from store.sync.session.sum_search import ConflictMemory
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame

TIMEOUT_S = 60.0

EVERYTHING = (LOWEST, (END[0], LOWEST[1]))

Tamper = Callable[[ReconcileFrame], None]


def unchanged(frame: ReconcileFrame) -> None:
    """Change nothing, as an honest sender."""


class MemoryView:
    """A view of some IDs, of which those from a time on count as being in memory."""

    horizon = LOWEST
    places = (START,)

    def __init__(self, side: Side) -> None:
        self.memory_start = side.memory_start
        self._side = side
        self._view = side.view or IndexView.of(side.id_columns())

    async def answer(self, read: Read) -> Answer:
        """Return the answer from memory."""
        return self._view.answer(read)

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return the lattice sums of ranges of time."""
        if not self._side.sums:
            return None
        found = self._view.lattices(spans)
        assert found is not None
        return [LatticeSum(each.count + self._side.missummed, each.state) for each in found]

    async def listed(self, span: Span, limit: int) -> SyncIds | None:
        """Return the IDs of a range of time; None: more than ``limit``."""
        low, high = (self._view.rank((time_ns, LOWEST[1])) for time_ns in span)
        return self._view.rows.between(low, high) if high - low <= limit else None

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs with their content digests."""
        rows = self._view.rows
        return SyncIds(ids.timestamps, ids.hashes, rows.digests(rows.ranks(ids)))

    @property
    def indexed(self) -> IndexView | None:
        """The index in memory."""
        return None if self.memory_start is None else self._view


@dataclass
class Side:
    """A side: its IDs, as a set or as a view, its abilities, and its lies.

    ``contents``: content digests that are others than usual. ``agrees``: it has the extension.
    ``sums``: it has lattice sums.

    ``compact_from`` and ``offers``: as `Reconciliation` has them.
    """

    ids: set[SyncId] = field(default_factory=set)
    view: IndexView | None = None
    contents: dict[SyncId, bytes] = field(default_factory=dict)
    agrees: bool = True
    compact_from: int | None = None
    offers: bool = True
    cluster: int = 1
    memory_start: SyncId | None = LOWEST
    horizon: SyncId = LOWEST
    tamper: Tamper = unchanged
    missummed: int = 0
    sums: bool = True
    nonce: bytes = b""
    limits: SessionLimits = DEFAULT_SESSION_LIMITS
    sent: list[ReconcileFrame] = field(default_factory=list)
    conflicts: ConflictMemory = field(default_factory=ConflictMemory)
    work: Reconciliation | None = None
    report: SessionReport = field(default_factory=lambda: SessionReport(SyncRole.INITIATOR, 0))
    result: Result | None = None
    error: BaseException | None = None

    @property
    def found(self) -> Reconciliation:
        """The reconciliation, with what it has found."""
        assert self.work is not None
        return self.work

    def id_columns(self) -> SyncIds:
        """Return the IDs with their content digests."""
        ids = SyncIds.of(sorted(self.ids))
        digests = b"".join(self.contents.get(each, each[1][:16]) for each in ids)
        return SyncIds(ids.timestamps, ids.hashes, np.frombuffer(digests, np.uint8).reshape(-1, 16))


class _Stream:
    def __init__(self, side: Side, inbox: asyncio.Queue[Any], outbox: asyncio.Queue[Any]) -> None:
        self._side = side
        self._inbox = inbox
        self._outbox = outbox

    async def read(self) -> bytes | None:
        """Return the next frame; None after the last."""
        return cast("bytes | None", await self._inbox.get())

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        sent = ReconcileFrame.FromString(frame)
        self._side.tamper(sent)
        self._side.sent.append(sent)
        await self._outbox.put(sent.SerializeToString())

    async def half_close(self) -> None:
        """End this direction."""
        await self._outbox.put(None)


async def reconcile(
    initiator: Side, responder: Side, window: tuple[SyncId, SyncId] = EVERYTHING
) -> None:
    """Run one session to its end on both sides; results and errors are in the sides."""
    there: asyncio.Queue[Any] = asyncio.Queue()
    back: asyncio.Queue[Any] = asyncio.Queue()
    one = _verifying(initiator, Role.INITIATOR, _Stream(initiator, back, there), window)

    async def answer() -> Result:
        first = parse_reconcile(await there.get())
        asked = await asked_range(first.ranges_data, responder.limits.payload)
        stream = _Stream(responder, there, back)
        work = _verifying(responder, Role.RESPONDER, stream, window, has_view=asked is not None)
        return await work.respond(first)

    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(
            _run(initiator, one.initiate(), there), _run(responder, answer(), back)
        )


async def _run(side: Side, work: Any, outbox: asyncio.Queue[Any]) -> None:  # noqa: ANN401
    try:
        side.result = await work
    except (PeerError, ValueError) as error:
        side.error = error
    finally:
        await outbox.put(None)


def _verifying(
    side: Side,
    role: Role,
    stream: _Stream,
    window: tuple[SyncId, SyncId],
    *,
    has_view: bool = True,
) -> Reconciliation:
    config = SessionConfig(
        cluster=side.cluster,
        shards=(),
        window=window if role is Role.INITIATOR else None,
        horizon=side.horizon,
        limits=side.limits,
    )
    agreement, view = None, MemoryView(side) if has_view else None
    if side.agrees and view is not None:
        nonce = side.nonce or bytes([role is Role.INITIATOR]) * 16
        lower = max(side.horizon, window[0])
        agreement = Agreement(role, nonce, view, lower)
    side.work = Reconciliation(
        role,
        config,
        stream,
        view,
        side.report,
        observer=cast("SyncObserver", SimpleNamespace(session_progressed=lambda _: None)),
        silence_s=5.0,
        turn=_no_turn,
        agreement=agreement,
        compact_from=side.compact_from,
        offers=side.offers,
        session_id="0" * 32 if role is Role.RESPONDER else "",
        known=side.conflicts.known("peer", 0),
    )
    return side.work


@asynccontextmanager
async def _no_turn(payload_bytes: int) -> AsyncIterator[None]:
    del payload_bytes
    yield
