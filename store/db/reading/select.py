"""Pieces of the statements that read messages.

Every statement names its bounds in time twice, as ``ts >= lo and ts < hi`` and as a position, so
that partitions outside are left out when the statement starts. Entries are concatenated, cut by
bytes and joined in SQL: a page reaches the node as one value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.db.arrays import uuids
from store.db.pool import Connection
from store.domain.ports import TopicFilter
from store.messages.record import HASH_FIELD_BYTES
from storenode.message.topics import topic_key

MAX_MERGED_TOPICS: Final = 200
"""Up to so many topics are merged from the topic index; beyond, the time index is filtered."""


MESSAGE_AT: Final = """lateral (
    select n.* from storenode.messages n
    where n.ts = k.ts and n.hash = k.hash
      and n.ts >= %(low)b::bigint and n.ts <= %(high)b::bigint offset 0
) m"""
"""The message ``m`` at a position ``k``. As a join, a plan that was made while a partition was
small would go on reading all of it when it is large; this one is always a probe of the index."""


@dataclass(frozen=True, slots=True)
class MessageExpression:
    """An SQL expression over ``m`` for a message of a page, and one for its size in bytes."""

    expression: str
    size: str


_STORED_BYTES: Final = "(octet_length(m.head) + octet_length(m.payload) + octet_length(m.tail))"
_BODY_BYTES: Final = f"({_STORED_BYTES} + {HASH_FIELD_BYTES})"

# The tag and the length as a varint of 1, 2 or 3 bytes, and the tag and length of the hash, as the
# last bytes of one number: few operations, since they are done for each row.
_BEGINNING: Final = f"""case
    when {_BODY_BYTES} < 128 then int4send({_BODY_BYTES} * 65536 + 167774752)
    when {_BODY_BYTES} < 16384 then substr(int8send(
        (688128 + (({_BODY_BYTES} & 127) << 8) + ({_BODY_BYTES} >> 7)) * 65536::bigint + 2592), 4)
    else substr(int8send((176193536 + (({_BODY_BYTES} & 127) << 16)
        + ((({_BODY_BYTES} >> 7) & 127) << 8) + ({_BODY_BYTES} >> 14)) * 65536::bigint + 2592), 3)
end"""

_HEAD: Final = f"{_BEGINNING} || m.hash || m.head"
"""The part of a frame before the payload."""

_DATA_BYTES: Final = f"""(case when {_BODY_BYTES} < 128 then {_BODY_BYTES} + 2
    when {_BODY_BYTES} < 16384 then {_BODY_BYTES} + 3 else {_BODY_BYTES} + 4 end)"""

FRAME: Final = MessageExpression(f"{_HEAD} || m.payload || m.tail", _DATA_BYTES)
"""Field 1 with data."""

PRESENCE: Final = MessageExpression(r"'\x0a220a20'::bytea || m.hash", "36")
"""Field 1 without data: the hash alone."""

QUERY_FRAME: Final = MessageExpression(
    rf"'\xa201'::bytea || substr({_HEAD}, 2) || m.payload || m.tail", f"({_DATA_BYTES} + 1)"
)
"""Field 20 with data (13/WAKU2-STORE, ``StoreQueryResponse.messages``)."""

QUERY_PRESENCE: Final = MessageExpression(r"'\xa201220a20'::bytea || m.hash", "37")
"""Field 20 without data."""

_FILTER: Final = """
 and m.topic in (select t.key from storenode.topics t
      where (%(pubsub)s::text is null or t.pubsub_topic = %(pubsub)s::text)
        and (cardinality(%(contents)s::text[]) = 0
             or t.content_topic = any(%(contents)s::text[]))
        and (cardinality(%(pubsub_prefixes)s::text[]) = 0
             or t.pubsub_topic ^@ any(%(pubsub_prefixes)s::text[]))
        and (cardinality(%(content_prefixes)s::text[]) = 0
             or t.content_topic ^@ any(%(content_prefixes)s::text[])))"""

_MATCHING_TOPICS: Final = "select distinct t.key from {source} where {conditions}"

# For a prefix that is a parameter Postgres takes no index, for the span of texts that begin with it
# it does.
_SPANS: Final = """
unnest(%(lows)s::text[], %(highs)s::text[]) as span(low, high)
join storenode.topics t on t.{column} >= span.low and t.{column} < span.high
"""
_LAST_CHARACTER: Final = "\U0010ffff"
_SURROGATES: Final = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Topics:
    """A filter as topic keys; ``keys`` None: every topic."""

    keys: tuple[bytes, ...] | None


EVERY_TOPIC: Final = Topics(None)


def filter_clause(*, filtered: bool) -> str:
    """Condition on ``m`` where not every topic is wanted (see `filter_parameters`)."""
    return _FILTER if filtered else ""


def filter_parameters(wanted: TopicFilter) -> dict[str, object]:
    """Parameters of `filter_clause`."""
    if wanted.everything:
        return {}
    return {
        "pubsub": wanted.pubsub_topic,
        "contents": list(wanted.content_topics),
        "pubsub_prefixes": list(wanted.rights.pubsub_prefixes),
        "content_prefixes": list(wanted.rights.content_prefixes),
    }


async def resolve(connection: Connection, wanted: TopicFilter) -> Topics:
    """Turn a filter into topic keys; full pairs need no look-up."""
    rights = wanted.rights
    if wanted.pubsub_topic is not None and wanted.content_topics:
        pairs = set(wanted.content_topics)
        return Topics(
            tuple(
                topic_key(wanted.pubsub_topic, content)
                for content in sorted(pairs)
                if rights.allows(wanted.pubsub_topic, content)
            )
        )
    if wanted.everything:
        return EVERY_TOPIC
    statement, parameters = _matching_topics(wanted)
    cursor = await connection.execute(statement, parameters, binary=True)
    return Topics(tuple(row[0] for row in await cursor.fetchall()))  # type: ignore[misc]


def _matching_topics(wanted: TopicFilter) -> tuple[str, dict[str, object]]:
    """Statement for the keys of the topics that a filter selects, and its parameters.

    Every form has an index to begin with: a node may hold millions of topics.
    """
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
            source = _SPANS.format(column=column)
            parameters |= {"lows": list(prefixes), "highs": ends}
    return _MATCHING_TOPICS.format(source=source, conditions=" and ".join(conditions)), parameters


def _end_of_prefix(prefix: str) -> str | None:
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def topics_clause(topics: Topics) -> str:
    """Condition on ``m`` for a selection that is not merged (see `topics_parameters`)."""
    return "" if topics.keys is None else " and m.topic in (select unnest(%(topics)b::uuid[]))"


def topics_parameters(topics: Topics) -> dict[str, object]:
    """Parameters of `topics_clause` and of merging."""
    return {} if topics.keys is None else {"topics": uuids(topics.keys)}
