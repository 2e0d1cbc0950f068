"""Pages of messages: the rows of a source by one statement, frames as they fit.

A page in SyncID order is merged from the index by topic, or read by time. Where some messages are
too large for their share of a page, those that fit are read by a second statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from store.db.connection import Connection
from store.db.reading.messages import (
    Row,
    TopicKeys,
    largest_of,
    read_frames,
    topics_clause,
    topics_parameters,
)
from store.db.statements import SQL
from store.domain.ports import SyncId
from store.messages.frames import presence
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

MAX_MERGED_TOPICS: Final = 200
"""Up to so many topics are merged from the topic index; beyond, the time index is filtered."""

BEFORE_ALL: Final[SyncId] = (0, b"")
AFTER_ALL: Final[SyncId] = (MAX_TIMESTAMP_NS, b"\xff" * 33)

_FEWEST_PER_TOPIC: Final = 16
_PRESENCE_BYTES: Final = len(presence(bytes(HASH_BYTES)))


@dataclass(frozen=True, slots=True)
class PageWindow:
    """A range to read: between two timestamps (both inclusive), beyond ``at``, one way."""

    low_ns: int
    high_ns: int
    at: SyncId
    forward: bool


@dataclass(frozen=True, slots=True)
class PageShape:
    """The limits of a page: at most ``size`` messages, and ``max_bytes`` unless one has more.

    ``looks_beyond``: the page says whether there is more, for which one more row is read.
    """

    size: int
    max_bytes: int
    include_data: bool
    looks_beyond: bool = False


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Frames in reading order, and the positions of their messages.

    ``is_last``: no row that was read is left out.
    """

    frames: list[bytes]
    positions: list[SyncId]
    is_last: bool


NO_PAGE: Final = MessagePage([], [], is_last=True)


@cache
def build(source: str, *, include_data: bool, **parts: str) -> str:
    """Return the statement of a source of rows, which ``parts`` fill in."""
    columns = SQL.messages.data_columns if include_data else SQL.messages.id_columns
    return source.format(columns=columns, **parts)


async def read_page(
    connection: Connection, topics: TopicKeys, window: PageWindow, shape: PageShape
) -> MessagePage:
    """Read one page of a selection of topics."""
    if topics == () or window.low_ns > window.high_ns:
        return NO_PAGE
    limit = shape.size + shape.looks_beyond
    source, each = SQL.messages.page_by_time, limit
    if topics is not None and len(topics) <= MAX_MERGED_TOPICS:
        source = SQL.messages.page_of_topic if len(topics) == 1 else SQL.messages.page_of_topics
        # About ``limit`` rows of all topics together if they are even.
        share = limit // len(topics)
        each = min(limit, share + share // 2 + _FEWEST_PER_TOPIC)
    statement = build(
        source,
        include_data=shape.include_data,
        beyond=">" if window.forward else "<",
        until="<=" if window.forward else ">=",
        way="asc" if window.forward else "desc",
        topics=topics_clause(topics),
    )
    parameters: dict[str, object] = {
        "low": window.low_ns,
        "high": window.high_ns,
        "at_ts": window.at[0],
        "at_hash": window.at[1],
        "limit": limit,
        "each": each,
        "most": largest_of(shape.max_bytes, limit),
    }
    parameters |= topics_parameters(topics)
    cursor = await connection.execute(statement, parameters, binary=True)
    rows: list[Row] = await cursor.fetchall()
    if (
        shape.looks_beyond
        and source is SQL.messages.page_of_topics
        and each < limit
        and len(rows) < limit
    ):
        # One topic had more than its share, which hides what the others have behind it.
        cursor = await connection.execute(statement, parameters | {"each": limit}, binary=True)
        rows = await cursor.fetchall()
    page = await page_of(connection, rows, shape)
    if rows and not page.frames:  # all of them were pruned meanwhile
        return await read_page(connection, topics, window, shape)
    return page


async def page_of(connection: Connection, rows: Sequence[Row], shape: PageShape) -> MessagePage:
    """Return the page that begins with some rows, in their order."""
    frames = await show(connection, rows[: shape.size], shape)
    shown = [(frame, row[:2]) for frame, row in zip(frames, rows, strict=False) if frame]
    is_last = len(frames) == len(rows)
    return MessagePage([frame for frame, _ in shown], [at for _, at in shown], is_last)


async def show(
    connection: Connection, rows: Sequence[Row], shape: PageShape
) -> Sequence[bytes | None]:
    """Return the frames of the first rows that fit: `read_frames`, or those of hashes alone."""
    if shape.include_data:
        return await read_frames(connection, rows, shape.max_bytes)
    return [presence(row[1]) for row in rows[: max(1, shape.max_bytes // _PRESENCE_BYTES)]]
