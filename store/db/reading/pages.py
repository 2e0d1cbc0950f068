"""Pages of messages in SyncID order, one statement each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from struct import Struct
from typing import Final

from store.db.pool import Connection
from store.db.reading.select import (
    MAX_MERGED_TOPICS,
    MessageExpression,
    Topics,
    topics_clause,
    topics_parameters,
)
from store.domain.ports import FramesPage, SyncId
from store.messages.frames import end_of_entry
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

_FEWEST_PER_TOPIC: Final = 16
_POSITION: Final = Struct(f">q{HASH_BYTES}s")

BEFORE_ALL: Final[SyncId] = (0, b"")
AFTER_ALL: Final[SyncId] = (MAX_TIMESTAMP_NS, b"\xff" * 33)

_IN_TIME_ORDER: Final = """
select m.ts, m.hash, m.head, m.payload, m.tail from storenode.messages m
where m.ts >= %(low)b::bigint and m.ts <= %(high)b::bigint
  and (m.ts, m.hash) {beyond} (%(at_ts)b::bigint, %(at_hash)b::bytea){topics}
order by m.ts {way}, m.hash {way} limit %(limit)b::bigint
"""

# In the order of the index by topic, which begins each hash only: those that begin alike at one
# time are put in order as they come. The first condition is the index's, the second is exact.
_OF_TOPIC: Final = """
    m.ts >= %(low)b::bigint and m.ts <= %(high)b::bigint
  and (m.ts, substr(m.hash, 1, 7)) {beyond}=
      (%(at_ts)b::bigint, substr(%(at_hash)b::bytea, 1, 7))
  and (m.ts, m.hash) {beyond} (%(at_ts)b::bigint, %(at_hash)b::bytea)
order by m.ts {way}, substr(m.hash, 1, 7) {way}, m.hash {way}
"""

_ONE_TOPIC: Final = f"""
select m.ts, m.hash, m.head, m.payload, m.tail from storenode.messages m
where m.topic = (%(topics)b::uuid[])[1] and {_OF_TOPIC} limit %(limit)b::bigint
"""

# Each topic gives its next few; what lies beyond the first topic to be cut off is not known
# completely yet and waits for the next page. Those of the page are read where they were found: the
# index has not all that puts them in order, so their rows had to be looked at already.
_MERGED: Final = f"""
select m.ts, m.hash, m.head, m.payload, m.tail from (
    with merged as materialized (
        select x.ts, x.hash, x.place, x.n from unnest(%(topics)b::uuid[]) as given(topic)
        cross join lateral (
            select n.*, row_number() over () as n from (
                select m.ts, m.hash, m.ctid as place from storenode.messages m
                where m.topic = given.topic and {_OF_TOPIC} limit %(each)b::bigint
            ) n
        ) x
    ), cut as (
        select ts, hash from merged where n = %(each)b::bigint
        order by ts {{way}}, hash {{way}} limit 1
    )
    select ts, hash, place from merged
    where not exists (select from cut)
       or (ts, hash) {{until}} (select ts, hash from cut)
    order by ts {{way}}, hash {{way}} limit %(limit)b::bigint
) k cross join lateral (
    select n.* from storenode.messages n
    where n.ts = k.ts and n.ctid = k.place and n.hash = k.hash
      and n.ts >= %(low)b::bigint and n.ts <= %(high)b::bigint offset 0
) m
order by m.ts {{way}}, m.hash {{way}}
"""

SHOWN: Final = "filter (where n <= %(show)b::bigint and (bytes <= %(max_bytes)b::bigint or n = 1))"

_JOINED: Final = """
select string_agg({entry}, ''::bytea {order}) {shown}, count(*) {shown}, count(*),
       {farthest}(ts) {shown}, (array_agg(hash) {shown})[count(*) {shown}]
from (
    select m.*, row_number() over w as n, sum({entry_bytes}) over w as bytes from ({rows}) m
    window w as (order by m.ts {way}, m.hash {way} rows unbounded preceding)
) m
"""


# The same without the count of what was left out, at four fifths of the cost.
_STREAMED: Final = """
select string_agg({entry}, ''::bytea), count(*), count(*), max(ts),
       substr(string_agg(hash, ''::bytea), (32 * count(*) - 31)::int)
from (
    select m.*, sum({entry_bytes}) over (order by ts, hash rows unbounded preceding) as bytes
    from ({rows}) m
) m
where bytes <= %(max_bytes)b::bigint or bytes = {entry_bytes}
"""


# And without a running sum, at two thirds: where no entry is larger than its share of the page, all
# fit. What is larger is not joined but counted, and then the page is read with the sum.
_SMALL: Final = """
select string_agg(case when {entry_bytes} <= %(most)b::bigint then {entry} end, ''::bytea),
       count(*), count(*) filter (where {entry_bytes} > %(most)b::bigint), max(ts),
       substr(string_agg(hash, ''::bytea), (32 * count(*) - 31)::int)
from ({rows}) m
"""

# With the position of each message, so that the page can be cut into smaller ones.
_APART: Final = """
select string_agg({entry}, ''::bytea), count(*), count(*), max(ts),
       substr(string_agg(hash, ''::bytea), (32 * count(*) - 31)::int),
       string_agg(int8send(ts) || hash, ''::bytea)
