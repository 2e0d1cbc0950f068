"""Messages in Postgres by position, by hash and by time, and the topics that a filter selects.

A read of rows limits the size of one message, so that a page is bounded before it is read;
`read_frames` reads larger ones by position, as far as they fit.

A page in SyncID order is merged from the index by topic, or read by time. Where some messages are
too large for their share of a page, those that fit are read by a second statement.

Every statement names its bounds in time, so that partitions outside are left out when it starts.
Frames are joined from columns in Python, which costs no more than in SQL.

The table of hashes has the first bytes of a hash and its timestamp; the message there has the whole
hash.

A scan reads a page ahead of the one that its caller is still taking, and holds neither transaction
nor connection in between. A read for a transfer returns a prefix of what it was asked for: as many
messages as fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from typing import Final, TypeVar

import numpy as np

from reconcile.ids import SyncId, SyncIds
from store.db.arrays import bigint_column, bigints, fixed_bytes, split_uuids, uuids
from store.db.connection import Connection, fetch_rows
from store.db.locks import cover_what_is_visible, waiting_for_standby
from store.db.pool import Database
from store.db.statements import SQL
from store.domain.admission import Admission, Admitted
from store.domain.hub import TopicName
from store.domain.ports import (
    FramesPage,
    Outlet,
    PageRequest,
    QueryPage,
    Room,
    Source,
    StoreSummary,
    TopicFilter,
    TopicRights,
)
from store.domain.query import DEFAULT_PAGE_BYTES
from store.messages.frames import presence
from store.messages.record import frame_prefix
from store.messages.transfer import transferred
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS
from storenode.message.rules import Policy
from storenode.message.topics import topic_key

_Key = TypeVar("_Key")

HASH_KEY_BYTES: Final = 8
"""Bytes of a hash in ``hashes.key``, a big-endian signed integer; several hashes may have one."""

MAX_MERGED_TOPICS: Final = 1_000
"""Topics up to which a page merges their messages; else the index by time is filtered."""

MAX_POSITIONS: Final = 4_096
"""Positions of one statement that reads topics or content digests."""

_ANY_SIZE: Final = 2**31 - 1
_ANY: Final = Policy(max_drift_ns=None, max_message_bytes=_ANY_SIZE)

Row = tuple[int, bytes, bytes | None, int]
"""Timestamp, hash, parts of the frame after the hash (None: not read), and their size."""


@dataclass(frozen=True, slots=True)
class _TopicCondition:
    """A condition on a row ``t`` of topics, and its parameters."""

    text: str
    parameters: dict[str, object]


TopicKeys = tuple[bytes, ...] | _TopicCondition | None
"""The topics that a filter selects, by their keys unless they are many; None: every topic."""

_IDS_AT: Final = SQL.messages.read_at.format(columns="m.ts, m.hash")
_ROWS_AT: Final = SQL.messages.read_at.format(columns=SQL.messages.data_columns)
_TOPIC_ROWS_AT: Final = SQL.messages.read_at.format(columns=SQL.messages.topic_columns)


def frame_of(message_hash: bytes, body: bytes) -> bytes:
    """Join a frame from a hash and the stored parts."""
    return frame_prefix(len(body)) + message_hash + body


def admit_again(messages: Sequence[bytes]) -> Admitted:
    """Lay stored messages out again, encoded ``WakuMessageAndTopic``, as admission did it once.

    They were admitted by the rules of their time, so no rule counts but that they can be read.
    """
    admission = Admission(_ANY, MAX_TIMESTAMP_NS, Source.RESTORE)
    admission.admit(messages)
    return admission.admitted


def largest_of(max_bytes: int, rows: int) -> int:
    """Return the parameter ``most`` for rows of which a page has ``max_bytes``: twice the share."""
    return 2 * max_bytes // rows


async def read_frames(
    connection: Connection, rows: Sequence[Row], max_bytes: int
) -> list[bytes | None]:
    """Return the frames of the first rows, at most ``max_bytes`` of them but at least one.

    None: a message that was not read with its row, and was pruned meanwhile.
    """
    frames: list[bytes | None] = []
    absent: list[int] = []
    for number, (_, digest, body, size) in enumerate(rows):
        begin = frame_prefix(size) + digest
        max_bytes -= len(begin) + size
        if max_bytes < 0 and number:
            break
        if body is None:
            absent.append(number)
        frames.append(None if body is None else begin + body)
    if absent:
        found = {row[:2]: row for row in await rows_at(connection, [rows[n][:2] for n in absent])}
        for number in absent:
            _, digest, body, _ = found.get(rows[number][:2], rows[number])
            frames[number] = None if body is None else frame_of(digest, body)
    return frames


async def rows_at(
    connection: Connection, positions: Sequence[SyncId], most: int = _ANY_SIZE
) -> list[Row]:
    """Return the rows of the stored messages at some positions, in no order."""
    if not positions:
        return []
    parameters = position_parameters(positions) | {"most": most}
    return await fetch_rows(connection, _ROWS_AT, parameters)


async def stored_at(connection: Connection, positions: Sequence[SyncId]) -> set[SyncId]:
    """Return those of some positions, at least one, at which a message is stored."""
    return set(await fetch_rows(connection, _IDS_AT, position_parameters(positions)))


async def frames_at(
    connection: Connection, positions: Sequence[SyncId], max_bytes: int
) -> list[bytes | None]:
    """Return the frames at the first positions, in order; None: not stored.

    As many as ``max_bytes`` allow, but at least one.
    """
    most = largest_of(max_bytes, max(1, len(positions)))
    by_position = {row[:2]: row for row in await rows_at(connection, positions, most)}
    rows = [by_position[at] for at in dict.fromkeys(positions) if at in by_position]
    read = await read_frames(connection, rows, max_bytes)
    frames = {row[:2]: frame for row, frame in zip(rows, read, strict=False)}
    # Nothing is known of what follows the first message that did not fit.
    end = positions.index(rows[len(read)][:2]) if len(read) < len(rows) else len(positions)
    return [frames.get(at) for at in positions[:end]]


async def values_at(
    connection: Connection, column: str, positions: Sequence[SyncId]
) -> dict[bytes, bytes]:
    """Return a column of stored messages by hash: ``topic`` or ``content_digest``."""
    statement = SQL.messages.read_at.format(columns=f"m.hash, m.{column}")
    found: dict[bytes, bytes] = {}
    for start in range(0, len(positions), MAX_POSITIONS):
        parameters = position_parameters(positions[start : start + MAX_POSITIONS])
        found.update(await fetch_rows(connection, statement, parameters))
    return found


async def locate(connection: Connection, hashes: Sequence[bytes]) -> list[SyncId]:
    """Return the positions of messages by hash, also of pruned ones, in no order.

    A message that is stored has one position. A stored hash that begins like a given one that is
    not stored is returned as the given one; no message is at that position.
    """
    words = np.frombuffer(b"".join(hashes), ">i8")[:: HASH_BYTES // HASH_KEY_BYTES]
    rows = await fetch_rows(connection, SQL.messages.locate, (bigint_column(words),))
    by_key: dict[int, list[bytes]] = {}
    for digest in dict.fromkeys(hashes):
        key = int.from_bytes(digest[:HASH_KEY_BYTES], signed=True)
        by_key.setdefault(key, []).append(digest)
    # A message that was pruned and stored again has two rows.
    found = [(at_ns, digest) for key, at_ns in dict.fromkeys(rows) for digest in by_key[key]]
    if len({digest for _, digest in found}) == len(found):
        return found
    # Several hashes begin alike, and only the messages tell them apart.
    stored = {digest: ts for ts, digest in await stored_at(connection, found)}
    return [at for at in found if stored.get(at[1], at[0]) == at[0]]


async def rows_of_hashes(
    connection: Connection, hashes: Sequence[bytes], most: int
) -> tuple[list[Row], dict[bytes, bytes]]:
    """Return the rows of stored messages by hash, in no order, and the topic key of each."""
    positions = await locate(connection, hashes)
    if not positions:
        return [], {}
    given = position_parameters(positions) | {"most": most}
    rows = await fetch_rows(connection, _TOPIC_ROWS_AT, given)
    return [row[:4] for row in rows], {row[1]: row[4] for row in rows}


def position_parameters(positions: Sequence[SyncId]) -> dict[str, object]:
    """Return parameters that name messages by position, and the span of time around them."""
    timestamps = [timestamp for timestamp, _ in positions]
    return {
        "ts": bigints(timestamps),
        "hash": fixed_bytes([digest for _, digest in positions], HASH_BYTES),
        "low": min(timestamps),
        "high": max(timestamps),
    }


async def topic_names(connection: Connection, keys: Iterable[bytes]) -> dict[bytes, TopicName]:
    """Return the names of topic keys."""
    rows = await fetch_rows(connection, SQL.messages.read_topic_names, (uuids([*keys]),))
    return {key: (pubsub, content) for key, pubsub, content in rows}


async def select_topics(
    connection: Connection, topics: Mapping[_Key, bytes], wanted: TopicFilter
) -> set[_Key]:
    """Return the keys of ``topics`` whose topic, by its key, a filter lets through."""
    if wanted.everything:
        return set(topics)
    names = await topic_names(connection, set(topics.values()))
    allowed = {key for key, name in names.items() if wanted.matches(*name)}
    return {key for key, topic in topics.items() if topic in allowed}


async def resolve(connection: Connection, wanted: TopicFilter) -> TopicKeys:
    """Turn a filter into topic keys, unless they are many; full pairs need no lookup."""
    if wanted.pubsub_topic is not None and wanted.content_topics:
        return tuple(
            topic_key(wanted.pubsub_topic, content)
            for content in sorted(set(wanted.content_topics))
            if wanted.rights.allows(wanted.pubsub_topic, content)
        )
    many = topic_condition(wanted)
    if many is None:
        return None
    # Every form has an index to begin with: a node may hold millions of topics.
    source, given = "storenode.topics t", many.parameters | {"most": MAX_MERGED_TOPICS}
    if wanted.pubsub_topic is None and not wanted.content_topics:
        for column, prefixes in _prefixes(wanted).items():
            if all(prefixes):
                source = SQL.messages.topic_spans.format(column=column)
                given["lows"] = [*prefixes]
    statement = SQL.messages.match_topics.format(source=source, condition=many.text)
    ((keys,),) = await fetch_rows(connection, statement, given)
    return many if keys is None else tuple(split_uuids(keys))


def topic_condition(wanted: TopicFilter) -> _TopicCondition | None:
    """Return the condition of a filter on its topics; None: it lets every topic through."""
    conditions, parameters = list[str](), dict[str, object]()
    if wanted.pubsub_topic is not None:
        conditions.append("t.pubsub_topic = %(pubsub)s::text")
        parameters["pubsub"] = wanted.pubsub_topic
    if wanted.content_topics:
        conditions.append("t.content_topic = any(%(contents)s::text[])")
        parameters["contents"] = list(wanted.content_topics)
    for column, prefixes in _prefixes(wanted).items():
        conditions.append(f"t.{column} ^@ any(%({column})s::text[])")
        parameters[column] = list(prefixes)
    return _TopicCondition(" and ".join(conditions), parameters) if conditions else None


def _prefixes(wanted: TopicFilter) -> dict[str, tuple[str, ...]]:
    rights = wanted.rights
    columns = {"pubsub_topic": rights.pubsub_prefixes, "content_topic": rights.content_prefixes}
    return {column: prefixes for column, prefixes in columns.items() if prefixes}


def topics_clause(topics: TopicKeys) -> str:
    """Return a condition on ``m`` for a selection of topics (see `topics_parameters`)."""
    if isinstance(topics, _TopicCondition):
        return f" and {SQL.messages.is_on_topics.format(condition=topics.text)}"
    return "" if topics is None else " and m.topic in (select unnest(%(topics)b::uuid[]))"


def topics_parameters(topics: TopicKeys) -> dict[str, object]:
    """Return the parameters of `topics_clause` and of pages that merge topics."""
    if isinstance(topics, _TopicCondition):
        return topics.parameters
    return {} if topics is None else {"topics": uuids(topics)}


# Pages

_BEFORE_ALL: Final[SyncId] = (0, b"")
_AFTER_ALL: Final[SyncId] = (MAX_TIMESTAMP_NS, b"\xff" * 33)

_FEWEST_PER_TOPIC: Final = 16
_FEW_TOPICS: Final = 200
"""Topics up to which a page reads `_FEWEST_PER_TOPIC` rows of each at least; of more, fewer."""

_PRESENCE_BYTES: Final = len(presence(bytes(HASH_BYTES)))


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


@cache
def build(source: str, *, include_data: bool, **parts: str) -> str:
    """Return the statement of a source of rows, which ``parts`` fill in."""
    columns = SQL.messages.data_columns if include_data else SQL.messages.id_columns
    return source.format(columns=columns, **parts)


async def read_page(
    connection: Connection, topics: TopicKeys, wanted: PageRequest, shape: PageShape
) -> MessagePage:
    """Read one page of a selection of topics, which a request without hashes is about."""
    forward = wanted.forward
    at = wanted.after or (_BEFORE_ALL if forward else _AFTER_ALL)
    low_ns = max(wanted.time_start_ns, at[0] if forward else 0)
    high_ns = min(wanted.time_end_ns - 1, MAX_TIMESTAMP_NS if forward else at[0])
    if topics == () or low_ns > high_ns:
        return MessagePage([], [], is_last=True)
    limit = shape.size + shape.looks_beyond
    source, each = SQL.messages.page_by_time, limit
    if isinstance(topics, tuple):
        source = SQL.messages.page_of_topic if len(topics) == 1 else SQL.messages.page_of_topics
        # About ``limit`` rows of all topics together if they are even.
        share = limit // len(topics)
        fewest = max(2, _FEWEST_PER_TOPIC * _FEW_TOPICS // max(_FEW_TOPICS, len(topics)))
        each = min(limit, share + share // 2 + fewest)
    statement = build(
        source,
        include_data=shape.include_data,
        beyond=">" if forward else "<",
        until="<=" if forward else ">=",
        way="asc" if forward else "desc",
        topics=topics_clause(topics),
    )
    parameters: dict[str, object] = {
        "low": low_ns,
        "high": high_ns,
        "at_ts": at[0],
        "at_hash": at[1],
        "limit": limit,
        "each": each,
        "most": largest_of(shape.max_bytes, limit),
    }
    parameters |= topics_parameters(topics)
    rows: list[Row] = await fetch_rows(connection, statement, parameters)
    least = limit if shape.looks_beyond else limit // 4
    while source is SQL.messages.page_of_topics and each < limit and len(rows) < least:
        # A topic had more than its share, which hides later messages of others; or these are all.
        each = min(limit, 2 * each * limit // max(1, len(rows)))
        rows = await fetch_rows(connection, statement, parameters | {"each": each})
    page = await page_of(connection, rows, shape)
    if rows and not page.frames:  # all of them were pruned meanwhile
        return await read_page(connection, topics, wanted, shape)
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


MAX_SCAN_PAGE: Final = 4_000  # to join and encode those of one page holds the event loop
_QUERY_TAG: Final = b"\xa2\x01"
"""Field 20, ``StoreQueryResponse.messages``, in place of the tag of a frame."""

MAX_LOADED_IDS: Final = 4_096
"""IDs of one statement that reads messages."""

MAX_SOUGHT_IDS: Final = 16_384
"""IDs of one statement that only looks for them."""

_FEWEST_ROWS: Final = 256


class DatabaseReader:
    """The reads of messages by position, by hash and by time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def position(self, message_hash: bytes, rights: TopicRights) -> SyncId | None:
        """Return the position of a message, also for a while after it was pruned; None: unknown."""
        if len(message_hash) != HASH_BYTES:
            return None
        wanted = TopicFilter(rights=rights)

        async def look(connection: Connection) -> SyncId | None:
            positions = await locate(connection, [message_hash])
            topics = await values_at(connection, "topic", positions)
            if topics:
                return positions[0] if await select_topics(connection, topics, wanted) else None
            if not positions or not wanted.everything:
                return None
            # Pruned, so that no topic is left that rights could be compared with; or never stored.
            ((_, horizon_ns),) = await fetch_rows(connection, SQL.stores.read_folded)
            return next((each for each in positions if each[0] < horizon_ns), None)

        return await self._database.read(look)

    async def query(self, request: PageRequest) -> QueryPage:
        """Return one page of ``Query``."""
        shape = PageShape(
            request.limit, DEFAULT_PAGE_BYTES, request.include_data, looks_beyond=True
        )

        async def read(connection: Connection) -> MessagePage:
            if request.hashes is not None:
                return await self._read_hashes(connection, request, shape)
            topics = await resolve(connection, request.filter)
            return await read_page(connection, topics, request, shape)

        page = await self._database.read(read)
        frames = page.frames if request.forward else page.frames[::-1]
        entries = b"".join([_QUERY_TAG + frame[1:] for frame in frames])
        if page.is_last:
            return QueryPage(entries, len(frames), None)
        last_ns, cursor = page.positions[-1]
        next_ns = last_ns if request.hashes is None else None
        return QueryPage(entries, len(frames), cursor, next_ns)

    async def _read_hashes(
        self, connection: Connection, request: PageRequest, shape: PageShape
    ) -> MessagePage:
        hashes = request.hashes or ()
        most = largest_of(DEFAULT_PAGE_BYTES, max(1, len(hashes))) if request.include_data else 0
        rows, topics = await rows_of_hashes(connection, hashes, most)
        allowed = await select_topics(connection, topics, request.filter)
        forward, low_ns, high_ns = request.forward, request.time_start_ns, request.time_end_ns
        after = request.after or (_BEFORE_ALL if forward else _AFTER_ALL)
        chosen = [
            row
            for row in rows
            if row[1] in allowed
            and low_ns <= row[0] < high_ns
            and (row[:2] > after if forward else row[:2] < after)
        ]
        chosen.sort(key=itemgetter(0, 1), reverse=not forward)
        page = await page_of(connection, chosen, shape)
        if chosen and not page.frames:  # all of them were pruned meanwhile
            return await self._read_hashes(connection, request, shape)
        return page

    async def scan(self, request: PageRequest, outlet: Outlet) -> AsyncGenerator[FramesPage, None]:
        """Yield every match in ascending order, a page at a time; the next one is read ahead."""
        topics = await self._database.read_page(lambda it: resolve(it, request.filter))
        most = DEFAULT_PAGE_BYTES
        size = min(request.limit or MAX_SCAN_PAGE, MAX_SCAN_PAGE)
        room: Room | None = await outlet.room(most)
        ahead: asyncio.Task[MessagePage] | None = None

        def begin(room: Room) -> asyncio.Task[MessagePage]:
            # A small page is read by few rows, not cut from many.
            fitting = max(size * room.size_bytes // most, min(size, _FEWEST_ROWS))
            shape = PageShape(fitting, room.size_bytes, request.include_data)
            wanted = request
            work = self._database.read_page(lambda it: read_page(it, topics, wanted, shape))
            return asyncio.ensure_future(work)

        try:
            while True:
                if room is None:
                    room = await outlet.room(most)
                page, taken = await (ahead or begin(room)), room
                if not page.frames:
                    return
                taken.fit(sum(map(len, page.frames)))
                request, ahead = replace(request, after=page.positions[-1]), None
                room = outlet.spare_room(most)
                if room is not None:
                    ahead = begin(room)
                times = [at_ns for at_ns, _ in page.positions]
                yield FramesPage(b"".join(page.frames), times, page.positions[-1])
                # Not to be held while the next one waits for room.
                del page
                taken.close()
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def summary(self) -> StoreSummary:
        """Return what is held, in one snapshot that has all that was acknowledged before."""
        ((messages, horizon, oldest, newest),) = await self._database.rows(SQL.stores.read_summary)
        return StoreSummary(
            store_id=self._database.store_id,
            messages=messages,
            oldest_timestamp_ns=oldest or 0,
            newest_timestamp_ns=newest or 0,
            horizon_ns=horizon,
        )

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return messages to send (see `store.sync.transfer.transfer.TransferReads`)."""
        portion = ids[:MAX_LOADED_IDS]
        if not len(portion):
            return []
        pairs, pool = portion.pairs(), self._database.bulk_pool
        frames = await self._database.read(frames_at, pairs, max_bytes, pool=pool)
        return [None if frame is None else transferred(frame) for frame in frames]

    async def are_stored(self, ids: SyncIds) -> list[bool]:
        """Return which messages are stored (see `store.sync.transfer.transfer.TransferReads`)."""
        found: set[SyncId] = set()
        for start in range(0, len(ids), MAX_SOUGHT_IDS):
            part = ids[start : start + MAX_SOUGHT_IDS].pairs()
            found |= await self._database.read(_seek, part, pool=self._database.bulk_pool)
        return [at in found for at in ids.pairs()]


async def _seek(connection: Connection, positions: Sequence[SyncId]) -> set[SyncId]:
    with waiting_for_standby(connection):
        async with connection.transaction():
            found = await stored_at(connection, positions)
            if found:
                await cover_what_is_visible(connection)
    return found
