"""Writing messages to Postgres: concurrent publishers share transactions.

Callers queue batches. A writer takes all that waits (up to `MAX_GROUP_MESSAGES`), whatever its
sources, and writes it in one transaction, with a commit for each source. A caller is answered only
after the commit. A lone batch is written at once; while several callers publish, a writer waits up
to `WINDOW_S` for those that were answered last, because their next messages cost least in the same
commit. One writer is enough as long as it keeps up: others start while `ENOUGH_MESSAGES` wait, or
when a transaction takes longer than `STALLED_S`.

A connection that breaks leaves open whether the commit happened. Each part of a transaction has a
random token in its row of ``storenode.commits``; an attempt that finds nothing new to insert looks
for it there.

A hash does not determine the content of a message. Where a hash is stored already, the content
digests are compared, and a message that differs is a conflict: it is not stored, and nothing waits
for its confirmation. Two that differ never share a transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg import errors as pg
from psycopg import sql

from store.db.connection import Connection
from store.db.errors import DISK_FULL, find_failure, is_missing_partition, is_transient
from store.db.feed import DatabaseFeed
from store.db.gossip import UnreadRows
from store.db.insert import (
    FEWEST_COPIED,
    AlreadyStoredError,
    CommitPart,
    KnownTopics,
    Share,
    assign_commit_position,
    copy,
    find_committed,
    find_new,
    insert_at_once,
    join,
)
from store.db.locks import COMMIT_ORDER, cover_what_is_visible, waiting_for_standby
from store.db.partitions import PartitionMap
from store.db.pool import Database, RetryPatience
from store.db.statements import SQL
from store.domain.hub import OwnCommits
from store.domain.ports import Source, StoreBusyError, StoreUnavailableError
from store.domain.unread import OwnBatch
from store.messages.conflicts import Conflict, StoreResult
from store.messages.record import RecordBatch

MAX_GROUP_MESSAGES: Final = 10_000
"""A group takes about 60 ms. To begin its COPYs costs 2 ms, shared by its messages."""

MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
WINDOW_S: Final = 0.01
"""The longest time that a batch waits for others to share its commit."""

ENOUGH_MESSAGES: Final = 500
"""The number of messages from which a group gains little by waiting and gets a connection."""

STALLED_S: Final = 0.1
"""The duration from which a transaction, such as one that waits for another's message, does not
delay other groups."""

MAX_QUEUED_BYTES: Final = 128 * 1024 * 1024
MAX_QUEUED_BATCHES: Final = 10_000

_LOG: Final = logging.getLogger(__name__)
_CAREFUL_GROUPS: Final = 16
"""The number of groups that are inserted with a check of each message after a group that was not
all new: failed inserts leave dead rows behind."""

_STOPPING: Final = "the node is stopping; retry elsewhere"


@dataclass(slots=True, eq=False)
class _Waiting:
    batch: RecordBatch
    source: Source
    size_bytes: int
    min_confirms: int
    answer: asyncio.Future[StoreResult]
    arrived_s: float


@dataclass(slots=True)
class _Group:
    """The batches of one transaction and their callers, and its parts, one for each source.

    ``uncertain``: an earlier attempt may have committed. ``careful``: one failed, perhaps because
    messages are stored already. ``stored``: how many were found to be; -1: none was looked for.
    """

    members: list[_Waiting]
    parts: list[CommitPart] = field(init=False)
    uncertain: bool = False
    careful: bool = False
    stored: int = -1

    def __post_init__(self) -> None:
        shares: dict[Source, list[Share]] = {}
        for each in self.members:
            shares.setdefault(each.source, []).append((each.batch, each.min_confirms))
        self.parts = [
            CommitPart(_distinct([batch for batch, _ in shares[source]]), source, shares[source])
            for source in sorted(shares)
        ]

    def answer(self) -> None:
        """Set the outcomes of the callers; a message is new to the first who has it."""
        parts = {part.source: (set(part.new.hashes), part.conflicts) for part in self.parts}
        for member in self.members:
            new, conflicting = parts[member.source]
            hashes = member.batch.hashes
            places = enumerate(hashes) if conflicting else ()
            conflicts = {at: conflicting[each] for at, each in places if each in conflicting}
            result = StoreResult([digest in new for digest in hashes], conflicts)
            new.difference_update(hashes)
            if not member.answer.done():
                member.answer.set_result(result)


def _distinct(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Join the batches of a source, with each message once: two peers may send the same one."""
    batch = join(batches)
    first = dict(zip(reversed(batch.hashes), range(len(batch) - 1, -1, -1), strict=True))
    return batch if len(first) == len(batch) else batch.select(sorted(first.values()))


