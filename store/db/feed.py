"""The feed: messages in the database's commit order, from a cursor on, then live.

One task tails ``storenode.commits`` and hands new commits to the hub. What this node commits comes
from the writer with its messages and is not read, as long as it follows the newest commit that was
handed on. What other nodes commit, and whatever may lie in between, is read when a notification
comes, or now and then. A follower that is behind reads pages from the database by itself until it
stands at the head. Positions appear in commit order (see ``docs/database.md``), so a follower
that has been given everything up to a position has missed nothing below it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from store.db.arrays import bigints, split_uuids
from store.db.connection import Connection, fetch_row, fetch_rows
from store.db.locks import NODES
from store.db.messages import (
    PageShape,
    TopicKeys,
    build,
    frame_of,
    largest_of,
    resolve,
    show,
    topic_names,
    topics_clause,
    topics_parameters,
)
from store.db.pool import Database, reconnecting
from store.db.statements import SQL
from store.domain.hub import (
    START,
    CommitRow,
    Delivery,
    Hub,
    Place,
    Row,
    Subscriber,
    at_most,
)
from store.domain.ports import (
    CursorOutOfRangeError,
    Ephemeral,
    FollowPage,
    FollowRequest,
    Outlet,
    StoreUnavailableError,
    TopicFilter,
)
from store.domain.query import DEFAULT_PAGE_BYTES
from store.messages.cursor import MAX_POSITION, NONCE_BYTES, FollowCursor, FollowCursors
from store.messages.record import RecordBatch
from storenode.message.limits import MAX_MESSAGE_BYTES, MAX_TIMESTAMP_NS

if TYPE_CHECKING:
    from store.db.insert import CommitPart

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


async def newest(connection: Connection) -> Place:
    """Return the place of the newest commit; `START` when there is none."""
    row = await fetch_row(connection, SQL.commits.read_newest)
    return START if row is None else _place(row[0], row[1])


async def is_served(connection: Connection, place: Place) -> bool:
    """Return True if a place is this database's own: its commit is there, or was pruned since.

    A commit that is missing although an older one is stored was lost (or never was).
    """
    if place == START:
        return True
    oldest, token = await fetch_row(connection, SQL.commits.read_commit, (place[0],))
    if token is not None and _place(place[0], token) == place:
        return True
    return oldest is not None and place[0] < oldest


async def commits_between(
    connection: Connection, first: int, last: int, topics: TopicKeys, limit: int = _MAX_COMMITS
) -> list[CommitRow]:
    """Read commits from ``first`` to ``last``, those that may hold a topic of a selection."""
    touching = f" {SQL.commits.touching}" if isinstance(topics, tuple) else ""
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
    connection: Connection, wanted: TopicFilter, after: FollowCursor, shape: PageShape
) -> FollowPage:
    """Read the page after a cursor, in commits of about `MAX_PAGE_MESSAGES`.

    The cursor of an empty page is the head, or nearer to it. Whether the page is live is not known.

    A filter is turned into topic keys for each page, after its head was read: the names of
    topics are committed before the first message on them.

    Raises:
        CursorOutOfRangeError: the commit that the cursor names was lost.
    """

    def page(
        place: Place, frames: Sequence[bytes] = (), ts: int = 0, digest: bytes | None = None
    ) -> FollowPage:
        cursor = FollowCursor(after.store_id, *place, ts, digest)
        return FollowPage(b"".join(frames), len(frames), cursor, live=False)

    reached = _place_of(after)
    if not await is_served(connection, reached):
        raise CursorOutOfRangeError(LOST)
    head = await newest(connection)
    topics = await resolve(connection, wanted)
    first = after.position if after.hash else after.position + 1
    if first > head[0] or topics == ():
        return page(max(reached, head))
    if head[0] - first > MAX_POSITIONS:
        row = await fetch_row(connection, SQL.commits.read_first_from, (first + MAX_POSITIONS,))
        assert row is not None, "the newest commit is there"
        head = _place(*row)
    commits = await commits_between(connection, first, head[0], topics)
    some = at_most(commits, MAX_PAGE_MESSAGES)
    complete = len(some) == len(commits) < _MAX_COMMITS
    end = head if complete else some[-1].place
    if not some:
        return page(end)
    limit = min(shape.size, MAX_PAGE_MESSAGES)
    parameters = batch_parameters(some, topics) | {
        "positions": bigints([commit.place[0] for commit in some]),
        "at_position": after.position,
        "at_ts": after.timestamp if after.hash else MAX_TIMESTAMP_NS,
        "at_hash": after.hash or b"",
        "limit": limit,
        "most": largest_of(shape.max_bytes, limit),
    }
    source, clause = SQL.messages.page_in_commit_order, topics_clause(topics)
    statement = build(source, include_data=shape.include_data, topics=clause)
    found = await fetch_rows(connection, statement, parameters)
    shown = await show(connection, [row[:4] for row in found], shape)
    frames = list(filter(None, shown))
    if len(shown) == len(found) < limit:
        return page(end, frames)
    ts, digest, *_, position = found[len(shown) - 1]
    place = next(commit.place for commit in some if commit.place[0] == position)
    return page(place, frames, ts, digest)


def _place_of(cursor: FollowCursor) -> Place:
    return cursor.position, cursor.token


def batch_parameters(commits: Sequence[CommitRow], topics: TopicKeys = None) -> dict[str, object]:
    """Return parameters that name the batches of commits and their spans of time."""
    return topics_parameters(topics) | {
        "batches": bigints([commit.batch for commit in commits]),
        "lows": bigints([commit.min_ts for commit in commits]),
        "highs": bigints([commit.max_ts for commit in commits]),
    }


async def rows_of(
    connection: Connection, commits: Sequence[CommitRow], topics: TopicKeys
) -> dict[int, list[Row]]:
    """Read the messages of some commits on some topics, by batch, each in order of time."""
    statement = SQL.messages.read_batches.format(topics=topics_clause(topics))
    parameters = batch_parameters(commits, topics)
    found: dict[int, list[Row]] = {}
    for batch, topic, digest, body in await fetch_rows(connection, statement, parameters):
        found.setdefault(batch, []).append((topic, digest, frame_of(digest, body)))
    return found


POLL_S: Final = 60.0
"""The interval of reads without a notification: the connection may be broken unnoticed."""

REPLICA_POLL_S: Final = 0.1
"""A standby passes no notifications on."""

IDLE_PAGE_S: Final = 60.0
"""An idle follower is sent an empty page this often, so that its cursor does not grow old."""

_PACE_S: Final = 0.005
"""Commits that follow each other quicker are read together: a read costs as much as publishing a
message does."""

_COMMITS_AT_ONCE: Final = 500
_MESSAGES_AT_ONCE: Final = 16 * 1024 * 1024 // MAX_MESSAGE_BYTES
"""The most messages of small commits that are read together: with the largest ones that is as much
as one transaction of the writer has."""
_UNSETTLED_S: Final = 0.2
_FEWEST_ROWS: Final = 8
_FIRST_ROWS: Final = 1_000
"""Rows of the first page of a backlog; those of each next one go by how many were shown."""


def new_notice() -> str:
    """Draw the payload of a node's notifications."""
    return secrets.token_hex(8)


