"""Messages in Postgres by position and by hash, and the topics that a filter selects.

A read of rows limits the size of one message, so that a page is bounded before it is read;
`read_frames` reads larger ones by position, as far as they fit.

Every statement names its bounds in time, so that partitions outside are left out when it starts.
Frames are joined from columns in Python, which costs no more than in SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from store.db.arrays import bigints, fixed_bytes, uuids
from store.db.connection import Connection
from store.db.schema.names import HASH_KEY_BYTES
from store.db.statements import SQL
from store.domain.hub import TopicName
from store.domain.ports import SyncId, TopicFilter
from store.messages.record import frame_prefix
from storenode.message.limits import HASH_BYTES
from storenode.message.topics import topic_key

_Key = TypeVar("_Key")

MAX_POSITIONS: Final = 4_096
"""Positions of one statement that reads topics or content digests."""

_ANY_SIZE: Final = 2**31 - 1

Row = tuple[int, bytes, bytes | None, int]
"""Timestamp, hash, parts of the frame after the hash (None: not read), and their size."""

TopicKeys = tuple[bytes, ...] | None
"""The keys of the topics that a filter selects; None: every topic."""

_IDS_AT: Final = SQL.messages.read_at.format(columns="m.ts, m.hash")
_TOPICS_AT: Final = SQL.messages.read_at.format(columns="m.hash, m.topic")
_PAYLOADS_AT: Final = SQL.messages.read_at.format(columns="m.hash, m.payload")
_CONTENTS_AT: Final = SQL.messages.read_at.format(columns="m.hash, m.content_digest")
_ROWS_AT: Final = SQL.messages.read_at.format(columns=SQL.messages.data_columns)

_LAST_CHARACTER: Final = "\U0010ffff"
_SURROGATES: Final = range(0xD800, 0xE000)


def frame_of(message_hash: bytes, body: bytes) -> bytes:
    """Join a frame from a hash and the stored parts."""
    return frame_prefix(len(body)) + message_hash + body


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
    cursor = await connection.execute(_ROWS_AT, parameters, binary=True)
    return await cursor.fetchall()


async def stored_at(connection: Connection, positions: Sequence[SyncId]) -> set[SyncId]:
    """Return those of some positions, at least one, at which a message is stored."""
    cursor = await connection.execute(_IDS_AT, position_parameters(positions), binary=True)
    return set(await cursor.fetchall())


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
        found.update(await cursor.fetchall())
    return found


async def locate(connection: Connection, hashes: Sequence[bytes]) -> list[SyncId]:
    """Return the positions of messages by hash, also of pruned ones, in no order.

    A message that is stored has one position. A stored hash that begins like a given one that is
    not stored is returned as the given one; no message is at that position.
    """
    cursor = await connection.execute(
        SQL.messages.locate, (bigints([*map(hash_key, hashes)]),), binary=True
    )
    found = _positions(await cursor.fetchall(), dict.fromkeys(hashes))
    if len({digest for _, digest in found}) == len(found):
        return found
    # Several hashes begin alike, and only the messages tell them apart.
    stored = {digest: ts for ts, digest in await stored_at(connection, found)}
    return [at for at in found if stored.get(at[1], at[0]) == at[0]]


async def rows_of_hashes(
    connection: Connection, hashes: Sequence[bytes], recent_ns: int
) -> dict[bytes, Row]:
    """Return the rows of few messages by hash, whole; those from ``recent_ns`` on at once."""
    parameters = {"keys": bigints([*map(hash_key, hashes)]), "recent": recent_ns}
    cursor = await connection.execute(SQL.messages.read_by_hash, parameters, binary=True)
    found: list[tuple[int, int, bytes, bytes, int]] = await cursor.fetchall()
    wanted = set(hashes)
    rows: list[Row] = [(ts, *row) for ts, _, *row in found if row[0] in wanted]  # type: ignore[misc]
    older = _positions([(ts, key) for ts, key, *_ in found if ts < recent_ns], hashes)
    rows += await rows_at(connection, older)
    return {row[1]: row for row in rows}


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
    return {key: (pubsub, content) for key, pubsub, content in await cursor.fetchall()}


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
    """Turn a filter into topic keys; full pairs need no look-up."""
    rights = wanted.rights
    if wanted.pubsub_topic is not None and wanted.content_topics:
        return tuple(
            topic_key(wanted.pubsub_topic, content)
            for content in sorted(set(wanted.content_topics))
            if rights.allows(wanted.pubsub_topic, content)
        )
    if wanted.everything:
        return None
    statement, parameters = _matching_topics(wanted)
    cursor = await connection.execute(statement, parameters, binary=True)
    return tuple(row[0] for row in await cursor.fetchall())


def topic_conditions(wanted: TopicFilter) -> tuple[list[str], dict[str, object]]:
    """Return the conditions of a filter on a row ``t`` of topics, and their parameters."""
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
    return conditions, parameters


def _prefixes(wanted: TopicFilter) -> dict[str, tuple[str, ...]]:
    rights = wanted.rights
    columns = {"pubsub_topic": rights.pubsub_prefixes, "content_topic": rights.content_prefixes}
    return {column: prefixes for column, prefixes in columns.items() if prefixes}


def _matching_topics(wanted: TopicFilter) -> tuple[str, dict[str, object]]:
    # Every form has an index to begin with: a node may hold millions of topics.
    source = "storenode.topics t"
    conditions, parameters = topic_conditions(wanted)
    if wanted.pubsub_topic is None and not wanted.content_topics:
        for column, prefixes in _prefixes(wanted).items():
            ends = [_end_of_prefix(prefix) for prefix in prefixes]
            if None not in ends:
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


def topics_clause(topics: TopicKeys) -> str:
    """Return a condition on ``m`` for a selection of topics (see `topics_parameters`)."""
    return "" if topics is None else " and m.topic in (select unnest(%(topics)b::uuid[]))"


def topics_parameters(topics: TopicKeys) -> dict[str, object]:
    """Return the parameters of `topics_clause` and of pages that merge topics."""
    return {} if topics is None else {"topics": uuids(topics)}
