"""The two readers of a database: what one gives the other gives too, whatever the messages are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.pipeline import readers
from store.pipeline.columns import ARROW, NAMES
from store.pipeline.errors import PipelineError
from store.pipeline.readers import ADBC, AUTO, PSYCOPG, connection
from store.pipeline.reading import MESSAGES, Cut, read_slices
from store.pipeline.slices import Slice
from tests.integration.pipeline.world import NOW, TODAY, admitted, sds, write
from tests.support.postgres import PostgresServer
from tests.unit.builders import entries

EVERYTHING = [Slice(0, TODAY, 1), Slice(TODAY, 2**63 - 1, 1)]
NEWEST = Cut(2**62)


def table(url: str, reader: str, names: tuple[str, ...] = NAMES) -> pa.Table:
    schema = pa.schema([ARROW.field(name) for name in names])
    return pa.Table.from_batches(read_slices(url, EVERYTHING, NEWEST, names, reader), schema)


@pytest.mark.parametrize("names", [NAMES, ("ts", "parents"), ("payload",), ("h3", "shard")])
def test_both_readers_give_the_same(url: str, names: tuple[str, ...]) -> None:
    by_adbc = table(url, ADBC, names)
    assert by_adbc.num_rows > 1_000
    assert table(url, PSYCOPG, names).equals(by_adbc)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(entries.filter(lambda item: not item.message.ephemeral), max_size=8),
    st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8),
)
def test_both_readers_give_the_same_of_any_messages(
    new_database: Callable[[], str], items: list[object], parents: list[list[int]]
) -> None:
    database = new_database()
    made = [*items, *(sds(number, NOW - number, of) for number, of in enumerate(parents))]
    asyncio.run(write(database, [admitted(made)]))  # type: ignore[arg-type]
    by_adbc = table(database, ADBC)
    assert by_adbc.num_rows == len({bytes(each) for each in by_adbc["hash"].to_pylist()})
    assert table(database, PSYCOPG).equals(by_adbc)


def test_psycopg_serves_where_adbc_is_not_installed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = table(url, AUTO)
    monkeypatch.setattr(readers, "find_spec", lambda _name: None)
    monkeypatch.setattr(readers, "_by_adbc", None)
    assert table(url, AUTO).equals(wanted)
    with pytest.raises(PipelineError, match="needs adbc_driver_postgresql, which is not installed"):
        table(url, ADBC)


@pytest.mark.parametrize("reader", [ADBC, PSYCOPG])
def test_batches_are_small_however_many_rows_there_are(
    url: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "BATCH_BYTES", 10_000)
    statement = "select ts, payload from storenode.export_messages where length(payload) < 300"
    schema = pa.schema([MESSAGES.field(name) for name in ("ts", "payload")])
    with connection(url, reader) as opened:
        batches = list(opened.batches(statement, schema))
    assert len(batches) > 3
    assert all(batch.nbytes < 30_000 for batch in batches)


@pytest.mark.parametrize("reader", [ADBC, PSYCOPG])
def test_what_the_database_says_is_one_sentence(
    postgres: PostgresServer, url: str, reader: str
) -> None:
    with (
        pytest.raises(PipelineError, match=r"The database refused \(.*nothing.*\)"),
        connection(url, reader) as opened,
    ):
        list(opened.batches("select nothing", pa.schema([("ts", pa.int64())])))
    nowhere = f"postgresql://nobody@127.0.0.1:1/{postgres.port}"
    with pytest.raises(PipelineError) as caught, connection(nowhere, reader):
        pass
    assert (caught.value.code, "could not be reached" in caught.value.sentence) == (3, True)
