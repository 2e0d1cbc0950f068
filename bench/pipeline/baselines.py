"""What the jobs are held against: ADBC with pyarrow alone, and DuckDB with its default settings.

Every function runs in a process of its own and returns its answer, which must be that of the job,
and what it used. Libraries are imported before the clock starts, as Spark is started before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

from bench.pipeline.cpu import Used, measured
from store.pipeline.columns import NAMES
from store.pipeline.database import FOREVER
from store.pipeline.readers import ADBC
from store.pipeline.reading import Cut, read_slices
from store.pipeline.slices import Slice

MESSAGES: Final = "select ts, hash, uuid_send(topic), payload, tail from storenode.export_messages"
SDS: Final = """
select ts, hash, channel, message_id, sender, lamport, parent_ids, parent_hints
from storenode.export_sds
"""
FEW: Final = "select ts, hash, payload from storenode.export_messages"

ALL: Final = Slice(0, FOREVER, 0)
"""Everything, as one slice."""

_AS_ROWS: Final = Cut(FOREVER, start=-1)
"""What is chosen by its commit is read row by row."""

_FINGERPRINTS: Final = """
select ts - ts % 3600000000000 as start_ns, count(*), bit_xor(h0), bit_xor(h1), bit_xor(h2),
       bit_xor(h3)
from read_parquet($files) group by 1 order by 1
"""
_HASHES: Final = """
select count(*) from read_parquet($files)
where sha256(encode(pubsub_topic) || payload || encode(content_topic) || coalesce(meta, ''::blob)
             || unhex(lpad(hex(ts), 16, '0'))) <> lower(hex(hash))
"""
_MISSING: Final = """
with claims as (select channel, message_id, parents from read_parquet($files)),
     edges as (select channel, message_id, unnest(parents).id as parent from claims)
select count(*) from edges anti join claims
  on edges.channel = claims.channel and edges.parent = claims.message_id
"""
_NUMBERED: Final = """
create temp table numbered as
select row_number() over () as node, channel, message_id, parents from read_parquet($files)
"""
_EDGES: Final = """
create temp table edges as
with claimed as (
    select node as child, channel, unnest(parents).id as parent from numbered
)
select child, coalesce(numbered.node, 0) as parent
from claimed left join numbered
  on numbered.channel = claimed.channel and numbered.message_id = claimed.parent
"""
_INCOMPLETE: Final = """
with recursive incomplete(node) as (
    select distinct child from edges where parent = 0
    union
    select child from incomplete join edges on edges.parent = incomplete.node
)
select count(*) from incomplete
"""


def read_rows(url: str, *statements: str) -> tuple[int, Used]:
    """The number of rows of the first statement; all are read."""

    def work() -> int:
        counts = [_rows(url, each) for each in statements]
        return counts[0]

    return measured(work)


def read_decoded(url: str) -> tuple[int, Used]:
    """The number of rows that ADBC has read, with the columns that the pipeline makes of them."""

    def work() -> int:
        batches = read_slices(url, [ALL], _AS_ROWS, NAMES, ADBC)
        return sum(int(batch.num_rows) for batch in batches)

    return measured(work)


def write_file(url: str, path: Path) -> tuple[int, Used]:
    """The number of messages that were written to one Parquet file, compressed as the archive."""

    def work() -> int:
        rows = 0
        with (
            _reader(url, MESSAGES) as reader,
            pq.ParquetWriter(path, reader.schema, compression="zstd") as writer,
        ):
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
        return rows

    return measured(work)


def fingerprints(files: list[str]) -> tuple[list[tuple[int, ...]], Used]:
    """(start of the hour, messages, XOR as four words), ascending."""
    return measured(lambda: _asked(files, _FINGERPRINTS))


def wrong_hashes(files: list[str]) -> tuple[int, Used]:
    """The number of messages whose hash is another."""
    return measured(_number(files, _HASHES))


def missing_parents(files: list[str]) -> tuple[int, Used]:
    """The number of references to a parent that is not there."""
    return measured(_number(files, _MISSING))


def incomplete(files: list[str]) -> tuple[int, Used]:
    """The number of messages whose causal past is incomplete, by numbers instead of IDs."""

    def work() -> int:
        with duckdb.connect() as connection:
            connection.execute(_NUMBERED, {"files": files})
            connection.execute(_EDGES)
            return _one(connection.execute(_INCOMPLETE).fetchall())

    return measured(work)


@contextmanager
def _reader(url: str, statement: str) -> Iterator[pa.RecordBatchReader]:
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        yield cursor.fetch_record_batch()


def _rows(url: str, statement: str) -> int:
    with _reader(url, statement) as reader:
        return sum(int(batch.num_rows) for batch in reader)


def _number(files: list[str], statement: str) -> Callable[[], int]:
    return lambda: _one(_asked(files, statement))


def _asked(files: list[str], statement: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(statement, {"files": files}).fetchall()


def _one(rows: list[tuple[Any, ...]]) -> int:
    ((number,),) = rows
    return int(number)
