"""Writing messages to Postgres: concurrent publishers share transactions.

Callers queue batches; a few workers, one connection each, take all that waits (up to
`MAX_GROUP_MESSAGES`) and write it in one transaction. While one waits for its commit to reach
the disk, another inserts. A caller is answered only after the commit.

A connection that breaks leaves open whether the commit happened. Each batch has a random token
in its row of ``storenode.commits``; an attempt that finds nothing new to insert looks for it there.

A hash does not determine the content of a message. Where a hash is stored already, the content
digests are compared, and a message that differs is a conflict: it is not stored, and nothing waits
for its confirmation. Two that differ never share a transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolTimeout

from store.db.commits.pages import TOKEN_SPAN
from store.db.errors import DISK_FULL, find_failure, is_missing_partition, is_transient
from store.db.pool import Connection, Database, RetryPatience
from store.db.replication import commit_canary, cover_what_is_visible, waiting_for_standby
from store.db.schema.partitions import PartitionMap
from store.db.writing.bulk import FEWEST_COPIED
from store.db.writing.insert import (
    Inserted,
    KnownTopics,
    NothingNewError,
    all_new,
    assign_commit_position,
    copy,
    find_committed,
    find_conflicts,
    insert,
    insert_at_once,
    insert_topics,
    new_token,
)
from store.db.writing.unread import ConfirmationTracker, Share, WrittenBatch, track_parameters
from store.domain.hub import WrittenIds
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.messages.conflicts import Conflict, StoreResult
from store.messages.record import RecordBatch

if TYPE_CHECKING:
    from store.observe.tracing import Tracing, Wait

MAX_GROUP_MESSAGES: Final = 10_000
"""A group takes about 60 ms. To begin its COPYs costs 2 ms, shared by so many messages."""

MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
MAX_QUEUED_BYTES: Final = 128 * 1024 * 1024
MAX_QUEUED_BATCHES: Final = 10_000

_LOG: Final = logging.getLogger(__name__)
_CAREFUL_GROUPS: Final = 16
"""How many groups are inserted with a look at each message after one that was not all new: what
fails leaves dead rows behind."""

_STOPPING: Final = "the node is stopping; retry elsewhere"


@dataclass(slots=True, eq=False)
class _Waiting:
    batch: RecordBatch
    source: Source
    size_bytes: int
    min_confirms: int
    answer: asyncio.Future[StoreResult]
    trace: Wait | None = None


@dataclass(slots=True)
class _Group:
    """The batches of one transaction, joined, and their callers."""

    members: list[_Waiting]
    batch: RecordBatch
    source: Source
    token: int = field(default_factory=new_token)
    uncertain: bool = False
    """An earlier attempt may have committed."""
    careful: bool = False
    """An earlier attempt failed, perhaps because some of the messages are there already."""
    conflicts: Mapping[bytes, bytes] = field(default_factory=dict)
    """The content digests of stored messages that differ from this batch's, by hash."""


def _join(members: Sequence[_Waiting]) -> RecordBatch:
    joined = RecordBatch()
    for member in members:
        joined.extend(member.batch)
    return joined


def _shares(group: _Group) -> list[Share]:
    """Return the messages of each member that may be confirmed: all but conflicts."""
    shares = [(member.batch, member.min_confirms) for member in group.members]
    if not group.conflicts:
        return shares
    return [(_without(batch, group.conflicts), confirms) for batch, confirms in shares]


def _without(batch: RecordBatch, conflicts: Mapping[bytes, bytes]) -> RecordBatch:
    """Return the messages of a batch whose hashes are no conflicts."""
    kept = [place for place, digest in enumerate(batch.hashes) if digest not in conflicts]
    return batch.select(kept)


def _answer(group: _Group, added: Inserted) -> None:
    everything = added.count == len(group.batch.hashes)
    new = set() if added.hashes is None else set(added.hashes)
    for member in group.members:
        hashes = member.batch.hashes
        if everything:
            result = StoreResult([True] * len(hashes))
        else:
            conflicts = {
                place: group.conflicts[digest]
                for place, digest in enumerate(hashes)
                if digest in group.conflicts
            }
            result = StoreResult([digest in new for digest in hashes], conflicts)
            new.difference_update(hashes)
        if not member.answer.done():
            member.answer.set_result(result)


