"""The Spark data source `storenode`: the messages of a store node's database.

Options of a read: ``url`` of the database; ``from`` and ``to`` in nanoseconds, the end exclusive;
``position``, the commit up to which messages are read (default: the newest); ``hours``, a list with
commas of the starts of hours, of which alone messages are read; ``connections``, how many tasks may
read at a time. A schema that is given selects columns.

Workers read by ADBC, in one statement per slice of time, which sees one snapshot. Messages that
were committed after the position are excluded by their batch. Most messages have no optional
fields: then their stored tail has exactly the length that its topics and its timestamp take, is not
sent, and nothing has to be decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement, Error
from adbc_driver_postgresql import StatementOptions, connect
from google.protobuf.message import DecodeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from store.pipeline.columns import (
    CONTENT_DIGEST,
    HASH_WORDS,
    PARENT,
    READABLE,
    SDS_COLUMNS,
    TAIL_COLUMNS,
    spark_schema,
)
from store.pipeline.database import FOREVER, Range, connected, read_state
from store.pipeline.errors import UNREACHABLE, USAGE, PipelineError
from store.pipeline.fingerprints import Fingerprints
from store.pipeline.limits import (
    DAY_NS,
    HOUR_NS,
    MAX_CONNECTIONS,
    MAX_SLICE_ROWS,
    MAX_STEP_MESSAGES,
    MIN_SLICE_ROWS,
    MIN_STEP_MESSAGES,
    SHARD_PARTITIONS,
    STEP_SHARE,
)
from storenode.message.limits import HASH_BYTES
from storenode.message.topics import parse_shard
from storenode.message.varint import delimited
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

T = TypeVar("T")


class Slice(NamedTuple):
    """A range with about ``rows`` messages, from ``low_ns`` to ``high_ns``, which is excluded."""

    low_ns: int
    high_ns: int
    rows: int


def plan_slices(hours: Fingerprints, within: Range, tasks: int) -> list[list[Slice]]:
    """Return the slices of at most ``tasks`` tasks: the messages of hours ``within`` a range.

    They ascend, and tasks have about the same number of messages. An hour that has more than fit in
    a slice is cut by time.
    """
    total = sum(each.messages for each in hours.values())
    most = min(MAX_SLICE_ROWS, max(MIN_SLICE_ROWS, -(-total // tasks)))
    pieces: list[Slice] = []
    for start, each in sorted(hours.items()):
        parts = max(1, each.messages // most)
        for low, high in pairwise(start + HOUR_NS * part // parts for part in range(parts + 1)):
            low_ns, high_ns = max(low, within[0]), min(high, within[1])
            if low_ns < high_ns:
                pieces.append(Slice(low_ns, high_ns, each.messages // parts))
    share = max(1, -(-sum(each.rows for each in pieces) // tasks))
    return in_shares(pieces, lambda each: each.rows, share)


def in_steps(stored: Fingerprints) -> list[Fingerprints]:
    """Group hours in the order of time to those that are published in one commit."""
    total = sum(each.messages for each in stored.values())
    share = min(MAX_STEP_MESSAGES, max(MIN_STEP_MESSAGES, -(-total // STEP_SHARE)))
    steps = in_shares(sorted(stored), lambda hour: stored[hour].messages, share)
    return [{hour: stored[hour] for hour in hours} for hours in steps]


def in_shares(items: Sequence[T], rows_of: Callable[[T], int], share: int) -> list[list[T]]:
    """Group neighbouring items, with about ``share`` rows in each group and no group empty.

    An item belongs to the group that its middle falls into, so no group is far from its share
    unless one of its items is. There are at most as many groups as shares in all.
    """
    groups: dict[int, list[T]] = {}
    before = 0
    for each in items:
        rows = rows_of(each)
        groups.setdefault(max(0, 2 * before + rows - 1) // (2 * share), []).append(each)
        before += rows
    return list(groups.values())


NO_SHARD: Final = -1
BATCH_BYTES: Final = 4 * 1024 * 1024
"""The driver puts about this many bytes of rows into one batch."""

_TAIL: Final = """
case when m.ts between (1::bigint << 55) and (1::bigint << 62) - 1 and octet_length(m.tail)
     = 14 + octet_length(m.pubsub_topic) + (octet_length(m.pubsub_topic) > 127)::int
     + octet_length(m.content_topic) + (octet_length(m.content_topic) > 127)::int
then null else m.tail end as tail"""
_SDS: Final = """
 left join storenode.export_sds s on s.ts = m.ts and s.hash = m.hash
 and s.ts >= {low} and s.ts < {high}"""
_MESSAGES: Final = """
select {columns} from storenode.export_messages m{joins}
where m.ts >= {low} and m.ts < {high}
 and m.batch not in (select batch from storenode.export_commits where position > {position})"""
_SDS_READ: Final = ("channel", "message_id", "sender", "lamport", "parent_ids", "parent_hints")


def shard_of(pubsub_topic: str) -> int:
    """Return the number of the directory that keeps a topic's messages.

    It is the shard of a topic with static sharding (WAKU2-RELAY-SHARDING) modulo
    `SHARD_PARTITIONS`, and `NO_SHARD` for any other topic.
    """
    shard = parse_shard(pubsub_topic)
    return NO_SHARD if shard is None else shard[1] % SHARD_PARTITIONS


def read_slices(
    url: str, slices: list[Slice], position: int, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Read some columns of the messages of some slices, committed up to a position."""
    if not slices:
        return
    with _connection(url) as connection:
        for each in slices:
            for batch in _batches(connection, _statement(each, position, names)):
                yield _decoded(batch, names)


