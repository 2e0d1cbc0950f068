"""Pages of messages in commit order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from reconcile.ids import SyncId
from store.db.arrays import bigints, split_uuids
from store.db.connection import Connection, fetch_row, fetch_rows
from store.db.reading.messages import (
    PageShape,
    Row,
    TopicKeys,
    build,
    frame_of,
    largest_of,
    resolve,
    show,
    topics_clause,
    topics_parameters,
)
from store.db.statements import SQL
from store.domain.hub import START, CommitRow, Place, at_most
from store.domain.hub import Row as LiveRow
from store.domain.ports import CursorOutOfRangeError, TopicFilter
from storenode.message.limits import MAX_TIMESTAMP_NS

MAX_PAGE_MESSAGES: Final = 4_000
_MAX_COMMITS: Final = 2_000
MAX_POSITIONS: Final = 250_000
"""Positions that are looked through for one page, a fifth of a second: a follower of a topic on
which little is said would otherwise look through all commits in one statement."""

TOKEN_SPAN: Final = 1 << 64
"""Tokens are signed in the database and not in a `Place`."""

LOST: Final = (
    "the database has lost the commit that the cursor names; scan what may be missing, then follow"
    " with an empty cursor"
)
BEHIND: Final = (
    "this node reads a standby, which has not come to the commit that the cursor names: retry, or"
    " ask a node that takes writes"
)
FOREIGN: Final = (
    "the cursor belongs to another database; follow from the beginning, or scan the gap"
)


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """A position in the feed: after a commit, or ``inside`` it after one of its messages."""

    place: Place
    inside: SyncId | None = None


@dataclass(frozen=True, slots=True)
class BacklogPage:
    """Joined frames, their number, and the position after them."""

    frames: bytes
    count: int
    position: FeedPosition


async def newest(connection: Connection) -> Place:
    """Return the place of the newest commit; `START` when there is none."""
    row = await fetch_row(connection, SQL.commits.read_newest)
    return START if row is None else _place(row[0], row[1])


async def _first_from(connection: Connection, position: int) -> Place:
    """Return the place of the first commit from a position on; there must be one."""
    row = await fetch_row(connection, SQL.commits.read_first_from, (position,))
    assert row is not None, "the newest commit is there"
    return _place(row[0], row[1])


async def is_served(connection: Connection, place: Place) -> bool:
    """Return True if a place is this database's own: its commit is there, or was pruned since.

    A commit that is missing although an older one is stored was lost (or never was).
    """
    if place == START:
        return True
    row = await fetch_row(connection, SQL.commits.read_commit, (place[0],))
    if row is not None and _place(place[0], row[0]) == place:
        return True
    row = await fetch_row(connection, SQL.commits.read_oldest)
    return row is not None and place[0] < row[0]


async def commits_between(
    connection: Connection, first: int, last: int, topics: TopicKeys, limit: int = _MAX_COMMITS
) -> list[CommitRow]:
    """Read commits from ``first`` to ``last``, those that may hold a topic of a selection."""
    touching = "" if topics is None else f" {SQL.commits.touching}"
    rows = await fetch_rows(
        connection,
        SQL.commits.read_between.format(topics=touching),
        {"first": first, "last": last, "limit": limit} | topics_parameters(topics),
    )
    return [
        CommitRow(
            _place(position, token),
            batch,
            count,
            first_ns,
            last_ns,
            None if keys is None else tuple(split_uuids(keys)),
        )
        for position, token, batch, count, first_ns, last_ns, keys in rows
    ]


def _place(position: int, token: int) -> Place:
    return position, token % TOKEN_SPAN


async def read_feed_page(
    connection: Connection, wanted: TopicFilter, after: FeedPosition, shape: PageShape
) -> BacklogPage:
    """Read the page after a position, in commits of about `MAX_PAGE_MESSAGES`.

    The position of an empty page is the head, or nearer to it.

    A filter is turned into topic keys for each page, after its head was read: the names of
    topics are committed before the first message on them.

    Raises:
        CursorOutOfRangeError: the commit that the position names was lost.
    """
    if not await is_served(connection, after.place):
        raise CursorOutOfRangeError(LOST)
    head = await newest(connection)
    topics = await resolve(connection, wanted)
    first = after.place[0] if after.inside else after.place[0] + 1
    if first > head[0] or topics == ():
        return BacklogPage(b"", 0, FeedPosition(max(after.place, head)))
    if head[0] - first > MAX_POSITIONS:
        head = await _first_from(connection, first + MAX_POSITIONS)
    commits = await commits_between(connection, first, head[0], topics)
    some = at_most(commits, MAX_PAGE_MESSAGES)
    complete = len(some) == len(commits) < _MAX_COMMITS
    end = FeedPosition(head if complete else some[-1].place)
    if not some:
        return BacklogPage(b"", 0, end)
    at, limit = after.inside or (MAX_TIMESTAMP_NS, b""), min(shape.size, MAX_PAGE_MESSAGES)
    parameters = batch_parameters(some, topics) | {
        "positions": bigints([commit.place[0] for commit in some]),
        "at_position": after.place[0],
        "at_ts": at[0],
        "at_hash": at[1],
        "limit": limit,
        "most": largest_of(shape.max_bytes, limit),
    }
    source, clause = SQL.messages.page_in_commit_order, topics_clause(topics)
    statement = build(source, include_data=shape.include_data, topics=clause)
    found = await fetch_rows(connection, statement, parameters)
    rows: list[Row] = [row[:4] for row in found]
    shown = await show(connection, rows, shape)
    frames = list(filter(None, shown))
    if len(shown) == len(rows) < limit:
        return BacklogPage(b"".join(frames), len(frames), end)
    ts, digest, *_, position = found[len(shown) - 1]
    place = next(commit.place for commit in some if commit.place[0] == position)
    return BacklogPage(b"".join(frames), len(frames), FeedPosition(place, (ts, digest)))


def batch_parameters(commits: Sequence[CommitRow], topics: TopicKeys = None) -> dict[str, object]:
    """Return parameters that name the batches of commits and their spans of time."""
    return topics_parameters(topics) | {
        "batches": bigints([commit.batch for commit in commits]),
        "lows": bigints([commit.min_ts for commit in commits]),
        "highs": bigints([commit.max_ts for commit in commits]),
    }


async def rows_of(
    connection: Connection, commits: Sequence[CommitRow], topics: TopicKeys
) -> dict[int, list[LiveRow]]:
    """Read the messages of some commits on some topics, by batch, each in order of time."""
    statement = SQL.messages.read_batches.format(topics=topics_clause(topics))
    parameters = batch_parameters(commits, topics)
    found: dict[int, list[LiveRow]] = {}
    for batch, topic, digest, body in await fetch_rows(connection, statement, parameters):
        found.setdefault(batch, []).append((topic, digest, frame_of(digest, body)))
    return found