def follow_cursors(database: Database) -> FollowCursors:
    """Return the codec of cursors of a database's followers."""
    return FollowCursors(
        database.store_id, database.cursor_key, lambda: secrets.token_bytes(NONCE_BYTES)
    )


class DatabaseFeed:
    """The messages of the database in commit order."""

    def __init__(
        self,
        database: Database,
        *,
        on_lost: Callable[[Place, Place], None] = lambda _reached, _left: None,
        on_failed: Callable[[Exception], None] = lambda _error: None,
        on_commits: Callable[[Sequence[CommitRow]], None] = lambda _commits: None,
        read_only: bool = False,
    ) -> None:
        """Follow a database.

        ``read_only``: the database may be a standby, which others are ahead of. ``on_lost`` gets
        the place that was reached, and the newest that is left, when commits were lost;
        ``on_commits`` after each read the commits found, some again after a reconnect.
        """
        self._read_only = read_only
        self._database = database
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._on_commits = on_commits
        self._hub = Hub(START)
        self._encounters = 0
        self._tails_well = False
        self._news = asyncio.Event()
        self._waiting: Connection | None = None  # of the tail, which has read everything so far
        self.notice = new_notice()
        """The payload of notifications of this node, which `take_own` or `look_for_own` follow."""
        self._tail: asyncio.Task[None] | None = None

    @property
    def followers(self) -> int:
        """Live followers."""
        return len(self._hub)

    @property
    def head(self) -> Place:
        """The newest commit that was handed to followers."""
        return self._hub.head

    async def start(self) -> None:
        """Begin at the newest commit and tail from there."""
        self._hub.rebase(await self._database.read(newest), START)
        self._tail = asyncio.create_task(self._keep_tailing(), name="feed")

    async def stop(self) -> None:
        """End every follower and the tailing."""
        if self._tail is not None:
            self._tail.cancel()
            await asyncio.gather(self._tail, return_exceptions=True)

    def announce_ephemeral(self, messages: Sequence[Ephemeral]) -> None:
        """Send messages to the live followers of this node, at most once."""
        self._hub.announce(messages)

    # The writer of this node

    def look_for_own(self) -> None:
        """Look for commits of a transaction that has failed, or seems to have, now or later."""
        self.notice = new_notice()
        self._news.set()

    def take_own(self, connection: Connection, committed: Sequence[CommitPart]) -> None:
        """Take the commits of a transaction that is durable.

        They are read from the database, like those of others, unless nothing can lie between the
        head and them: positions have no gap, and the server is the one that the head was read from.
        """
        for each in sorted(committed, key=lambda part: part.position):
            waiting = self._waiting
            if (
                waiting is None
                or each.position != self._hub.head[0] + 1
                or not self._database.have_one_server(connection, waiting)
            ):
                self._news.set()
                return
            try:
                self._dispatch_own(each)
            except Exception as error:  # noqa: BLE001 - what is stored has not failed
                self._news.set()
                self._on_failed(error)
                return

    def _dispatch_own(self, part: CommitPart) -> None:
        batch, span = part.new, (min(part.new.timestamps), max(part.new.timestamps))
        commit = CommitRow(part.place, part.batch_id, len(batch), *span, part.listed_topics)
        self._on_commits([commit])
        rows: list[Row] = []
        if len(self._hub):
            self._hub.learn(batch.topics)
            rows = _rows_on(batch, set(self._hub.wanted(batch.topics)))
        self._hub.dispatch(commit.place, rows)

    # Tailing

    async def _keep_tailing(self) -> None:
        backoff = reconnecting()
        while True:
            try:
                async with await self._database.connect() as connection:
                    await connection.execute("select pg_advisory_lock_shared(%s)", (NODES,))
                    if not self._read_only:
                        connection.add_notify_handler(lambda notice: self._note(notice.payload))
                        await connection.execute("listen storenode_feed")
                    await self._check_head(connection)
                    await self._tail_on(connection)
            except (psycopg.Error, StoreUnavailableError, TimeoutError):
                pass
            except Exception as error:  # noqa: BLE001 - followers would wait silently
                self._on_failed(error)
            if self._tails_well:
                self._tails_well = False
                backoff.reset()
            await asyncio.sleep(backoff.take())

    async def _check_head(self, connection: Connection) -> None:
        """Compare a database that was out of reach with what was read before.

        Where the head is there, so is all before it. Else any follower's place may be lost, and
        each looks for its own.
        """
        reached = self._hub.head
        served = await is_served(connection, reached)
        left = reached if served else await newest(connection)
        self._encounters += 1
        self._hub.rebase(left, reached if served else START)
        if not served:
            self._on_lost(reached, left)

    async def _tail_on(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            read_s = loop.time()
            self._news.clear()
            commits = await commits_between(
                connection, self._hub.head[0] + 1, MAX_POSITION, None, _COMMITS_AT_ONCE
            )
            self._on_commits(commits)
            left = commits
            while left:
                some = at_most(left, _MESSAGES_AT_ONCE)
                await self._pass_on(connection, some)
                left = left[len(some) :]
            self._tails_well = True
            if len(commits) < _COMMITS_AT_ONCE:
                await self._wait_for_news(connection)
                if loop.time() < read_s + _PACE_S:
                    await asyncio.sleep(_PACE_S)

    async def _wait_for_news(self, connection: Connection) -> None:
        if self._read_only:
            await asyncio.sleep(REPLICA_POLL_S)
            return
        if self._news.is_set():
            return
        loop, socket = asyncio.get_running_loop(), connection.fileno()
        loop.add_reader(socket, self._receive, connection)
        self._waiting = connection
        self._receive(connection)  # what came right behind the last answer
        try:
            async with asyncio.timeout(POLL_S):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting = None
            loop.remove_reader(socket)

    def _receive(self, connection: Connection) -> None:
        """Take notifications of an idle connection; one that is broken fails the next read."""
        try:
            connection.pgconn.consume_input()
            while (notice := connection.pgconn.notifies()) is not None:
                self._note(notice.extra.decode())
        except psycopg.Error:
            self._news.set()

    def _note(self, notice: str) -> None:
        """Look for commits, unless a transaction of this node is known to bring them."""
        if notice != self.notice:
            self._news.set()

    async def _pass_on(self, connection: Connection, commits: Sequence[CommitRow]) -> None:
        self._hub.expect(commits[-1].place)
        rows = {}
        if len(self._hub):
            wanted = await self._wanted(connection, commits)
            if wanted != ():
                rows = await rows_of(connection, commits, wanted)
        if any(commit.topics is None for commit in commits):
            found = {row[0] for batch in rows.values() for row in batch}
            await self._learn(connection, found)
        for commit in commits:
            self._hub.dispatch(commit.place, rows.get(commit.batch, ()))

    async def _wanted(self, connection: Connection, commits: Sequence[CommitRow]) -> TopicKeys:
        if any(commit.topics is None for commit in commits):
            return None
        topics = {key for commit in commits for key in commit.topics or ()}
        await self._learn(connection, topics)
        return tuple(self._hub.wanted(topics))

    async def _learn(self, connection: Connection, topics: set[bytes]) -> None:
        unnamed = self._hub.unnamed(topics)
        if unnamed:
            self._hub.learn(await topic_names(connection, unnamed))

    # Following

    async def follow(
        self, request: FollowRequest, outlet: Outlet
    ) -> AsyncGenerator[FollowPage, None]:
        """Yield the backlog from a cursor on, then live. The first page comes at once.

        Raises `CursorOutOfRangeError`.
        """
        # Where the tail stands says nothing about what is older: only who begins with what comes
        # from now on needs no look at the database first.
        resumes = request.from_beginning or request.cursor is not None
        encounter = None if resumes else self._encounters
        cursor = await self._begin(request)
        live = is_answered = False
        rows = _FIRST_ROWS
        while True:
            if self._reached(cursor) and encounter == self._encounters:
                async with aclosing(self._deliver(request, _place_of(cursor))) as deliveries:
                    # The first one says only that the follower is live.
                    await anext(deliveries)
                    if not live:
                        live = is_answered = True
                        yield FollowPage(b"", 0, cursor, live=True)
                    async for delivery in deliveries:
                        cursor = FollowCursor(self._database.store_id, *delivery.place)
                        yield FollowPage(delivery.frames, delivery.count, cursor, live=True)
                continue
            encounter, before = self._encounters, cursor
            room = await outlet.room(DEFAULT_PAGE_BYTES)
            shape = PageShape(rows, room.size_bytes, request.include_data)
            page = await self._database.read_page(
                partial(read_feed_page, wanted=request.filter, after=before, shape=shape)
            )
            rows = max(2 * page.count, _FEWEST_ROWS) if page.count else rows
            room.fit(len(page.frames))
            cursor = page.cursor
            live = live or self._reached(cursor)
            if page.count or live or not is_answered:
                is_answered = True
                yield replace(page, live=live)
            room.close()
            if cursor == before and not self._reached(cursor):
                # The tail has seen more than there is now, and will notice soon.
                await asyncio.sleep(_UNSETTLED_S)

    def _reached(self, cursor: FollowCursor) -> bool:
        return cursor.hash is None and cursor.position >= self._hub.frontier[0]

    async def _deliver(
        self, request: FollowRequest, place: Place
    ) -> AsyncGenerator[Delivery, None]:
        """Subscribe to the hub, yield nothing once, then what arrives until the follower lags."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        subscriber = Subscriber(
            request.filter,
            request.include_data,
            place,
            wake=ready.set,
        )
        is_due = False  # an idle page: one timer, since a timeout for each wait costs more

        def wake() -> None:
            nonlocal is_due
            is_due = True
            ready.set()

        self._hub.subscribe(subscriber)
        timer = loop.call_later(IDLE_PAGE_S, wake)
        try:
            yield Delivery(b"", 0, place)
            while not subscriber.lagging:
                delivery = subscriber.take(DEFAULT_PAGE_BYTES)
                if delivery is not None:
                    yield delivery
                elif not is_due:
                    await ready.wait()
                    ready.clear()
                else:
                    is_due, timer = False, loop.call_later(IDLE_PAGE_S, wake)
                    head = self._hub.place_of(subscriber)
                    if head > subscriber.place:
                        subscriber.place = head
                        yield Delivery(b"", 0, head)
        finally:
            timer.cancel()
            self._hub.unsubscribe(subscriber)

    async def _begin(self, request: FollowRequest) -> FollowCursor:
        cursor, store_id = request.cursor, self._database.store_id

        async def look(connection: Connection) -> FollowCursor:
            if cursor is None:
                place = START if request.from_beginning else await newest(connection)
                return FollowCursor(store_id, *place)
            if cursor.store_id != store_id:
                raise CursorOutOfRangeError(FOREIGN)
            # Looked at first: what a standby replays meanwhile is found after it, and not lost.
            is_ahead = self._read_only and cursor.position > (await newest(connection))[0]
            if not await is_served(connection, _place_of(cursor)):
                raise StoreUnavailableError(BEHIND) if is_ahead else CursorOutOfRangeError(LOST)
            return cursor

        return await self._database.read_page(look)


def _rows_on(batch: RecordBatch, topics: set[bytes]) -> list[Row]:
    """Return the messages of a batch on some topics, in the order of time."""
    places = [place for place, key in enumerate(batch.topic_keys) if key in topics]
    places.sort(key=lambda place: (batch.timestamps[place], batch.hashes[place]))
    return [(batch.topic_keys[place], batch.hashes[place], batch.frame(place)) for place in places]
