"""Pages of messages in SyncID order: the rows by one statement, frames as they fit.

A page of topics is merged from the index by topic, of everything it is read by time. Where some
messages are too large for their share of a page, those that fit are read by a second statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from store.db.pool import Connection
from store.db.reading.messages import (
    Row,
    Topics,
    columns_of,
    largest_of,
    read_frames,
    topics_clause,
    topics_parameters,
)
from store.db.statements import SQL
from store.domain.ports import SyncId
from storenode.message.limits import MAX_TIMESTAMP_NS

MAX_MERGED_TOPICS: Final = 200
"""Up to so many topics are merged from the topic index; beyond, the time index is filtered."""

BEFORE_ALL: Final[SyncId] = (0, b"")
AFTER_ALL: Final[SyncId] = (MAX_TIMESTAMP_NS, b"\xff" * 33)

_FEWEST_PER_TOPIC: Final = 16


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


async def read_page(
    connection: Connection, topics: Topics, window: PageWindow, shape: PageShape
) -> MessagePage:
    """Read one page of a selection of topics."""
    if topics.keys == () or window.low_ns > window.high_ns:
        return NO_PAGE
    limit = shape.size + shape.looks_beyond
    source, each = SQL.messages.page_by_time, limit
    if topics.keys is not None and len(topics.keys) <= MAX_MERGED_TOPICS:
        source = (
            SQL.messages.page_of_topic if len(topics.keys) == 1 else SQL.messages.page_of_topics
        )
        # About ``limit`` rows of all topics together if they are even.
        share = limit // len(topics.keys)
        each = min(limit, share + share // 2 + _FEWEST_PER_TOPIC)
    statement = _statement(
        source,
        filtered=topics.keys is not None,
        forward=window.forward,
        include_data=shape.include_data,
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
    rows: list[Row] = await cursor.fetchall()  # type: ignore[assignment]
    if (
        shape.looks_beyond
        and source is SQL.messages.page_of_topics
        and each < limit
        and len(rows) < limit
    ):
        # One topic had more than its share, which hides what the others have behind it.
        cursor = await connection.execute(statement, parameters | {"each": limit}, binary=True)
        rows = await cursor.fetchall()  # type: ignore[assignment]
    return await page_of(connection, rows, shape)


async def page_of(connection: Connection, rows: list[Row], shape: PageShape) -> MessagePage:
    """Return the page that begins with some rows, in their order."""
    frames = await read_frames(
        connection, rows[: shape.size], shape.max_bytes, include_data=shape.include_data
    )
    positions = [row[:2] for row in rows[: len(frames)]]
    return MessagePage(frames, positions, len(frames) == len(rows))


@cache
def _statement(source: str, *, filtered: bool, forward: bool, include_data: bool) -> str:
    return source.format(
        columns=columns_of(include_data=include_data),
        beyond=">" if forward else "<",
        until="<=" if forward else ">=",
        way="asc" if forward else "desc",
        topics=topics_clause(Topics(())) if filtered else "",
    )
