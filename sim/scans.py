"""Scans, as a simulated node serves them to a peer that resumes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from sim.limits import SCAN_PAGE_MESSAGES
from sim.process import Process
from sim.rng import happens
from sim.streams import EndStream
from store.domain.ports import CursorOutOfRangeError, StoreUnavailableError
from store.messages.cursor import ScanCursor
from store.messages.transfer import transferred
from store.sync.session.reconciliation import in_time
from storenode.message.limits import NS_PER_S

SCAN: Final = "Scan"

_NO_HASH: Final = bytes(32)
_LOST_PLACE: Final = 0.3
"""Share of scans from a cursor that a peer does not serve, while there are faults."""

_BROKEN: Final = 0.2
"""Share of pages after which a scan breaks, while there are faults."""


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
    hashes: list[bytes]
    cursor: bytes
    reached_ns: int


async def serve_scan(process: Process, stream: EndStream) -> None:
    """Serve one scan."""
    silence_s = process.scenario.silence_ns / NS_PER_S
    request: Scan = await in_time(stream.read(), silence_s)
    if request.cursor and process.node.world.faulty and happens(process.rng, _LOST_PLACE):
        raise CursorOutOfRangeError("this cursor cannot be served")
    cursor = request.cursor
    while (page := await _read(process, request, cursor)) is not None:
        await in_time(stream.write(page), silence_s)
        if process.node.world.faulty and happens(process.rng, _BROKEN):
            raise StoreUnavailableError("the database does not answer")
        cursor = page.cursor


async def _read(process: Process, request: Scan, cursor: bytes) -> Page | None:
    return await process.database.look(lambda: _page(process, request, cursor))


def _page(process: Process, request: Scan, cursor: bytes) -> Page | None:
    database = process.database
    ids = database.ids
    first = bisect_left(ids, (request.start_ns, _NO_HASH))
    if cursor:
        after = ScanCursor.decode(cursor)
        first = max(first, bisect_right(ids, (after.timestamp, after.hash)))
    last = bisect_left(ids, (request.end_ns, _NO_HASH))
    some = ids[first : min(last, first + SCAN_PAGE_MESSAGES)]
    if not some:
        return None
    messages = [transferred(database.stored[digest][1]) for _, digest in some]
    hashes = [digest for _, digest in some]
    return Page(messages, hashes, ScanCursor(*some[-1]).encode(), some[-1][0])