def _warn_of_conflict(source: Source, conflict: Conflict) -> None:
    _LOG.warning("another message has this hash: %s from %s", conflict.fields(), source.value)


class DatabaseWriter:
    """`store.domain.ports.Writer` on Postgres."""

    def __init__(
        self,
        database: Database,
        partitions: PartitionMap,
        *,
        own: OwnCommits | None = None,
        unread: UnreadRows | None = None,
        feed: DatabaseFeed | None = None,
        is_disk_full: Callable[[], bool] = lambda: False,
        on_stored: Callable[[RecordBatch, Source, int], None] = lambda _batch, _source, _new: None,
        on_conflict: Callable[[Source, Conflict], None] = _warn_of_conflict,
    ) -> None:
        """Write to a database, whose ``partitions`` are made where they are missing.

        ``own`` and ``feed`` receive each commit before anybody learns that it is durable. Without
        ``unread`` there are only the unread events that publishers ask for. ``is_disk_full``
        returns True while the database's disk takes no more. ``on_stored`` receives the durable
        messages of each source, whole, and how many of them were new, also if their callers have
        gone away; ``on_conflict`` each message that is not stored because another has its hash.
        """
        self._database = database
        self._is_disk_full = is_disk_full
        self._on_stored = on_stored
        self._on_conflict = on_conflict
        self._own = own or OwnCommits()
        self._unread = unread or UnreadRows(database)
        self._feed = feed
        self._partitions = partitions
        self._topics = KnownTopics()
        self._careful_groups = 0
        self._queue = OrderedDict[_Waiting, None]()
        self._queued_bytes = self._queued_messages = 0
        self._most_writers = max(1, database.settings.write_connections - 1)
        self._writers: set[asyncio.Task[None]] = set()
        self._gathering: asyncio.Event | None = None
        self._callers = self._peak_callers = self._expected_callers = 0
        self._is_stalled = False
        self._stopped = True
        self.committed_s = 0.0
        """The time of the last commit by the loop's clock; at first, the start."""

    async def start(self) -> None:
        """Begin to write; one connection is left for work that must not wait for messages."""
        self.committed_s = asyncio.get_running_loop().time()
        self._stopped = False

    async def stop(self) -> None:
        """Stop the writers; what still waits is answered with an error."""
        self._stopped = True
        for writer in tuple(self._writers):
            writer.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)
        for waiting in tuple(self._queue):
            self._remove(waiting)
            if not waiting.answer.done():
                waiting.answer.set_exception(StoreBusyError(_STOPPING))

    @property
    def queued_bytes(self) -> int:
        """Bytes of messages that wait for a transaction."""
        return self._queued_bytes

    async def store(self, batch: RecordBatch, source: Source, min_confirms: int = 0) -> StoreResult:
        """Store a batch durably (see `store.domain.ports.Writer`).

        Raises:
            StoreBusyError: too much waits already, or the node is stopping.
            StoreUnavailableError: the database did not take it in time; whether it was stored is
                then unknown, and publishing again is safe.
        """
        if not batch.hashes:
            return StoreResult()
        self._require_writable()
        self._require_open()
        size = batch.frame_bytes
        if self._queue and (
            self._queued_bytes + size > MAX_QUEUED_BYTES or len(self._queue) >= MAX_QUEUED_BATCHES
        ):
            raise StoreBusyError(
                f"more than {MAX_QUEUED_BYTES // 2**20} MiB wait to be stored; retry with backoff"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[StoreResult] = loop.create_future()
        waiting = _Waiting(batch, source, size, min_confirms, answer, loop.time())
        self._queue[waiting] = None
        self._queued_bytes += size
        self._queued_messages += len(batch.hashes)
        self._callers += 1
        self._peak_callers = max(self._peak_callers, self._callers)
        self._wake()
        # What is being written continues: to cut a commit short that waits for the standby would
        # show messages that may yet be lost.
        timer = loop.call_later(self._database.settings.commit_patience_s, self._give_up, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            self._callers -= 1
            if waiting in self._queue:  # its caller has gone away
                self._remove(waiting)

    def _give_up(self, answer: asyncio.Future[StoreResult]) -> None:
        """Fail the call whose messages have not been committed in time."""
        if not answer.done():
            patience_s = self._database.settings.commit_patience_s
            error = StoreUnavailableError(
                f"the database has not committed within {patience_s:g} s, as when its synchronous"
                " standby is down: the messages may be stored or not; publish them again"
            )
            answer.set_exception(error)

    async def commit_canary(self) -> None:
        """Commit a record that is no message, as a publish does, by a connection for batches.

        Raises:
            psycopg.Error: the database did not take it.
            NotServingError: as `store`.
        """
        self._require_open()
        statement = sql.SQL(SQL.messages.write_canary).format(
            now=sql.Literal(time.time_ns()), commit_order=sql.Literal(COMMIT_ORDER)
        )
        async with self._database.connection(self._database.write_pool) as connection:
            with waiting_for_standby(connection):
                await connection.execute(statement, prepare=False)
        self.committed_s = asyncio.get_running_loop().time()

    def _require_writable(self) -> None:
        """Raise `StoreUnavailableError` if the database is known to take no writes."""
        if self._database.write_failure is not None:
            raise StoreUnavailableError(self._database.write_failure.sentence)

    def _require_open(self) -> None:
        if self._stopped:
            raise StoreBusyError(_STOPPING)
        if self._is_disk_full():
            raise StoreUnavailableError(DISK_FULL.sentence)

    def _remove(self, waiting: _Waiting) -> None:
        del self._queue[waiting]
        self._queued_bytes -= waiting.size_bytes
        self._queued_messages -= len(waiting.batch.hashes)

    def _wake(self) -> None:
        """Start a writer if there is none, or those that there are do not keep up."""
        if self._stopped or not self._queue:
            return
        if self._gathering is not None:
            if self._is_gathered():
                self._gathering.set()
        elif not self._writers or (
            len(self._writers) < self._most_writers
            and (self._is_stalled or self._queued_messages >= ENOUGH_MESSAGES)
        ):
            self._is_stalled = False
            self._writers.add(asyncio.create_task(self._work(), name="writer"))

    async def _work(self) -> None:
        """Write what waits, until nothing does."""
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                if self._gathering is None and not self._is_gathered():
                    await self._gather()
                group = self._take()
                if group is None:
                    continue
                self._is_stalled = False
                stalled = loop.call_later(STALLED_S, self._note_stall)
                try:
                    await self._serve(group)
                finally:
                    stalled.cancel()
                self._expected_callers, self._peak_callers = self._peak_callers, self._callers
        finally:
            # Not in a callback: who is answered may come again before it runs.
            writer = asyncio.current_task()
            assert writer is not None
            self._writers.discard(writer)

    def _note_stall(self) -> None:
        """Let the next batch that waits have a writer of its own."""
        self._is_stalled = True
        self._wake()

    async def _gather(self) -> None:
        """Wait for callers that publish at the same time, if there are any."""
        self._gathering = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next(iter(self._queue)).arrived_s + WINDOW_S):
                    await self._gathering.wait()
        finally:
            self._gathering = None

    def _is_gathered(self) -> bool:
        return (
            len(self._queue) >= self._expected_callers or self._queued_messages >= ENOUGH_MESSAGES
        )

    def _take(self) -> _Group | None:
        members: list[_Waiting] = []
        digests: dict[bytes, bytes] = {}
        messages = size = 0
        while self._queue:
            first = next(iter(self._queue))
            messages += len(first.batch.hashes)
            size += first.size_bytes
            if members and (messages > MAX_GROUP_MESSAGES or size > MAX_GROUP_BYTES):
                break
            if len(self._queue) > 1 or members:
                own = dict(zip(first.batch.hashes, first.batch.content_digests, strict=True))
                if any(digests[each] != own[each] for each in digests.keys() & own.keys()):
                    break
                digests |= own
            self._remove(first)
            if not first.answer.done():  # else its caller has gone away
                members.append(first)
        return _Group(members) if members else None

    async def _serve(self, group: _Group) -> None:
        try:
            await self._write_until_known(group)
        except asyncio.CancelledError:
            self._fail(group, StoreBusyError(_STOPPING))
            raise
        except Exception as error:  # noqa: BLE001 - the waiting callers get it
            await self._isolate(group, error)
        else:
            if any(part.new.hashes for part in group.parts):
                self.committed_s = asyncio.get_running_loop().time()
            for part in group.parts:
                self._on_stored(part.batch, part.source, len(part.new))
                pairs = zip(part.batch.hashes, part.batch.content_digests, strict=True)
                received = dict(pairs) if part.conflicts else {}
                for digest, stored in part.conflicts.items():
                    self._on_conflict(part.source, Conflict(digest, stored, received[digest]))
            group.answer()

    async def _isolate(self, group: _Group, error: Exception) -> None:
        """Keep what one member did from failing the others that shared its transaction."""
        known = isinstance(error, StoreUnavailableError) or find_failure(error) is not None
        if known or len(group.members) == 1:
            self._fail(group, error)
            return
        try:
            for member in group.members:
                await self._serve(_Group([member]))
        finally:
            # When the node stops in between, some were not served at all.
            self._fail(group, StoreBusyError(_STOPPING))

    def _fail(self, group: _Group, error: Exception) -> None:
        failure = find_failure(error)
        if failure is not None:
            error = self._database.unavailable(failure)
        for member in group.members:
            if not member.answer.done():
                member.answer.set_exception(error)

    async def _write_until_known(self, group: _Group) -> None:
        patience = RetryPatience(self._database.settings.write_patience_s)
        while True:
            stored = group.stored
            try:
                async with self._database.connection(self._database.write_pool) as connection:
                    await self._attempt(connection, group)
                    return
            except AlreadyStoredError:
                group.careful = True
            except (pg.UniqueViolation, pg.NotNullViolation):
                # Another one has stored some since they were looked for: fewer are left.
                if group.careful and group.stored == stored:
                    raise
                group.careful = True
                self._careful_groups = _CAREFUL_GROUPS
            except pg.CheckViolation as error:
                # The map was old: a partition was dropped since, or commits need their next.
                if not is_missing_partition(error) or not await patience.wait():
                    raise
                await self._refresh_partitions(error)
                group.stored = -1
            except psycopg.Error as error:
                self._require_writable()
                if not is_transient(error) or not await patience.wait():
                    raise
                # What it wrote may be under way: then the next COPY waits for it, and fails.
                group.careful, group.uncertain, group.stored = True, True, -1

    async def _refresh_partitions(self, error: Exception) -> None:
        with contextlib.suppress(psycopg.Error):
            async with self._database.connection(self._database.write_pool) as connection:
                await self._partitions.refresh(connection)
                return
        raise error

    async def _attempt(self, connection: Connection, group: _Group) -> None:
        for part in group.parts:
            await self._partitions.ensure(connection, part.batch.timestamps)
            part.new, part.position = part.batch, 0
        # A new connection may lead to a server that has lost the newest names.
        era = self._partitions.generation, self._database.connections_made
        batches = [part.batch for part in group.parts]
        await self._topics.ensure(connection, batches, self._partitions, era)
        hashes = [digest for batch in batches for digest in batch.hashes]
        may_be_new = not group.careful and len(set(hashes)) == len(hashes)
        if may_be_new and len(hashes) > 1 and self._careful_groups:
            self._careful_groups -= 1
            may_be_new = False
        notice = "" if self._feed is None else self._feed.notice
        try:
            with waiting_for_standby(connection):
                if may_be_new and len(hashes) < FEWEST_COPIED:
                    with self._unread.tracked(group.parts) as unread:
                        await insert_at_once(connection, group.parts, notice, unread)
                else:
                    async with connection.transaction():
                        if not may_be_new:
                            group.stored = await find_new(connection, group.parts)
                        if group.stored < len(hashes):
                            await copy(connection, group.parts)
                        await self._finish(connection, group, notice)
        except (AlreadyStoredError, psycopg.IntegrityError):
            raise  # and nothing was committed
        except BaseException:
            if self._feed is not None:
                self._feed.look_for_own()
            raise
        committed = [part for part in group.parts if part.position]
        for part in committed:
            self._own.add(part.place, OwnBatch(part.new, part.source, part.needed))
        if self._feed is not None:
            if group.uncertain:
                self._feed.look_for_own()
            self._feed.take_own(connection, committed)

    async def _finish(self, connection: Connection, group: _Group, notice: str) -> None:
        """Write what goes with the messages; the commit comes right after."""
        with self._unread.tracked(group.parts) as unread:
            if unread is not None:
                await connection.execute(SQL.stores.track.format(stored=""), unread)
        if any(part.new.hashes for part in group.parts):
            await assign_commit_position(connection, group.parts, notice)
            return
        await cover_what_is_visible(connection)
        if group.uncertain:
            # An earlier attempt may have committed. It is over, since its messages are visible.
            for part in group.parts:
                await find_committed(connection, part)
