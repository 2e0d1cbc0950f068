"""Messages in Postgres by position and by hash, and the columns in which all reads return them.

A read returns rows: the timestamp, the hash, the stored parts of the frame joined to one value,
and their size. The value is NULL where the size passes the limit of the statement, so that a page
is bounded before it is read; `read_frames` reads these messages by position, as far as they fit.
Frames are joined from rows in Python, which costs no more than in SQL.

Every statement names its bounds in time, so that partitions outside are left out when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from store.db.arrays import bigints, fixed_bytes, uuids
from store.db.pool import Connection
from store.db.schema.names import HASH_KEY_BYTES
from store.db.statements import SQL
from store.domain.hub import TopicName
from store.domain.ports import SyncId, TopicFilter
from store.messages.frames import presence
from store.messages.record import frame_prefix
from storenode.message.limits import HASH_BYTES
from storenode.message.topics import topic_key

_Key = TypeVar("_Key")

MAX_POSITIONS: Final = 4_096
"""Positions of one statement that reads topics or content digests."""

_ANY_SIZE: Final = 2**31 - 1

Row = tuple[int, bytes, bytes | None, int]
"""Timestamp, hash, parts of the frame after the hash (None: too large), and their size."""


_TOPICS_AT: Final = SQL.messages.read_at.format(columns="m.hash, m.topic")
_PAYLOADS_AT: Final = SQL.messages.read_at.format(columns="m.hash, m.payload")
_CONTENTS_AT: Final = SQL.messages.read_at.format(columns="m.hash, m.content_digest")


_LAST_CHARACTER: Final = "\U0010ffff"
_SURROGATES: Final = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Topics:
    """A filter as topic keys; ``keys`` None: every topic."""

    keys: tuple[bytes, ...] | None


EVERY_TOPIC: Final = Topics(None)


def columns_of(*, include_data: bool) -> str:
    """Return the columns of rows with or without their data."""
    return SQL.messages.data_columns if include_data else SQL.messages.id_columns


def largest_of(max_bytes: int, rows: int) -> int:
    """Return the parameter ``most`` for rows of which a page has ``max_bytes``: twice the share."""
    return 2 * max_bytes // rows


def frame_of(message_hash: bytes, body: bytes) -> bytes:
    """Join a frame from a hash and the stored parts."""
    return frame_prefix(len(body)) + message_hash + body


async def read_frames(
    connection: Connection, rows: Sequence[Row], max_bytes: int, *, include_data: bool
) -> list[bytes]:
    """Return the frames of the first rows, at most ``max_bytes`` of them but at least one.

    A message that was pruned meanwhile has an empty frame.
    """
    if not include_data:
        frames = [presence(row[1]) for row in rows]
        return frames[: max(1, max_bytes // len(frames[0]))] if frames else []
    left = max_bytes
    frames = []
    absent: list[int] = []
    for _, digest, body, size in rows:
        begin = frame_prefix(size) + digest
        left -= len(begin) + size
        if left < 0 and frames:
            break
        if body is None:
            absent.append(len(frames))
        frames.append(begin + body if body is not None else b"")
    if absent:
        positions = [rows[index][:2] for index in absent]
        found = {row[1]: row[2] for row in await rows_at(connection, positions, _ANY_SIZE)}
        for index in absent:
            body = found.get(rows[index][1])
            frames[index] = b"" if body is None else frame_of(rows[index][1], body)
    return frames


async def rows_at(
    connection: Connection, positions: Sequence[SyncId], most: int, *, include_data: bool = True
) -> list[Row]:
    """Return the rows of the messages at some positions, in no order, as far as they are stored."""
    return await _select_at(connection, positions, most, columns_of(include_data=include_data))  # type: ignore[return-value]


async def matching_rows_at(
    connection: Connection,
    positions: Sequence[SyncId],
    most: int,
    wanted: TopicFilter,
    *,
    include_data: bool,
) -> list[Row]:
    """Return the rows of `rows_at` whose messages a filter lets through."""
    if wanted.everything:
        return await rows_at(connection, positions, most, include_data=include_data)
    columns = f"m.topic, {columns_of(include_data=include_data)}"
    found = await _select_at(connection, positions, most, columns)
    topics: dict[bytes, bytes] = {row[2]: row[0] for row in found}  # type: ignore[misc]
    allowed = await select_topics(connection, topics, wanted)
    return [row[1:] for row in found if row[2] in allowed]  # type: ignore[misc]


async def _select_at(
    connection: Connection, positions: Sequence[SyncId], most: int, columns: str
) -> list[tuple[object, ...]]:
    if not positions:
        return []
    parameters = position_parameters(positions) | {"most": most}
    statement = SQL.messages.read_at.format(columns=columns)
    return await (await connection.execute(statement, parameters, binary=True)).fetchall()


async def frames_at(
    connection: Connection, positions: Sequence[SyncId], max_bytes: int
) -> list[bytes | None]:
    """Return the frames at the first positions, in order; None: not stored.

    As many as ``max_bytes`` allow, but at least one.
    """
    if not positions:
        return []
    found = await rows_at(connection, positions, largest_of(max_bytes, len(positions)))
    by_position = {row[:2]: row for row in found}
    rows = [by_position[at] for at in dict.fromkeys(positions) if at in by_position]
    read = await read_frames(connection, rows, max_bytes, include_data=True)
    frames = {row[:2]: frame for row, frame in zip(rows, read, strict=False)}
    # Nothing is known of what follows the first message that did not fit.
    end = positions.index(rows[len(read)][:2]) if len(read) < len(rows) else len(positions)
    return [frames.get(at) or None for at in positions[:end]]


async def topics_of(connection: Connection, positions: Sequence[SyncId]) -> dict[bytes, bytes]:
    """Return the topic keys of stored messages, by hash."""
    return await _values_at(connection, _TOPICS_AT, positions)


async def payloads_at(connection: Connection, positions: Sequence[SyncId]) -> dict[bytes, bytes]:
    """Return the payloads of stored messages, by hash."""
    return await _values_at(connection, _PAYLOADS_AT, positions)


async def content_digests_at(
    connection: Connection, positions: Sequence[SyncId]
) -> dict[bytes, bytes]:
    """Return the content digests of stored messages, by hash."""
    return await _values_at(connection, _CONTENTS_AT, positions)


async def _values_at(
    connection: Connection, statement: str, positions: Sequence[SyncId]
) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for start in range(0, len(positions), MAX_POSITIONS):
        parameters = position_parameters(positions[start : start + MAX_POSITIONS])
        cursor = await connection.execute(statement, parameters, binary=True)
        found.update(await cursor.fetchall())  # type: ignore[arg-type]
    return found


async def locate(connection: Connection, hashes: Sequence[bytes]) -> list[SyncId]:
    """Return the positions of messages by hash, also of pruned ones, in no order.

    A message that is stored has one position. A stored hash that begins like a given one that is
    not stored is returned as the given one; no message is at that position.
    """
    cursor = await connection.execute(
        SQL.messages.locate, (bigints([*map(hash_key, hashes)]),), binary=True
    )
    found = _positions(await cursor.fetchall(), dict.fromkeys(hashes))  # type: ignore[arg-type]
    if len({digest for _, digest in found}) == len(found):
        return found
    # Several hashes begin alike, and only the messages tell them apart.
    stored = {row[1]: row[0] for row in await rows_at(connection, found, 0, include_data=False)}
    return [at for at in found if stored.get(at[1], at[0]) == at[0]]


async def recent_rows(
    connection: Connection, hashes: Sequence[bytes], recent_ns: int, *, include_data: bool
) -> list[Row]:
    """Return the rows of messages by hash, in no order; those from ``recent_ns`` on at once."""
    statement = SQL.messages.read_by_hash.format(columns=columns_of(include_data=include_data))
    parameters = {"keys": bigints([*map(hash_key, hashes)]), "recent": recent_ns, "most": _ANY_SIZE}
    cursor = await connection.execute(statement, parameters, binary=True)
    found = await cursor.fetchall()
    older = [(ts, key) for ts, key, *_ in found if ts < recent_ns]  # type: ignore[operator]
    wanted = set(hashes)
    rows = {row[1]: tuple(row) for _, _, *row in found if row[1] in wanted}
    positions = _positions(older, hashes)  # type: ignore[arg-type]
    beyond = await rows_at(connection, positions, _ANY_SIZE, include_data=include_data)
    return [*rows.values(), *beyond]  # type: ignore[list-item]


def hash_key(message_hash: bytes) -> int:
    """Return the key of a hash in ``hashes``."""
    return int.from_bytes(message_hash[:HASH_KEY_BYTES], signed=True)


def _positions(rows: Sequence[tuple[int, int]], hashes: Iterable[bytes]) -> list[SyncId]:
    by_key: dict[int, list[bytes]] = {}
    for digest in hashes:
        by_key.setdefault(hash_key(digest), []).append(digest)
    # A message that was pruned and stored again has two rows.
    return [(timestamp, digest) for timestamp, key in dict.fromkeys(rows) for digest in by_key[key]]


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
    cursor = await connection.execute(SQL.messages.read_topic_names, (uuids([*keys]),), binary=True)
    return {key: (pubsub, content) for key, pubsub, content in await cursor.fetchall()}  # type: ignore[misc]


async def select_topics(
    connection: Connection, topics: Mapping[_Key, bytes], wanted: TopicFilter
) -> set[_Key]:
    """Return the keys of ``topics`` whose topic, by its key, a filter lets through."""
    if wanted.everything:
        return set(topics)
    names = await topic_names(connection, set(topics.values()))
    allowed = {key for key, name in names.items() if wanted.matches(*name)}
    return {key for key, topic in topics.items() if topic in allowed}


async def resolve(connection: Connection, wanted: TopicFilter) -> Topics:
    """Turn a filter into topic keys; full pairs need no look-up."""
    rights = wanted.rights
    if wanted.pubsub_topic is not None and wanted.content_topics:
        return Topics(
            tuple(
                topic_key(wanted.pubsub_topic, content)
                for content in sorted(set(wanted.content_topics))
                if rights.allows(wanted.pubsub_topic, content)
            )
        )
    if wanted.everything:
        return EVERY_TOPIC
    statement, parameters = _matching_topics(wanted)
    cursor = await connection.execute(statement, parameters, binary=True)
    return Topics(tuple(row[0] for row in await cursor.fetchall()))  # type: ignore[misc]


def _matching_topics(wanted: TopicFilter) -> tuple[str, dict[str, object]]:
    # Every form has an index to begin with: a node may hold millions of topics.
    source, conditions, parameters = "storenode.topics t", list[str](), dict[str, object]()
    if wanted.pubsub_topic is not None:
        conditions.append("t.pubsub_topic = %(pubsub)s::text")
        parameters["pubsub"] = wanted.pubsub_topic
    if wanted.content_topics:
        conditions.append("t.content_topic = any(%(contents)s::text[])")
        parameters["contents"] = list(wanted.content_topics)
    exact = bool(conditions)
    rights = wanted.rights
    columns = {"pubsub_topic": rights.pubsub_prefixes, "content_topic": rights.content_prefixes}
    for column, prefixes in columns.items():
        if not prefixes:
            continue
        conditions.append(f"t.{column} ^@ any(%({column})s::text[])")
        parameters[column] = list(prefixes)
        ends = [_end_of_prefix(prefix) for prefix in prefixes]
        if not exact and None not in ends:
            source = SQL.messages.topic_spans.format(column=column)
            parameters |= {"lows": list(prefixes), "highs": ends}
    return SQL.messages.match_topics.format(
        source=source, conditions=" and ".join(conditions)
    ), parameters


def _end_of_prefix(prefix: str) -> str | None:
    """Return the first text after all that begin with a prefix, by code points, if there is one."""
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def topics_clause(topics: Topics) -> str:
    """Return a condition on ``m`` for a selection of topics (see `topics_parameters`)."""
    return "" if topics.keys is None else " and m.topic in (select unnest(%(topics)b::uuid[]))"


def topics_parameters(topics: Topics) -> dict[str, object]:
    """Return the parameters of `topics_clause` and of pages that merge topics."""
    return {} if topics.keys is None else {"topics": uuids(topics.keys)}
