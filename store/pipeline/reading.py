"""Messages of a database as Arrow batches, read by ADBC in one statement per slice of time.

A statement sees one snapshot. Messages that were committed after the wanted position are excluded
by their batch. Most messages have no optional fields: then their stored tail has exactly the length
that its topics and its timestamp take, is not sent, and nothing has to be decoded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement, Error
from adbc_driver_postgresql import StatementOptions, connect
from google.protobuf.message import DecodeError

from store.pipeline.columns import (
    COMMIT_COLUMNS,
    HASH_WORDS,
    PARENT,
    SDS_COLUMNS,
    SOURCE,
    TAIL_COLUMNS,
)
from store.pipeline.errors import UNREACHABLE, PipelineError
from store.pipeline.limits import DAY_NS, SHARD_PARTITIONS
from store.pipeline.slices import Slice
from storenode.message.limits import HASH_BYTES
from storenode.message.topics import parse_shard
from storenode.message.varint import delimited
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

NO_SHARD: Final = -1
BATCH_BYTES: Final = 4 * 1024 * 1024
"""The driver puts about this many bytes of rows into one batch."""

_SETTINGS: Final = (
    "set jit = off",
    # A worker whose machine is gone must not hold its snapshot and its locks for longer.
    "set idle_in_transaction_session_timeout = '15min'",
)
_UP_TO: Final = """
 and m.batch not in (select batch from storenode.export_commits where position > {position})"""
_BETWEEN: Final = """
 and m.batch in (select batch from storenode.export_commits
                 where position > {start} and position <= {position})"""
_TAIL: Final = """
case when m.ts between (1::bigint << 55) and (1::bigint << 62) - 1 and octet_length(m.tail)
     = 14 + octet_length(t.pubsub_topic) + (octet_length(t.pubsub_topic) > 127)::int
     + octet_length(t.content_topic) + (octet_length(t.content_topic) > 127)::int
then null else m.tail end as tail"""
_TOPICS: Final = """
 left join (select distinct on (key) key, pubsub_topic, content_topic from storenode.topics) t
 on t.key = m.topic"""
_SDS: Final = """
 left join storenode.export_sds s on s.ts = m.ts and s.hash = m.hash
 and s.ts >= {low} and s.ts < {high}"""
_COMMITS: Final = """
 left join (
   select batch, min_ts, max_ts, source,
          (extract(epoch from committed_at) * 1000000000)::bigint as committed_ns
   from storenode.export_commits
 ) c on c.batch = m.batch and c.max_ts >= {low} and c.min_ts < {high}"""
_MESSAGES: Final = """
select {columns} from storenode.export_messages m{joins}
where m.ts >= {low} and m.ts < {high}{condition}"""
EQUAL_COLUMNS: Final[Mapping[str, str]] = {
    "pubsub_topic": "t.pubsub_topic = convert_from({digits}, 'UTF8')",
    "content_topic": "t.content_topic = convert_from({digits}, 'UTF8')",
    "channel": "s.channel = {digits}",
}
"""Columns that the database can compare, and the conditions; text is sent as its bytes."""

_SDS_READ: Final = ("channel", "message_id", "sender", "lamport", "parent_ids", "parent_hints")


@dataclass(frozen=True, slots=True)
class Cut:
    """The commits whose messages are read: after ``start`` (None: from the first) to ``position``.

    ``position`` is included, ``start`` is not.
    """

    position: int
    start: int | None = None

    @property
    def condition(self) -> str:
        """The same as a condition of SQL."""
        if self.start is None:
            return _UP_TO.format(position=self.position)
        return _BETWEEN.format(start=self.start, position=self.position)


def shard_of(pubsub_topic: str) -> int:
    """Return the number of the directory that keeps a topic's messages.

    It is the shard of a topic with static sharding (WAKU2-RELAY-SHARDING) modulo
    `SHARD_PARTITIONS`, and `NO_SHARD` for any other topic.
    """
    shard = parse_shard(pubsub_topic)
    return NO_SHARD if shard is None else shard[1] % SHARD_PARTITIONS


def read_slices(
    url: str,
    slices: list[Slice],
    cut: Cut,
    names: tuple[str, ...],
    equal: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """Read some columns of the messages of some slices, one slice after the other.

    ``equal`` maps columns of `EQUAL_COLUMNS` to the value that they must have.

    Raises:
        PipelineError: the database cannot be reached, refuses, or holds what cannot be decoded.
    """
    if not slices:
        return
    with _connection(url) as connection:
        for each in slices:
            for batch in _batches(connection, _statement(each, cut, names, equal)):
                yield _decoded(batch, names)


def _statement(
    each: Slice, cut: Cut, names: tuple[str, ...], equal: Mapping[str, str] = MappingProxyType({})
) -> str:
    wanted = {*names, *equal}
    columns, joins = ["m.ts", "m.hash"], ""
    if "payload" in wanted:
        columns.append("m.payload")
    if wanted & ({"shard", "pubsub_topic", "content_topic"} | TAIL_COLUMNS):
        columns += ["t.pubsub_topic", "t.content_topic"]
        joins += _TOPICS
    if wanted & TAIL_COLUMNS:
        columns.append(_TAIL)
    if wanted & SDS_COLUMNS:
        columns += [f"s.{name}" for name in _SDS_READ]
        joins += _SDS.format(low=each.low_ns, high=each.high_ns)
    if wanted & COMMIT_COLUMNS:
        columns += ["c.committed_ns", "c.source"]
        joins += _COMMITS.format(low=each.low_ns, high=each.high_ns)
    return _MESSAGES.format(
        columns=", ".join(columns),
        joins=joins,
        low=each.low_ns,
        high=each.high_ns,
        condition=cut.condition + "".join(itertools.starmap(_is_equal, equal.items())),
    )


def _is_equal(name: str, text: str) -> str:
    digits = f"decode('{text.encode().hex()}', 'hex')"
    return f" and {EQUAL_COLUMNS[name].format(digits=digits)}"


@lru_cache(maxsize=2)
def _database(url: str) -> AdbcDatabase:
    """Open a database; the driver reads the server's types once for all tasks of a worker."""
    opened: AdbcDatabase = connect(url)
    return opened