def _statement(each: Slice, position: int, names: tuple[str, ...]) -> str:
    wanted = {*names}
    bounds = {"low": each.low_ns, "high": each.high_ns}
    columns, joins = ["m.ts", "m.hash"], ""
    columns += [f"m.{name}" for name in ("payload", CONTENT_DIGEST) if name in wanted]
    if wanted & ({"shard", "pubsub_topic", "content_topic"} | TAIL_COLUMNS):
        columns += ["m.pubsub_topic", "m.content_topic"]
    if wanted & TAIL_COLUMNS:
        columns.append(_TAIL)
    if wanted & SDS_COLUMNS:
        columns += [f"s.{name}" for name in _SDS_READ]
        joins = _SDS.format(**bounds)
    return _MESSAGES.format(columns=", ".join(columns), joins=joins, position=position, **bounds)


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
        with _running(opened, "set jit = off") as statement:
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
    found: dict[str, pa.Array] = {name: rows[name] for name in given & set(READABLE.names)}
    if "day" in wanted:
        days = rows["ts"].to_numpy(zero_copy_only=False) // DAY_NS
        found["day"] = pa.array(days.astype(np.int32)).view(pa.date32())
    if wanted.intersection(HASH_WORDS):
        joined = b"".join(rows["hash"].to_pylist())
        if len(joined) != HASH_BYTES * len(rows):
            raise _damaged(rows, 0)
        words = np.frombuffer(joined, "<i8").reshape(-1, len(HASH_WORDS))
        found |= {
            name: pa.array(words[:, int(name[1])]) for name in wanted.intersection(HASH_WORDS)
        }
    if "pubsub_topic" in given and rows["pubsub_topic"].null_count:
        raise _damaged(rows, rows["pubsub_topic"].is_null().index(True).as_py())
    if "shard" in wanted:
        topics = rows["pubsub_topic"].dictionary_encode()
        shards = pa.array(map(shard_of, topics.dictionary.to_pylist()), pa.int32())
        found["shard"] = shards.take(topics.indices)
    if wanted & TAIL_COLUMNS:
        found |= _optional_fields(rows)
    if "parents" in wanted:
        found["parents"] = _parents(rows)
    columns = [found[name].cast(READABLE.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(map(READABLE.field, names)))


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
    return {name: pa.array(column, READABLE.field(name).type) for name, column in values.items()}


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


FORMAT: Final = "storenode"


class StorenodeSource(DataSource):
    """The data source `storenode`."""

    @classmethod
    def name(cls) -> str:
        """Return what `spark.read.format` is given."""
        return FORMAT

    def schema(self) -> StructType:
        """Return all columns, for reads without a schema."""
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a range of time; ``schema`` may have some of the columns."""
        return StorenodeReader(self.options, schema)


class StorenodeReader(DataSourceReader):
    """A reader of a range of time, which plans slices of it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if "url" not in options:
            raise PipelineError(
                "The data source storenode needs the option `url` of a database; an archive is read"
                " as a Delta table.",
                USAGE,
            )
        self._url = options["url"]
        hours = options.get("hours")
        self._hours = None if hours is None else sorted(int(at) for at in hours.split(",") if at)
        self._schema = pa.schema(
            READABLE.field(each.name).with_nullable(each.nullable) for each in schema
        )
        self._low_ns = int(options.get("from", 0))
        self._high_ns = int(options.get("to", FOREVER))
        self._position = int(options.get("position", -1))
        self._connections = int(options.get("connections", MAX_CONNECTIONS))

    def partitions(self) -> Sequence[InputPartition]:
        """Plan at most as many tasks as there may be connections."""
        within = low_ns, high_ns = self._low_ns, self._high_ns
        if self._hours:
            low_ns, high_ns = max(low_ns, self._hours[0]), min(high_ns, self._hours[-1] + HOUR_NS)
        with connected(self._url) as connection:
            state = read_state(connection, low_ns // HOUR_NS * HOUR_NS, high_ns)
        hours = state.hours
        if self._hours is not None:
            hours = {hour: hours[hour] for hour in self._hours if hour in hours}
        # Without any partition Spark has one of its own read.
        groups = plan_slices(hours, within, self._connections) or [[]]
        position = state.position if self._position < 0 else self._position
        return [InputPartition((group, position)) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition, with the nullability that Spark was given."""
        slices, position = partition.value
        found = read_slices(self._url, slices, position, tuple(self._schema.names))
        return (pa.RecordBatch.from_arrays(each.columns, schema=self._schema) for each in found)


def read_database(
    session: SparkSession,
    url: str,
    names: Sequence[str],
    *,
    position: int,
    within: Range,
    hours: Iterable[int],
    connections: int,
) -> DataFrame:
    """Return some columns of the messages of some hours ``within`` a range, up to a commit."""
    options = {"url": url, "position": str(position)}
    options |= {"from": str(within[0]), "to": str(within[1]), "connections": str(connections)}
    options["hours"] = ",".join(map(str, hours))
    return session.read.format(FORMAT).options(**options).schema(spark_schema(names)).load()
