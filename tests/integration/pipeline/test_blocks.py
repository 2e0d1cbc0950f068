"""Messages read in blocks are those of the database, whatever is large, alike, late or dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.pipeline import blocks
from store.pipeline.blocks import MAX_VALUE_BYTES, Messages, Place
from store.pipeline.errors import PipelineError
from store.pipeline.readers import ADBC, AUTO, PSYCOPG, _Psycopg, connection
from store.pipeline.reading import MESSAGES, Cut, read_slices
from store.pipeline.slices import Slice
from tests.integration.pipeline.world import (
    DAY,
    NOW,
    TODAY,
    admitted,
    held,
    more,
    plain,
    rows,
    when,
    write,
)
from tests.support.postgres import PostgresServer
from tests.unit.builders import entry

SIZES = (0, 1, 300, MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1, 90_000)
TIMES = [NOW - 7, NOW - 7, NOW - 7, *range(NOW - 6, NOW)]
EVERYTHING = [Slice(0, 2**63 - 1, 1)]
NEWEST = Cut(2**62)


@pytest.fixture(scope="module")
def mixed(postgres: PostgresServer, template_database: str) -> Iterator[str]:
    """A database whose payloads are of all sizes, several at a time."""
    name = postgres.create_database(template_database)
    url = postgres.url(name)
    made = [
        entry(bytes([number]) * SIZES[number % len(SIZES)], timestamp=TIMES[number % len(TIMES)])
        for number in range(60)
    ]
    made += [entry(b"x", timestamp=NOW, meta=b"m" * 64, proof=b"p" * 3_000)]
    asyncio.run(write(url, [admitted(made)]))
    yield url
    postgres.drop_database(name)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    block_rows=st.integers(1, 70),
    rows_instead=st.integers(1, 70),
    low=st.integers(NOW - 9, NOW + 1),
    high=st.integers(NOW - 9, NOW + 2),
    names=st.sampled_from([MESSAGES.names, ["ts", "hash"], ["ts", "hash", "payload"]]),
    reader=st.sampled_from([ADBC, PSYCOPG]),
)
def test_blocks_are_the_rows_in_their_order(
    mixed: str,
    *,
    block_rows: int,
    rows_instead: int,
    low: int,
    high: int,
    names: list[str],
    reader: str,
) -> None:
    schema = pa.schema([MESSAGES.field(name) for name in names])
    with pytest.MonkeyPatch.context() as patched, connection(mixed, reader) as opened:
        patched.setattr(blocks, "BLOCK_ROWS", block_rows)
        patched.setattr(blocks, "ROWS_INSTEAD", rows_instead)
        found = list(Messages(opened, schema).in_blocks(Place(low), high))
    assert all(map(len, found))
    columns = ", ".join(names).replace("topic", "uuid_send(topic)")
    wanted = rows(
        mixed,
        f"select {columns} from storenode.messages where ts >= %s and ts < %s order by ts, hash",
        low,
        high,
    )
    assert [tuple(row.values()) for batch in found for row in batch.to_pylist()] == wanted


@pytest.mark.parametrize("reader", [ADBC, PSYCOPG])
@pytest.mark.parametrize(
    "setting",
    [
        "standard_conforming_strings=off",
        "bytea_output=escape",
        "idle_in_transaction_session_timeout=1",
        "default_transaction_isolation=serializable",
    ],
)
def test_settings_of_the_server_do_not_matter(
    mixed: str, setting: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 3)
    monkeypatch.setattr(blocks, "ROWS_INSTEAD", 3)
    url = f"{mixed}?options=-c%20{quote(setting)}"
    found = read_slices(url, [Slice(min(TIMES), NOW + 1, 1)], NEWEST, ("ts", "hash"), reader)
    read = [(row["ts"], row["hash"]) for batch in found for row in batch.to_pylist()]
    assert read == sorted(held(mixed))


def test_a_block_is_found_by_the_index_where_there_are_no_statistics(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database()
    asyncio.run(write(url, [admitted([plain(number, NOW - number) for number in range(3_000)])]))
    plans: list[str] = []

    def explained(self: object, statement: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        cursor = self._held.execute(f"explain {statement}".encode())  # type: ignore[attr-defined]
        plans.append("\n".join(row[0] for row in cursor))
        return batches(self, statement, schema)  # type: ignore[arg-type]

    batches = _Psycopg.batches
    monkeypatch.setattr(_Psycopg, "batches", explained)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 1_000)
    assert sum(map(len, read_slices(url, EVERYTHING, NEWEST, ("ts", "payload"), PSYCOPG))) == 3_000
    of_blocks = [plan for plan in plans if "Aggregate" in plan]
    assert len(of_blocks) >= 3
    assert not [plan for plan in of_blocks if "Sort" in plan]


def test_small_payloads_come_in_blocks_and_large_ones_as_rows(
    mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 2)
    monkeypatch.setattr(blocks, "ROWS_INSTEAD", 5)
    with connection(mixed) as opened:
        lengths = [len(batch) for batch in Messages(opened, MESSAGES).in_blocks(Place(0), NOW + 1)]
    assert set(lengths) >= {2, 5}
    assert sum(lengths) == len(held(mixed))


def reading(url: str, patched: pytest.MonkeyPatch, reader: str = AUTO) -> Iterator[pa.RecordBatch]:
    """A slice that has been read in part."""
    patched.setattr(blocks, "BLOCK_ROWS", 10)
    found = read_slices(url, EVERYTHING, NEWEST, ("ts", "hash"), reader)
    assert len(next(found)) == 10
    return found


def ids(batches: Iterator[pa.RecordBatch]) -> set[tuple[int, bytes]]:
    return {(row["ts"], row["hash"]) for batch in batches for row in batch.to_pylist()}


def test_what_is_committed_meanwhile_is_not_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = held(url)
    found = reading(url, monkeypatch)
    more(url, *(plain(90_000 + number, when(number) + 1) for number in range(0, 1_000, 50)))
    assert ids(found) == {each for each in before if each > sorted(before)[9]}


def test_a_partition_is_not_dropped_between_two_blocks(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held(url)
    found = reading(url, monkeypatch)
    ((partition,),) = rows(
        url,
        "select tableoid::regclass::text from storenode.messages where ts >= %s limit 1",
        TODAY - DAY,
    )
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("set lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(f"drop table {partition}".encode())
    assert len(ids(found)) == len(before) - 10
    rows(url, f"drop table {partition}")
    assert len(held(url)) < len(before)


@pytest.mark.parametrize("reader", [ADBC, PSYCOPG])
def test_a_server_that_ends_meanwhile_is_told(
    url: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reading(url, monkeypatch, reader)
    rows(
        url,
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and state = 'idle in transaction'",
    )
    with pytest.raises(PipelineError, match=r"The database refused \(.*terminat"):
        list(found)