from (
    select m.*, sum({entry_bytes}) over (order by ts, hash rows unbounded preceding) as bytes
    from ({rows}) m
) m
where bytes <= %(max_bytes)b::bigint or bytes = {entry_bytes}
"""


class _Rows(Enum):
    """Where the rows of a page come from: the three statements above."""

    IN_TIME_ORDER = _IN_TIME_ORDER
    ONE_TOPIC = _ONE_TOPIC
    MERGED = _MERGED

    @classmethod
    def of(cls, topics: Topics) -> _Rows:
        """Those of a selection of topics."""
        if topics.keys is None or len(topics.keys) > MAX_MERGED_TOPICS:
            return cls.IN_TIME_ORDER
        return cls.ONE_TOPIC if len(topics.keys) == 1 else cls.MERGED


class Form(Enum):
    """How a page is cut to its size: the four statements above."""

    COUNTED = "counted"
    STREAMED = "streamed"
    SMALL = "small"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class Window:
    """Where to read: between two timestamps (both inclusive), beyond ``at``, one way."""

    low_ns: int
    high_ns: int
    at: SyncId
    forward: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """How a page looks: its entries, and its limits.

    ``show`` messages at most, and ``max_bytes`` unless one alone has more; ``each`` rows are read
    per topic where topics are merged. ``streamed`` pages are read forward and do not tell
    whether more was seen than shown; ``apart``, they have the position of each message.
    """

    entry: MessageExpression
    show: int
    read: int
    each: int
    max_bytes: int
    streamed: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """Ascending entries, joined; ``last`` is the last in reading direction.

    ``seen`` rows were read, of which ``count`` are shown. ``positions`` are those of the messages,
    packed, where the shape asks for them.
    """

    entries: bytes
    count: int
    seen: int
    last: SyncId
    positions: bytes = b""

    def parts(self, most: int) -> Iterator[FramesPage]:
        """Cut a page that is read apart into pages of ``most`` messages."""
        begin = end = 0
        for number, position in enumerate(_POSITION.iter_unpack(self.positions), 1):
            end = end_of_entry(self.entries, end)
            if number % most == 0 or number == self.count:
                count = (number - 1) % most + 1
                yield FramesPage(self.entries[begin:end], count, position)
                begin = end


NOTHING: Final = Joined(b"", 0, 0, BEFORE_ALL)


@cache
def _statement(
    entry: MessageExpression, form: Form, source: _Rows, *, filtered: bool, forward: bool
) -> str:
    way = "asc" if forward else "desc"
    rows = source.value.format(
        beyond=">" if forward else "<",
        until="<=" if forward else ">=",
        way=way,
        topics=topics_clause(Topics(())) if filtered else "",
    )
    if form is Form.COUNTED:
        return joined_statement(entry, rows, forward=forward)
    template = {Form.SMALL: _SMALL, Form.STREAMED: _STREAMED, Form.APART: _APART}[form]
    return template.format(entry=entry.expression, entry_bytes=entry.size, rows=rows)


def joined_statement(entry: MessageExpression, rows: str, *, forward: bool) -> str:
    """Statement that joins the entries of ``rows``, cut to a page (parameters of `Shape`)."""
    return _JOINED.format(
        rows=rows,
        entry=entry.expression,
        entry_bytes=entry.size,
        order="" if forward else "order by n desc",
        farthest="max" if forward else "min",
        shown=SHOWN,
        way="asc" if forward else "desc",
    )


async def read_page(connection: Connection, topics: Topics, window: Window, shape: Shape) -> Joined:
    """Read one page of a selection of topics."""
    if topics.keys == () or window.low_ns > window.high_ns:
        return NOTHING
    if not shape.streamed:
        if (
            _Rows.of(topics) is _Rows.MERGED
            and (some := rows_of_each(topics, shape.read)) < shape.each
        ):
            few = replace(shape, each=some)
            page = joined(await _read(connection, topics, window, few, Form.COUNTED))
            if page.seen == shape.read:
                return page
        return joined(await _read(connection, topics, window, shape, Form.COUNTED))
    if shape.apart:
        return joined(await _read(connection, topics, window, shape, Form.APART))
    row = await _read(connection, topics, window, shape, Form.SMALL)
    if row is not None and row[2]:
        row = await _read(connection, topics, window, shape, Form.STREAMED)
    return joined(row)


def rows_of_each(topics: Topics, size: int) -> int:
    """Rows to read per topic so that even topics together give about ``size`` of them."""
    share = size // max(1, len(topics.keys or ()))
    return min(size, share + share // 2 + _FEWEST_PER_TOPIC)


async def _read(
    connection: Connection, topics: Topics, window: Window, shape: Shape, form: Form
) -> tuple[object, ...] | None:
    source = _Rows.of(topics)
    statement = _statement(
        shape.entry,
        form,
        source,
        filtered=topics.keys is not None,
        forward=window.forward,
    )
    parameters: dict[str, object] = {
        "low": window.low_ns,
        "high": window.high_ns,
        "at_ts": window.at[0],
        "at_hash": window.at[1],
        "limit": shape.read,
    }
    if form is Form.SMALL:
        parameters["most"] = shape.max_bytes // shape.read
    else:
        parameters["max_bytes"] = shape.max_bytes
    if form is Form.COUNTED:
        parameters["show"] = shape.show
    parameters |= topics_parameters(topics)
    if source is _Rows.MERGED:
        parameters["each"] = shape.each
    cursor = await connection.execute(statement, parameters, binary=True)
    return await cursor.fetchone()


def joined(row: tuple[object, ...] | None) -> Joined:
    """Read the one row of a statement of this shape."""
    if row is None or not row[1]:
        return NOTHING
    entries, count, seen, last_ts, last_hash, *positions = row
    return Joined(entries, count, seen, (last_ts, last_hash), *positions)  # type: ignore[arg-type]
