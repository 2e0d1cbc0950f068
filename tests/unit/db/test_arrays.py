"""Columns as binary arrays, which are sent to Postgres and read again, and rows for COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection

from store.db.arrays import (
    BinaryArray,
    bigints,
    fixed_bytes,
    hash_column,
    split_uuids,
    texts,
    uuids,
    varied_bytes,
)
from store.db.connection import Connection, prepare
from tests.support.postgres import PostgresServer

ask = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])

INT64: Final = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.lists(INT64, max_size=50)
HASHES = st.lists(st.binary(min_size=32, max_size=32), max_size=50)
KEYS = st.lists(st.binary(min_size=16, max_size=16), max_size=50)
TEXTS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=50)
BYTES = st.lists(st.binary(max_size=300), max_size=50)


@pytest.fixture
async def connection(postgres: PostgresServer) -> AsyncIterator[Connection]:
    opened: Connection = await AsyncConnection.connect(postgres.admin_url)
    async with opened:
        await prepare(opened)
        yield opened


async def taken(connection: Connection, kind: str, array: BinaryArray) -> object:
    """Return what Postgres reads from an array; its elements one by one, in order."""
    cursor = await connection.execute(
        f"select element, pg_typeof(element)::text from unnest(%(array)b::{kind}[])"
        " with ordinality as each(element, place) order by place",
        {"array": array},
        binary=True,
    )
    rows = await cursor.fetchall()
    assert {row[1] for row in rows} <= {kind}
    return [row[0] for row in rows]


def laid_out_hashes(values: list[bytes]) -> BinaryArray:
    return hash_column(np.frombuffer(b"".join(values), np.uint8).reshape(-1, 32))


COLUMNS = st.one_of(
    st.tuples(st.just("bigint"), st.just(bigints), NUMBERS),
    st.tuples(st.just("text"), st.just(texts), TEXTS),
    st.tuples(st.just("bytea"), st.just(lambda values: fixed_bytes(values, 32)), HASHES),
    st.tuples(st.just("bytea"), st.just(laid_out_hashes), HASHES),
    st.tuples(st.just("bytea"), st.just(varied_bytes), BYTES),
    st.tuples(st.just("uuid"), st.just(uuids), KEYS),
)


@settings(ask, max_examples=120)
@given(column=COLUMNS)
async def test_a_column_arrives_as_it_was(
    connection: Connection, column: tuple[str, Callable[[Sequence[Any]], BinaryArray], list[Any]]
) -> None:
    kind, lay_out, values = column
    assert await taken(connection, kind, lay_out(values)) == values


@ask
@given(values=KEYS)
async def test_keys_come_back_whole(connection: Connection, values: list[bytes]) -> None:
    keys = uuids(values)
    cursor = await connection.execute(
        "select %b::uuid[], (%b::uuid[])[1]", (keys, keys), binary=True
    )
    [(encoded, first)] = await cursor.fetchall()
    assert isinstance(encoded, bytes)
    assert split_uuids(encoded) == values
    assert first == (values[0] if values else None)


@pytest.mark.parametrize("wrong", [[b"x" * 31], [b"x" * 32, b"x" * 33], [b"", b"x" * 32]])
async def test_a_byte_string_of_another_size_is_refused(
    connection: Connection, wrong: list[bytes]
) -> None:
    with pytest.raises(psycopg.DataError):
        await taken(connection, "bytea", fixed_bytes(wrong, 32))
