"""Reports: their figures are those of DuckDB and of Postgres, whatever the messages are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from store.pipeline.delta import DeltaArchive
from store.pipeline.report.figures import EDGES_S, MAX_NAMES, Figures
from store.pipeline.report.report import ReportJob, report
from store.pipeline.report.text import MAX_NAME_CHARS
from storenode.sds import codec
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    TODAY,
    admitted,
    asked,
    marks,
    messages,
    more,
    plain,
    rows,
    stored_ids,
    write,
)
from tests.unit.builders import entry


def reported(
    spark: SparkSession,
    page: Path,
    lake: Path | None,
    url: str | None,
    **options: Any,  # noqa: ANN401
) -> Figures:
    """Return a report's figures; an audit takes several times as long as all others."""
    opened = None if lake is None else DeltaArchive(str(lake))
    return report(spark, ReportJob(page, opened, url, **{"audit": False, **options})).figures


def cut(name: str) -> str:
    """Return a name as a report lists it."""
    return name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "…"


def test_the_figures_of_an_archive_are_those_of_duckdb(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    found = reported(spark, tmp_path / "page.html", archived, url, audit=True)
    traffic = found["traffic"]
    assert traffic["messages"] == len(messages())
    sums = "count(*), sum(octet_length(payload))::bigint, min(ts), max(ts)"
    day = "select strftime(day, '%Y-%m-%d'), count(*), sum(octet_length(payload))::bigint"
    assert [tuple(each.values()) for each in traffic["days"]] == asked(
        archived, f"{day} from lake group by 1 order by 1"
    )
    cells = asked(
        archived,
        f"select ts // {HOUR} * {HOUR}, shard, count(*) from lake where ts > 1 group by all",
    )
    assert traffic["step_s"] == 3_600
    assert {(c["start_ns"], c["shard"], c["messages"]) for c in traffic["cells"]} == set(cells)
    assert traffic["not_drawn"] == 1
    channels = asked(archived, f"select channel, {sums} from lake where channel <> '' group by 1")
    assert {tuple(each.values()) for each in traffic["channels"]["top"]} == set(channels)
    (not_sds,) = asked(archived, "select count(*) from lake where channel is null")
    assert (traffic["messages_not_sds"],) == not_sds
    topics = asked(archived, f"select pubsub_topic, content_topic, {sums} from lake group by 1, 2")
    assert {tuple(each.values()) for each in traffic["topics"]["top"]} == {
        (cut(pubsub), cut(content), *rest) for pubsub, content, *rest in topics
    }
    names = "select count(distinct channel) from lake"
    assert [(found["completeness"]["channels"],)] == asked(archived, names)


def test_archive_and_database_have_the_same_figures(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    within = {"low_ns": TODAY - DAY, "high_ns": TODAY}
    page = tmp_path / "one.html"
    of_lake = reported(spark, page, archived, None, **within)
    assert page.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [page], "nothing is left beside it"
    of_database = reported(spark, tmp_path / "two.html", None, url, **within)
    assert of_lake["traffic"] == of_database["traffic"]
    expected = sum(TODAY - DAY <= ts < TODAY for ts, _ in stored_ids(url))
    assert of_lake["traffic"]["messages"] == expected
    assert of_lake["lateness"] is None
    nothing = {"low_ns": TODAY + 9 * DAY, "high_ns": 2**62}
    assert reported(spark, tmp_path / "none.html", archived, None, **nothing)["traffic"] is None


def test_late_messages_are_found(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    more(url, *(plain(70_000 + number, TODAY - DAY + number * HOUR) for number in range(3)))
    marks(url)  # What a commit has added is kept elsewhere before it may go.
    rows(url, "update storenode.commits set committed_at = to_timestamp(max_ts / 1e9) + '2 s'")
    rows(url, "update storenode.commits set source = 'transfer' where position = 2")
    rows(url, "delete from storenode.commits where position = 3")
    found = reported(spark, tmp_path / "page.html", archived, url)
    assert found["completeness"] is None
    late = [
        (source, float(late_s))
        for source, late_s in rows(
            url,
            "select c.source, extract(epoch from c.committed_at) - m.ts / 1e9"
            " from storenode.messages m join storenode.commits c using (batch)",
        )
    ]
    lateness = found["lateness"]
    assert {source: each["messages"] for source, each in lateness["sources"].items()} == Counter(
        source for source, _ in late
    )
    assert lateness["unknown"] == len(messages()) + 3 - len(late) == 200
    client = sorted(late_s for source, late_s in late if source == "client")
    wanted = Counter(sum(late_s > edge for edge in EDGES_S) for late_s in client)
    classes = [each["messages"] for each in lateness["classes"]]
    assert classes == [wanted[place] for place in range(len(EDGES_S) + 1)]
    one = lateness["sources"]["client"]
    for share, name in ((0.5, "median_s"), (0.9, "p90_s"), (0.99, "p99_s")):
        near = [client[int(share * len(client)) + offset] for offset in (-3, 2)]
        assert near[0] <= one[name] <= near[1]
    assert one["most_s"] == pytest.approx(client[-1], abs=1e-3)


SHARDS = 3
SPAN_HOURS = 60
SILENT = {1: range(20, 24), 2: range(50, SPAN_HOURS), None: range(30, 32)}
"""Hours without messages, by shard; None: in all."""


def hourly() -> list[WakuMessageAndTopic]:
    """Return twelve messages an hour in each shard but for silent hours, and a seldom used one."""
    start = TODAY - 3 * DAY
    made = [
        entry(
            f"{shard} {hour} {number}".encode(),
            timestamp=start + hour * HOUR + number * 1_000,
            pubsub=f"/waku/2/rs/1/{shard}",
        )
        for hour in range(SPAN_HOURS)
        for shard in range(SHARDS)
        if hour not in SILENT[None] and hour not in SILENT.get(shard, ())
        for number in range(12)
    ]
    seldom = range(0, SPAN_HOURS, 9)
    return made + [
        entry(b"%d" % hour, timestamp=start + hour * HOUR, pubsub="named") for hour in seldom
    ]


def conversation() -> list[WakuMessageAndTopic]:
    """Return a channel of one shard in which a parent is missing, and one in which none is."""
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


def test_gaps_missing_parents_and_hostile_channels_are_found_and_nothing_else(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, start, page = new_database(), TODAY - 3 * DAY, tmp_path / "page.html"
    asyncio.run(write(url, [admitted([*hourly(), *conversation(), *crowd()])]))
    until_ns = start + SPAN_HOURS * HOUR + 1
    found = reported(spark, page, None, url, high_ns=until_ns, audit=True)
    traffic, completeness = found["traffic"], found["completeness"]
    gaps = {
        each["shard"]: ((each["start_ns"] - start) // HOUR, each["hours"])
        for each in traffic["gaps"]
    }
    assert gaps == {shard: (hours.start, len(hours)) for shard, hours in SILENT.items()}
    assert traffic["gap_count"] == len(SILENT)
    (cost,) = [each["expected_messages"] for each in traffic["gaps"] if each["shard"] == 2]
    assert cost == 120

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

    silent = reported(spark, tmp_path / "silent.html", None, url)["traffic"]
    last = next(each for each in silent["gaps"] if each["shard"] is None)
    assert last["start_ns"] == start + SPAN_HOURS * HOUR
    assert 0 <= time.time_ns() - last["start_ns"] - last["hours"] * HOUR < 2 * HOUR, "it lasts"