def _warn_of_conflict(source: Source, conflict: Conflict) -> None:
    _LOG.warning("another message has this hash: %s from %s", conflict.fields(), source.value)


class DatabaseWriter:
    """`store.domain.ports.Writer` on Postgres."""

    def __init__(
        self,
        database: Database,
        partitions: PartitionMap,
        *,
        written_ids: WrittenIds | None = None,
        tracking: ConfirmationTracker | None = None,
        tracing: Tracing | None = None,
        is_disk_full: Callable[[], bool] = lambda: False,
        on_stored: Callable[[RecordBatch, Source, int], None] = lambda _batch, _source, _new: None,
        on_conflict: Callable[[Source, Conflict], None] = _warn_of_conflict,
    ) -> None:
        """Write to a database.

        Args:
            database: The connections.
            partitions: The partitions, which are made where they are missing.
            written_ids: Receives the IDs of each batch before its commit.
            tracking: Adds unread events.
            tracing: Records traces of requests.
            is_disk_full: Returns True while the database's disk takes no more.
            on_stored: Receives each durable batch, whole, with its source and the number of new
                messages, also if its caller has gone away.
            on_conflict: Receives each message that is not stored because another one has its hash;
                by default they are logged.
        """
        self._database = database
        self._is_disk_full = is_disk_full
        self._on_stored = on_stored
        self._on_conflict = on_conflict
        self._tracing = tracing
        self._written_ids = written_ids
        self._tracking = tracking
        self._partitions = partitions
        self._topics = KnownTopics()
        self._careful_groups = 0
        self._queue = OrderedDict[_Waiting, None]()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._stopped = False
        self.committed_s = 0.0
        """When the last transaction was committed, by the loop's clock; at first, the start."""

    async def start(self) -> None:
        """Start the workers, one for each connection of the write pool but one.

        That one is for what must not wait for them: when the node was online, and the unread.
        """
        self.committed_s = asyncio.get_running_loop().time()
        count = max(1, self._database.settings.write_connections - 1)
        self._workers = [
            asyncio.create_task(self._work(), name=f"writer-{number}") for number in range(count)
        ]

    async def stop(self) -> None:
        """Stop the workers; what still waits is answered with an error."""
        self._stopped = True
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        while self._queue:
            waiting, _ = self._queue.popitem(last=False)
            if not waiting.answer.done():
                waiting.answer.set_exception(StoreBusy(_STOPPING))
        self._queued_bytes = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes of messages that wait for a transaction."""
        return self._queued_bytes

    async def store(self, batch: RecordBatch, source: Source, min_confirms: int = 0) -> StoreResult:
        """Store a batch durably (see `store.domain.ports.Writer`).

        Raises:
            StoreBusy: too much waits already, or the node is stopping.
            StoreUnavailable: the database did not take it in time; whether it was stored is
                then unknown, and publishing again is safe.
        """
        if not batch.hashes:
            return StoreResult()
        if self._stopped:
            raise StoreBusy(_STOPPING)
        if self._is_disk_full():
            raise StoreUnavailable(DISK_FULL.sentence)
        self._require_writable()
        return await self._enqueue(batch, source, min_confirms)

    async def commit_canary(self) -> None:
        """Commit a record that is no message, through queue, worker and connection like a batch.

        Raises:
            psycopg.Error: the database did not take it.
            PoolTimeout: no connection became free.
            StoreBusy, StoreUnavailable: as `store`.
        """
        if self._is_disk_full():
            raise StoreUnavailable(DISK_FULL.sentence)
        await self._enqueue(RecordBatch(), Source.CLIENT, 0)

    async def _enqueue(self, batch: RecordBatch, source: Source, min_confirms: int) -> StoreResult:
        size = batch.frame_bytes
        if self._queue and (
            self._queued_bytes + size > MAX_QUEUED_BYTES or len(self._queue) >= MAX_QUEUED_BATCHES
        ):
            raise StoreBusy(
                f"more than {MAX_QUEUED_BYTES // 2**20} MiB wait to be stored; retry with backoff"
            )
        answer: asyncio.Future[StoreResult] = asyncio.get_running_loop().create_future()
        trace = None if self._tracing is None else self._tracing.waiting()
        waiting = _Waiting(batch, source, size, min_confirms, answer, trace)
        self._queue[waiting] = None
        self._queued_bytes += size
        self._arrived.set()
        # What is being written goes on: to cut a commit short that waits for the standby would
        # show messages that may yet be lost.
        patience_s = self._database.settings.commit_patience_s
        try:
            async with asyncio.timeout(patience_s):
                return await answer
        except TimeoutError:
            raise StoreUnavailable(
                f"the database has not committed within {patience_s:g} s, as when its synchronous"
                " standby is down: the messages may be stored or not; publish them again"
            ) from None
        finally:
            if waiting in self._queue:  # its caller has gone away
                del self._queue[waiting]
                self._queued_bytes -= size

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            group = self._take()
            if group is not None:
                await self._serve(group)

    def _take(self) -> _Group | None:
        members: list[_Waiting] = []
        digests: dict[bytes, bytes] = {}
        messages = size = 0
        while self._queue:
            first = next(iter(self._queue))
            messages += len(first.batch.hashes)
            size += first.size_bytes
            full = messages > MAX_GROUP_MESSAGES or size > MAX_GROUP_BYTES
            if members and (full or first.source is not members[0].source):
                break
            if len(self._queue) > 1 or members:
                own = dict(zip(first.batch.hashes, first.batch.content_digests, strict=True))
                if any(digests[each] != own[each] for each in digests.keys() & own.keys()):
                    break
                digests |= own
            del self._queue[first]
            self._queued_bytes -= first.size_bytes
            if not first.answer.done():  # else its caller has gone away
                members.append(first)
        if not self._queue:
            self._arrived.clear()
        if not members:
            return None
        batch = members[0].batch if len(members) == 1 else _join(members)
        return _Group(members, batch, members[0].source)

    async def _serve(self, group: _Group) -> None:
        try:
            with contextlib.nullcontext() if self._tracing is None else self._traced(group):
                added = await self._write_until_known(group)
        except asyncio.CancelledError:
            self._fail(group, StoreBusy(_STOPPING))
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            await self._isolate(group, error)
        else:
            if added.count or not group.batch.hashes:
                self.committed_s = asyncio.get_running_loop().time()
            if group.batch.hashes:
                self._on_stored(group.batch, group.source, added.count)
            self._report_conflicts(group)
            _answer(group, added)

    def _report_conflicts(self, group: _Group) -> None:
        if not group.conflicts:
            return
        columns = zip(group.batch.hashes, group.batch.content_digests, strict=True)
        for digest, received in columns:
            if digest in group.conflicts:
                conflict = Conflict(digest, group.conflicts[digest], received)
                self._on_conflict(group.source, conflict)

    def _traced(self, group: _Group) -> AbstractContextManager[None]:
        assert self._tracing is not None
        served = [
            (member.trace, member.batch.hashes)
            for member in group.members
            if member.trace is not None
        ]
        if not served:
            return contextlib.nullcontext()
        return self._tracing.committing(
            served,
            messages=len(group.batch),
            requests=len(group.members),
            source=group.source.value,
        )

    async def _isolate(self, group: _Group, error: Exception) -> None:
        """Keep what one member did from failing the others that shared its transaction."""
        known = isinstance(error, StoreUnavailable) or find_failure(error) is not None
        if known or len(group.members) == 1:
            self._fail(group, error)
            return
        try:
            for member in group.members:
                await self._serve(_Group([member], member.batch, member.source))
        finally:
            # When the node stops in between, some were not served at all.
            self._fail(group, StoreBusy(_STOPPING))

    def _fail(self, group: _Group, error: Exception) -> None:
        failure = find_failure(error)
        for member in group.members:
            if not member.answer.done():
                known = None
                if failure is not None and member.batch.hashes:  # the canary reports the error
                    known = self._database.unavailable(failure)
                member.answer.set_exception(known or error)

    def _require_writable(self) -> None:
        """Raise `StoreUnavailable` if the database is known to take no writes."""
        failure = self._database.write_failure
        if failure is not None:
            raise StoreUnavailable(failure.sentence)

    async def _write_until_known(self, group: _Group) -> Inserted:
        patience = RetryPatience(self._database.settings.write_patience_s)
        while True:
            try:
                async with self._database.connection(self._database.write_pool) as connection:
                    return await self._attempt(connection, group)
            except NothingNewError:
                group.careful = True
            except (pg.UniqueViolation, pg.NotNullViolation):
                if group.careful:
                    raise
                group.careful = True
                self._careful_groups = _CAREFUL_GROUPS
            except pg.CheckViolation as error:
                # The map was old: a partition was dropped since, or commits need their next.
                if not is_missing_partition(error) or not await patience.wait():
                    raise
                await self._refresh_partitions(error)
            except (psycopg.Error, PoolTimeout) as error:
                if group.batch.hashes:
                    self._require_writable()
                if not is_transient(error) or not await patience.wait():
                    raise
                group.careful = group.uncertain = True

    async def _refresh_partitions(self, error: Exception) -> None:
        with contextlib.suppress(psycopg.Error, PoolTimeout):
            async with self._database.connection(self._database.write_pool) as connection:
                await self._partitions.refresh(connection)
                return
        raise error

    async def _attempt(self, connection: Connection, group: _Group) -> Inserted:
        batch, count = group.batch, len(group.batch.hashes)
        if not count:
            with waiting_for_standby(connection):
                await commit_canary(connection)
            return Inserted(0, 0, 0, 0, None, None, b"", b"")
        await self._partitions.ensure(connection, batch.timestamps)
        # A new connection may lead to a server that has lost the newest names.
        era = self._partitions.generation, self._database.connections_made
        unnamed = self._topics.unnamed(batch, self._partitions, era)
        if unnamed:
            await insert_topics(connection, unnamed)
            self._topics.remember(unnamed, era)
        may_be_new = not group.careful and len(set(batch.hashes)) == count
        if may_be_new and count > 1 and self._careful_groups:
            self._careful_groups -= 1
            may_be_new = False
        with waiting_for_standby(connection):
            if may_be_new and count < FEWEST_COPIED:
                return await self._write_at_once(connection, group)
            async with connection.transaction():
                if may_be_new:
                    added = await copy(connection, batch)
                else:
                    added = await insert(connection, batch)
                    group.conflicts = await self._find_conflicts(connection, batch, added)
                return await self._finish(connection, group, added)

    @staticmethod
    async def _find_conflicts(
        connection: Connection, batch: RecordBatch, added: Inserted
    ) -> dict[bytes, bytes]:
        if added.count == len(batch):
            return {}
        new = added.hashes or frozenset()
        places = [place for place, digest in enumerate(batch.hashes) if digest not in new]
        return await find_conflicts(connection, batch, places)

    async def _write_at_once(self, connection: Connection, group: _Group) -> Inserted:
        token = group.token % TOKEN_SPAN
        added = all_new(group.batch, 0)
        with ExitStack() as attempt:
            unread: dict[str, object] | None = None
            if self._tracking is not None:
                written = WrittenBatch(token, group.batch, group.source, added)
                wanted = attempt.enter_context(
                    self._tracking.all_or_nothing(_shares(group), written)
                )
                unread = track_parameters(wanted) if wanted else None
            if self._written_ids is not None:
                self._written_ids.offer(token, group.batch, None)
            commit = group.token, added, group.source
            await insert_at_once(connection, group.batch, commit, unread)
        return added

    async def _finish(self, connection: Connection, group: _Group, added: Inserted) -> Inserted:
        """Write what goes with the messages; the commit comes right after."""
        token = group.token % TOKEN_SPAN
        if self._tracking is not None:
            written = WrittenBatch(token, group.batch, group.source, added)
            await self._tracking.write(connection, _shares(group), written)
        if added.count:
            await assign_commit_position(connection, [(group.token, added)], group.source)
            if self._written_ids is not None:
                self._written_ids.offer(token, group.batch, added.hashes)
            return added
        await cover_what_is_visible(connection)
        if group.uncertain:
            # An earlier attempt may have committed. To look before the insert would be too
            # soon: a commit can be under way still, and it is the insert that waits for it.
            earlier = await find_committed(connection, group.batch, group.token)
            if earlier is not None:
                return earlier
        return added
