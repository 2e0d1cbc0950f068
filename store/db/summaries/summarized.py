"""SQL that summarises messages as buckets do, and summaries as its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, LiteralString

import numpy as np
from psycopg import sql

from store.db.arrays import BigintArray, bigint_column
from store.db.summaries.deltas import HASH_WORDS, MINUTE_NS, Buckets
from store.domain.partitioning import Bounds
from storenode.message.limits import HASH_BYTES

WORD_COLUMNS: Final[tuple[LiteralString, ...]] = ("x0", "x1", "x2", "x3")

UNFOLDED: Final[LiteralString] = """
select summary from storenode.commits
where position > (select folded_position from storenode.store) and max_ts >= %s and min_ts <= %s
"""
"""Deltas that are not folded yet, of commits about a range of time, both ends included."""

GIVEN: Final[LiteralString] = """
unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
"""
"""The parameters that `columns` makes: start_ns, count, x0, x1, x2, x3."""

# One XOR of 256 bits is quicker than four of 64, and words are made of it once per minute.
_MINUTES: Final[LiteralString] = """
select minute * {length} as start_ns, count, {words} from (
    select ts / {length} as minute, count(*) as count,
           bit_xor(cast('x' || encode(hash, 'hex') as bit({bits}))) as bits
    from {table} where ts >= {low} and ts <= {last} group by 1
) as summarized
"""


def minutes_of(table: sql.Identifier, bounds: Bounds) -> sql.Composed:
    """A query for (start_ns, count, x0, x1, x2, x3) of the messages of a range of time.

    Its parts are literals, so that partitions are left out when it is planned.
    """
    words = [
        sql.SQL("{} as {}").format(_word(number), sql.Identifier(WORD_COLUMNS[number]))
        for number in range(HASH_WORDS)
    ]
    return sql.SQL(_MINUTES).format(
        length=sql.Literal(MINUTE_NS),
        words=_listed(words),
        bits=sql.Literal(8 * HASH_BYTES),
        table=table,
        low=sql.Literal(bounds.low),
        last=sql.Literal(bounds.high - 1),
    )


def words() -> sql.Composed:
    """The columns of an XOR."""
    return _listed(map(sql.Identifier, WORD_COLUMNS))


def joined_words() -> sql.Composed:
    """The XOR of several rows, as an aggregate per column."""
    return _listed(sql.SQL("bit_xor({})").format(sql.Identifier(word)) for word in WORD_COLUMNS)


def are_not_nothing() -> sql.Composed:
    """A condition on groups of rows: the XOR of their XORs is not zero."""
    conditions = [sql.SQL("bit_xor({}) <> 0").format(sql.Identifier(word)) for word in WORD_COLUMNS]
    return sql.SQL(" or ").join(conditions)


def columns(summaries: Sequence[Buckets]) -> list[BigintArray]:
    """Start, count and the words of the XOR of some buckets, laid out as parameters."""
    starts = [np.empty(0, np.int64), *(each.starts for each in summaries)]
    counts = [np.empty(0, np.int64), *(each.counts for each in summaries)]
    xors = [np.empty((0, HASH_WORDS), np.uint64), *(each.xors for each in summaries)]
    by_word = np.concatenate(xors).view("<i8").T
    return [bigint_column(each) for each in (np.concatenate(starts), np.concatenate(counts))] + [
        bigint_column(each) for each in by_word
    ]


def _word(number: int) -> sql.Composed:
    octets = [
        sql.SQL("substring(bits from {} for 8)").format(sql.Literal(8 * octet + 1))
        for octet in reversed(range(8 * number, 8 * number + 8))
    ]
    return sql.SQL("cast(cast({} as bit(64)) as bigint)").format(sql.SQL(" || ").join(octets))


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
