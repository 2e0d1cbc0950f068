"""Reports: their figures are those of DuckDB, whatever the messages are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from store.pipeline.database import FOREVER
from store.pipeline.delta import DeltaArchive
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages, MessageSet
from store.pipeline.report.figures import MAX_NAMES, Figures
from store.pipeline.report.report import report
from store.pipeline.report.text import MAX_NAME_CHARS
from storenode.sds import codec
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    TODAY,
    admitted,
    asked,
    messages,
    stored_ids,
    write,
)
from tests.unit.builders import entry


def reported(page: Path, side: MessageSet, **options: Any) -> Figures:  # noqa: ANN401
    """Return a report's figures; an audit takes several times as long as all others."""
    return report(side, page, **{"is_audited": False, **options}).figures


def cut(name: str) -> str:
    """Return a name as a report lists it."""
    return name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "…"


def test_the_figures_of_an_archive_are_those_of_duckdb(
    spark: SparkSession, archived: Path, tmp_path: Path
) -> None:
    lake = ArchiveMessages(spark, DeltaArchive(str(archived)))
    traffic = reported(tmp_path / "page.html", lake, bounds=(2, FOREVER))["traffic"]
    assert traffic["messages"] == len(messages()) - 1
    sums = "count(*), sum(octet_length(payload))::bigint, min(ts), max(ts)"
    day = "select strftime(day, '%Y-%m-%d'), count(*), sum(octet_length(payload))::bigint"
    assert [tuple(each.values()) for each in traffic["days"]] == asked(
        archived, f"{day} from lake where ts > 1 group by 1 order by 1"
    )
    steps = asked(
        archived, f"select ts // {HOUR} * {HOUR}, count(*) from lake where ts > 1 group by 1"
    )
    assert traffic["step_s"] == 3_600
    assert {tuple(each.values()) for each in traffic["steps"] if each["messages"]} == set(steps)
    shards = asked(
        archived,
        "select shard, count(*), sum(octet_length(payload))::bigint,"
        f" count(distinct ts // {HOUR}) from lake where ts > 1 group by 1 order by 1",
    )
    assert [tuple(each.values()) for each in traffic["shards"]] == shards
    channels = asked(archived, f"select channel, {sums} from lake where channel <> '' group by 1")
    assert {tuple(each.values()) for each in traffic["channels"]["top"]} == set(channels)
    (not_sds,) = asked(archived, "select count(*) from lake where channel is null and ts > 1")
    assert (traffic["messages_not_sds"],) == not_sds
    topics = asked(
        archived,
        f"select pubsub_topic, content_topic, {sums} from lake where ts > 1 group by 1, 2",
    )
    assert {tuple(each.values()) for each in traffic["topics"]["top"]} == {
        (cut(pubsub), cut(content), *rest) for pubsub, content, *rest in topics
    }


def test_archive_and_database_have_the_same_figures(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    within, page = {"bounds": (TODAY - DAY, TODAY)}, tmp_path / "one.html"
    lake = ArchiveMessages(spark, DeltaArchive(str(archived)))
    of_lake = reported(page, lake, **within)
    assert page.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [page], "nothing is left beside it"
    database = DatabaseMessages(spark, url, "the database")
    of_database = reported(tmp_path / "two.html", database, **within)
    assert of_lake["traffic"] == of_database["traffic"]
    expected = sum(TODAY - DAY <= ts < TODAY for ts, _ in stored_ids(url))
    assert of_lake["traffic"]["messages"] == expected
    nothing = {"bounds": (TODAY + 9 * DAY, 2**62)}
    assert reported(tmp_path / "none.html", lake, **nothing)["traffic"] is None


def conversation() -> list[WakuMessageAndTopic]:
    """Return a channel in which a parent is missing, and one in which none is."""
    at, shard = TODAY - DAY, "/waku/2/rs/1/60"
    made = [codec.encode("room", f"m-{n}", sender_id="alice", lamport=n) for n in range(5)]
    parents: list[tuple[str, bytes | None]] = [("m-4", None), ("lost", None)]
    made.append(codec.encode("room", "late", sender_id="bob", lamport=9, parents=parents))
    made.append(codec.encode("ok", "x"))
    return [entry(each, timestamp=at + n, pubsub=shard) for n, each in enumerate(made)]


HOSTILE = ["<script>alert(1)</script>", "\u202e", "x" * 200, '\x00,"\n\x1b[31m']
CROWD = [f"channel-{number}" for number in range(MAX_NAMES + 50)]


def crowd() -> list[WakuMessageAndTopic]:
    """Return messages of more channels than fit on a page, nine of each hostile one."""
    names = [*HOSTILE * 9, *CROWD]
    made = [codec.encode(name, f"id-{number}") for number, name in enumerate(names)]
    at, shard = TODAY - 2 * DAY, "/waku/2/rs/1/61"
    return [entry(each, timestamp=at + n, pubsub=shard) for n, each in enumerate(made)]


def test_missing_parents_and_hostile_channels_are_found_and_nothing_else(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, page = new_database(), tmp_path / "page.html"
    asyncio.run(write(url, [admitted([*conversation(), *crowd()])]))
    found = reported(page, DatabaseMessages(spark, url, "the database"), is_audited=True)
    traffic, completeness = found["traffic"], found["completeness"]
    channels = len(HOSTILE) + len(CROWD) + 2
    counts = [completeness[name] for name in ("channels", "missing", "incomplete", "faults")]
    assert counts == [channels, 1, 1, 0]
    first, at = completeness["least_complete"][0], TODAY - DAY
    named = ("channel", "messages", "missing", "incomplete", "missing_since", "naming_senders")
    assert [first[name] for name in named] == ["room", 6, 1, 1, at + 5, 1]
    assert (first["last_complete"]["ts"], first["named_by"]) == (at + 4, ["bob"])
    (lost,) = completeness["missing_parents"]
    by = ("channel", "message_id", "first_named_by", "sender", "ts")
    assert [lost[name] for name in by] == ["room", "lost", "late", "bob", at + 5]

    assert traffic["channels"]["count"] == channels
    assert traffic["channels"]["others"] == channels - MAX_NAMES
    assert traffic["channels"]["messages"] == len(conversation()) + len(crowd())
    assert {each["channel"] for each in traffic["channels"]["top"][:4]} == set(map(cut, HOSTILE))
    text = page.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script" not in text
    assert "\u202e" not in text
    assert len(text) < 800_000