@contextmanager
def _connection(url: str) -> Iterator[AdbcConnection]:
    try:
        opened = AdbcConnection(_database(url))
    except Error as error:
        raise PipelineError(
            f"The database could not be reached ({_first_line(error)}): check that Postgres runs,"
            " and the URL.",
            UNREACHABLE,
        ) from error
    with opened:
        for setting in _SETTINGS:
            with _running(opened, setting) as statement:
                statement.execute_update()
        yield opened


@contextmanager
def _running(connection: AdbcConnection, text: str) -> Iterator[AdbcStatement]:
    try:
        with AdbcStatement(connection) as statement:
            statement.set_sql_query(text)
            yield statement
    except (Error, pa.ArrowException, OSError) as error:
        raise PipelineError(f"The database refused ({_first_line(error)}).") from error


def _batches(connection: AdbcConnection, text: str) -> Iterator[pa.RecordBatch]:
    with _running(connection, text) as statement:
        statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)})
        answer, _ = statement.execute_query()
        for batch in pa.RecordBatchReader.from_stream(answer):
            if batch.num_rows:
                yield batch


def _first_line(error: Exception) -> str:
    lines = str(error).split("[libpq] ", 1)[-1].splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _decoded(rows: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the wanted columns of rows that `_statement` reads."""
    wanted, given = set(names), set(rows.schema.names)
    found: dict[str, pa.Array] = {name: rows[name] for name in given & set(SOURCE.names)}
    if "day" in wanted:
        days = rows["ts"].to_numpy(zero_copy_only=False) // DAY_NS
        found["day"] = pa.array(days.astype(np.int32)).view(pa.date32())
    if wanted & HASH_WORDS:
        joined = b"".join(rows["hash"].to_pylist())
        if len(joined) != HASH_BYTES * len(rows):
            raise _damaged(rows, 0)
        words = np.frombuffer(joined, "<i8").reshape(-1, len(HASH_WORDS))
        found |= {name: pa.array(words[:, int(name[1])]) for name in wanted & HASH_WORDS}
    if "pubsub_topic" in given and rows["pubsub_topic"].null_count:
        raise _damaged(rows, rows["pubsub_topic"].is_null().index(True).as_py())
    if "shard" in wanted:
        topics = rows["pubsub_topic"].dictionary_encode()
        shards = pa.array(map(shard_of, topics.dictionary.to_pylist()), pa.int32())
        found["shard"] = shards.take(topics.indices)
    if "timestamp" in wanted:
        found["timestamp"] = pc.divide(rows["ts"], 1_000)
    if wanted & TAIL_COLUMNS:
        found |= _optional_fields(rows)
    if "parents" in wanted:
        found["parents"] = _parents(rows)
    columns = [found[name].cast(SOURCE.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(map(SOURCE.field, names)))


def _optional_fields(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Decode the fields that few messages have from the tails that were sent."""
    values: dict[str, list[Any]] = {name: [None] * len(rows) for name in TAIL_COLUMNS}
    places = np.flatnonzero(rows["tail"].is_valid().to_numpy(zero_copy_only=False)).tolist()
    few = rows.select(["tail", "pubsub_topic"]).take(pa.array(places, pa.int64()))
    for place, row in zip(places, few.to_pylist(), strict=True):
        end = delimited(b"\x1a", row["pubsub_topic"].encode())
        try:
            message = WakuMessage.FromString(row["tail"].removesuffix(end))
        except DecodeError as error:
            raise _damaged(rows, place) from error
        if not row["tail"].endswith(end) or not message.HasField("timestamp"):
            raise _damaged(rows, place)
        for field, value in message.ListFields():
            if field.name in values:
                values[field.name][place] = value
    return {name: pa.array(column, SOURCE.field(name).type) for name, column in values.items()}


def _parents(rows: pa.RecordBatch) -> pa.Array:
    """Join the IDs and hints of parents to a list of pairs; null for messages without SDS."""
    ids, hints = rows["parent_ids"], rows["parent_hints"]
    lengths = ids.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    fields = [ids.flatten().cast(pa.string()), hints.flatten().cast(pa.binary())]
    pairs = pa.StructArray.from_arrays(fields, fields=list(PARENT))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, mask=ids.is_null())


def _damaged(rows: pa.RecordBatch, place: int) -> PipelineError:
    return PipelineError(
        "The database holds messages that are not what a node stores, the first with the timestamp"
        f" {rows['ts'][place].as_py()}: `storenode db check` says what is wrong."
    )
