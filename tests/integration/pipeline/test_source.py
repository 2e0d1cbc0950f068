"""The data source: what Spark reads is what the database holds, up to a commit and no further."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, Row, SparkSession

from store.pipeline.source import FORMAT, shard_of
from storenode.message.hashing import message_hash
from storenode.sds.codec import decode
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    messages,
    more,
    plain,
    rows,
    stored_ids,
)

_WRAP = 1 << 64


def read(spark: SparkSession, url: str, **options: object) -> list[Row]:
    given = {name.rstrip("_"): str(value) for name, value in options.items()}
    return reader(spark, url, **given).load().collect()


def reader(spark: SparkSession, url: str, *, schema: str = "", **options: str) -> DataFrameReader:
    found = spark.read.format(FORMAT).options(**{"url": url, **options})
    return found.schema(schema) if schema else found


def expected(item: WakuMessageAndTopic) -> dict[str, Any]:
    """Return the row of a message, from the decoded message alone."""
    message = item.message
    meta = message.meta if message.HasField("meta") else None
    digest = message_hash(
        item.pubsub_topic, message.payload, message.content_topic, meta, message.timestamp
    )
    words = [int.from_bytes(digest[at : at + 8], "little", signed=True) for at in range(0, 32, 8)]
    sds = decode(message.payload)
    lamport = None if sds is None else sds.lamport
    return {
        "ts": message.timestamp,
        "hash": digest,
        **{f"h{number}": word for number, word in enumerate(words)},
        "shard": shard_of(item.pubsub_topic),
        "pubsub_topic": item.pubsub_topic,
        "content_topic": message.content_topic,
        "payload": message.payload,
        "version": message.version if message.HasField("version") else None,
        "meta": meta,
        "rate_limit_proof": (
            message.rate_limit_proof if message.HasField("rate_limit_proof") else None
        ),
        "ephemeral": message.ephemeral if message.HasField("ephemeral") else None,
        "channel": None if sds is None else sds.channel_id.decode(),
        "message_id": None if sds is None else sds.message_id.decode(),
        "sender": None if sds is None else sds.sender_id.decode(),
        "lamport": lamport - _WRAP if lamport is not None and lamport >> 63 else lamport,
        "parents": None if sds is None else [(each.decode(), hint) for each, hint in sds.parents],
    }


def plainly(row: Row) -> dict[str, Any]:
    values: dict[str, Any] = row.asDict()
    for name in ("hash", "payload", "meta", "rate_limit_proof"):
        values[name] = None if values[name] is None else bytes(values[name])
    if values["parents"] is not None:
        values["parents"] = [
            (each["id"], None if each["hint"] is None else bytes(each["hint"]))
            for each in values["parents"]
        ]
    del values["day"]
    return values


def test_every_field_of_every_message_is_read(spark: SparkSession, url: str) -> None:
    found = read(spark, url)
    assert all((row["day"].toordinal() - 719_163) == row["ts"] // DAY for row in found)
    by_hash = {each["hash"]: each for each in map(plainly, found)}
    wanted = {each["hash"]: each for each in map(expected, messages())}
    assert len(found) == len(wanted)
    assert by_hash == wanted


def test_columns_and_a_range_of_time_are_all_that_is_read(spark: SparkSession, url: str) -> None:
    low, high = TODAY - DAY + 7, NOW - HOUR
    found = read(spark, url, schema="hash binary, ts long", from_=low, to=high, connections=2)
    assert {(row["ts"], bytes(row["hash"])) for row in found} == {
        each for each in stored_ids(url) if low <= each[0] < high
    }
    assert list(found[0].asDict()) == ["hash", "ts"]
    for nothing in ({"from_": NOW + DAY}, {"from_": NOW, "to": NOW}, {"from_": NOW, "to": 0}):
        assert read(spark, url, schema="ts long", **nothing) == []


def test_what_is_committed_behind_the_position_is_not_read(spark: SparkSession, url: str) -> None:
    before = stored_ids(url)
    ((position,),) = rows(url, "select max(position) from storenode.commits")
    more(url, plain(90_001, NOW - 5), plain(90_002, TODAY - DAY + 1))
    cut = read(spark, url, schema="ts long, hash binary", position=position)
    assert {(row["ts"], bytes(row["hash"])) for row in cut} == before
    assert len(read(spark, url, schema="ts long")) == len(before) + 2


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"schema": "ts long, colour string"}, "colour"),
        ({"url": "postgresql://nobody@127.0.0.1:1/nothing"}, "could not be reached"),
        ({"from_": "yesterday"}, "yesterday"),
    ],
)
def test_a_wrong_option_is_named(
    spark: SparkSession, url: str, options: dict[str, str], reported: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, **{"url": url, **options})
    assert reported in str(caught.value)
