"""The data source: what Spark reads is what the database holds, up to a commit and no further."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from datetime import UTC, date, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, IsNotNull, LessThan
from pyspark.sql.types import StringType, StructField, StructType

from store.pipeline import archive_source, listing
from store.pipeline.archive_source import ArchiveReader, FilesPartition
from store.pipeline.decode import shard_of
from store.pipeline.errors import of_spark
from store.pipeline.files import batches_of
from store.pipeline.jobs.archive import Archiving, archive
from store.pipeline.jobs.verify import Verifying, verify
from store.pipeline.lake import Lake
from store.pipeline.source import FORMAT, Options, StorenodeSource
from storenode.message.hashing import message_hash
from storenode.sds.codec import decode
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    held,
    messages,
    more,
    plain,
    rows,
)

_WRAP = 1 << 64


def read(spark: SparkSession, url: str, **options: object) -> list[Row]:
    given = {name.rstrip("_"): str(value) for name, value in options.items()}
    return spark.read.format(FORMAT).options(url=url, **given).load().collect()


def expected(item: WakuMessageAndTopic) -> dict[str, Any]:
    """The row of a message, from the decoded message alone."""
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
    del values["day"], values["timestamp"]
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
    found = read(spark, url, columns="hash, ts", from_=low, to=high, connections=2)
    assert {(row["ts"], bytes(row["hash"])) for row in found} == {
        each for each in held(url) if low <= each[0] < high
    }
    assert list(found[0].asDict()) == ["hash", "ts"]
    assert read(spark, url, columns="ts", from_=NOW + DAY) == []


def test_a_range_of_no_time_holds_nothing(spark: SparkSession, url: str) -> None:
    assert read(spark, url, from_=NOW, to=NOW, columns="ts") == []
    assert read(spark, url, from_=NOW, to=0, columns="ts") == []


def test_what_is_committed_behind_the_position_is_not_read(spark: SparkSession, url: str) -> None:
    before = held(url)
    ((position,),) = rows(url, "select max(position) from storenode.commits")
    more(url, plain(90_001, NOW - 5), plain(90_002, TODAY - DAY + 1))
    cut = read(spark, url, columns="ts,hash", position=position)
    assert {(row["ts"], bytes(row["hash"])) for row in cut} == before
    assert len(read(spark, url, columns="ts")) == len(before) + 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"columns": "ts,colour"}, "no column 'colour'"),
        ({"color": "red"}, "no option 'color'"),
        ({"from_": "yesterday"}, "`from` must be a whole number"),
        ({"slices": "[1]"}, "`slices` cannot be read"),
    ],
)
def test_a_wrong_option_is_named(
    spark: SparkSession, url: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, url, **options)
    assert told in of_spark(caught.value).sentence


def test_a_frame_that_is_damaged_is_named(spark: SparkSession, url: str) -> None:
    rows(url, "update storenode.messages set tail = substr(tail, 1, 5) where ts = 1")
    with pytest.raises(PySparkException) as caught:
        read(spark, url)
    sentence = of_spark(caught.value).sentence
    assert "the first with the timestamp 1:" in sentence
    assert "storenode db check" in sentence


def test_a_database_that_is_not_there_is_told(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, "postgresql://nobody@127.0.0.1:1/nothing")
    error = of_spark(caught.value)
    assert (error.code, "could not be reached" in error.sentence) == (3, True)


def test_an_overwrite_is_refused(spark: SparkSession, url: str) -> None:
    found = spark.read.format(FORMAT).options(url=url).load()
    with pytest.raises(PySparkException) as caught:
        found.write.format(FORMAT).mode("overwrite").options(url=url).save()
    assert "only added to" in of_spark(caught.value).sentence


PREDICATES = (
    "channel = 'history'",
    "channel = 'history' and sender is not null and lamport > 20",
    "channel in ('history', 'none', null)",
    "channel is null and shard = 3",
    "message_id like 'id-1%'",
    f"ts >= {TODAY - DAY} and ts < {TODAY}",
    f"ts > {NOW - HOUR} or ts = 1",
    "day = date'1970-01-01'",
    f"timestamp <= timestamp'{datetime.fromtimestamp((TODAY - DAY) // 10**9, UTC)}'",
    f"timestamp > timestamp'{datetime.fromtimestamp((TODAY - DAY) // 10**9, UTC)}'",
    "pubsub_topic = 'named' and ephemeral is null",
    "content_topic like '/ж/%'",
    "hash = X'{hash}'",
    "hash <> X'{hash}' and version = 4294967295",
    "ts = 9223372036854775807",
)


def test_conditions_are_judged_where_messages_are_read(
    spark: SparkSession, url: str, archived: Path
) -> None:
    places = {"path": str(archived)}, {"url": url}
    sources = [spark.read.format(FORMAT).options(**each) for each in places]
    everything, other = (each.load().toArrow().sort_by("hash") for each in sources)
    assert everything.num_rows == len(messages())
    assert everything.equals(other.select(everything.column_names))
    copy = spark.createDataFrame(everything)
    (row,) = copy.where("ts = 1").collect()
    assert row["timestamp"] == datetime.fromtimestamp(0)  # noqa: DTZ006 - as Spark gives it
    for text in PREDICATES:
        predicate = text.replace("{hash}", bytes(row["hash"]).hex())
        wanted = {bytes(each["hash"]) for each in copy.where(predicate).select("hash").collect()}
        for source in sources:
            found = source.load().where(predicate).select("hash")
            assert {bytes(each["hash"]) for each in found.collect()} == wanted, predicate
            if " or " not in predicate and "<>" not in predicate:
                assert "Filter" not in plan_of(found).replace("PushedFilters", ""), predicate
    for source in sources:
        plan = plan_of(source.load().where("channel = 'history'"))
        assert "PushedFilters: [IsNotNull(channel), EqualTo(channel,history)]" in plan
        few = source.schema("timestamp timestamp, channel string").load()
        assert few.columns == ["timestamp", "channel"]
        assert "ReadSchema: struct<timestamp:timestamp,channel:string>" in plan_of(few)
        assert few.where("channel = 'history'").count() == 120


def test_columns_that_are_named_are_all_that_is_read(
    spark: SparkSession, archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table that a session declares, of a schema, and of Spark's own reader of Parquet."""
    spark.sql(
        f"create or replace temporary view said (channel string, sender string) using {FORMAT}"
        f" options (path '{archived}')"
    )
    found = spark.sql("select sender from said where channel = 'history'")
    assert "ReadSchema: struct<channel:string,sender:string>" in plan_of(found)
    assert "PushedFilters: [IsNotNull(channel), EqualTo(channel,history)]" in plan_of(found)
    assert found.count() == 120
    everything = spark.read.format(FORMAT).load(str(archived)).select("sender")
    assert "ReadSchema: struct<day:date," in plan_of(everything), "Spark tells no source of it"
    files = DeltaTable(archived / "messages").file_uris(
        file_pruning_predicate=[("day", ">=", "2000-01-01")]
    )
    own = spark.read.option("recursiveFileLookup", "true").parquet(*files)
    found = own.where("channel = 'history'").select("sender")
    assert "ReadSchema: struct<channel:string,sender:string>" in plan_of(found)
    assert "PushedFilters: [IsNotNull(channel), EqualTo(channel,history)]" in plan_of(found)
    assert found.count() == 120
    assert own.count() == len(messages()) - 1, "that of 1970 is in the file of another day"

    asked: list[Sequence[str]] = []

    def recorded(path: str, columns: Sequence[str], **given: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
        asked.append(columns)
        return batches_of(path, columns, **given)

    monkeypatch.setattr(archive_source, "batches_of", recorded)
    reader = StorenodeSource({"path": str(archived)}).reader(
        StructType([StructField("sender", StringType())])
    )
    assert list(reader.pushFilters([EqualTo(("channel",), "history")])) == []
    rows = sum(len(each) for part in reader.partitions() for each in reader.read(part))
    assert rows == 120
    assert set(map(tuple, asked)) == {("channel", "sender")}


def plan_of(rows: DataFrame) -> str:
    with redirect_stdout(StringIO()) as told:
        rows.explain("formatted")
    return told.getvalue()


def test_files_that_hold_nothing_of_it_are_not_read(archived: Path) -> None:
    def files(*filters: Filter) -> set[tuple[int, int]]:
        reader = ArchiveReader(Options({"path": str(archived)}))
        assert list(reader.pushFilters(list(filters))) == []
        parts = reader.partitions()
        assert all(isinstance(part, FilesPartition) for part in parts)
        return {each.key for part in parts for each in part.files}  # type: ignore[attr-defined]

    everything = files()
    assert {0} == {day for day, _ in files(LessThan(("ts",), DAY))}
    assert files(EqualTo(("pubsub_topic",), "named")) == {
        (day, shard) for day, shard in everything if shard == -1
    }
    assert files(EqualTo(("shard",), 7), IsNotNull(("ts",))) == {(0, 7)}
    assert files(EqualTo(("day",), date(2999, 1, 1))) == set()


def test_an_archive_is_followed_by_version(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[int]] = []

    def take(rows: DataFrame, _number: int) -> None:
        batches.append(sorted(row["ts"] for row in rows.collect()))

    def follow() -> list[list[int]]:
        batches.clear()
        rows = spark.readStream.format(FORMAT).load(str(lake_path)).where("ts > 1")
        writer = rows.select("ts").writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "stream")).start().awaitTermination()
        return [each for each in batches if each]

    (first,) = follow()
    assert len(first) == len(messages()) - 1
    more(url, plain(80_000, TODAY - DAY + 5), plain(80_001, TODAY - HOUR))
    monkeypatch.setattr(listing, "COMPACT_AT_FILES", 2)
    done = archive(spark, Archiving(url, Lake(str(lake_path))))
    assert (done.published, done.compacted > 0) == (2, True)
    assert follow() == [[TODAY - DAY + 5, TODAY - HOUR]]
    assert follow() == []


def test_columns_that_a_newer_version_added_are_passed_over(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    table = DeltaTable(lake_path / "messages")
    table.alter.add_columns([Field("later", PrimitiveType("string"))])
    more(url, plain(80_002, TODAY - HOUR))
    assert archive(spark, Archiving(url, Lake(str(lake_path)))).published == 1
    assert verify(spark, Verifying(Lake(str(lake_path)), url)).sound
    assert spark.read.format(FORMAT).load(str(lake_path)).count() == len(messages()) + 1
    kept = [each.name for each in DeltaTable(lake_path / "messages").schema().fields]
    assert kept[-1] == "later"
