"""The rows that the source gives, as a table of Postgres: what ADBC takes for the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import pyarrow as pa
from adbc_driver_postgresql import dbapi

from bench.pipeline.baselines import ALL
from bench.pipeline.cpu import apart
from store.pipeline.columns import ARROW, NAMES
from store.pipeline.database import FOREVER
from store.pipeline.reading import Cut, read_slices

SAME_ROWS: Final = "select * from public.bench_rows"

_PARENTS: Final = "parents"
"""Read of Postgres as a column of IDs and one of hints."""

_JOIN: Final = """
create table public.bench_rows as
select rows.*, sds.parent_ids, sds.parent_hints
from public.bench_columns as rows left join storenode.export_sds as sds using (ts, hash)
order by ts, hash
"""


@contextmanager
def as_table(url: str) -> Iterator[None]:
    """Have the rows in the table of `SAME_ROWS`, and drop it."""
    try:
        apart(_copy, url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_JOIN)
            connection.execute("vacuum (analyze) public.bench_rows")
            connection.execute("checkpoint")
        yield
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("drop table if exists public.bench_columns, public.bench_rows")


def _copy(url: str) -> None:
    names = tuple(name for name in NAMES if name != _PARENTS)
    schema = pa.schema([ARROW.field(name) for name in names])
    batches = read_slices(url, [ALL], Cut(FOREVER), names)
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("bench_columns", reader, db_schema_name="public")
