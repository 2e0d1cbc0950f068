"""Reports: their figures are those of an oracle, from either place, whatever the messages are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.cli.pipeline import ask_status, peers_of
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.report.arrivals import EDGES_S
from store.pipeline.report.figures import ChannelPast, Gathered, MissingParent
from store.pipeline.report.limits import (
    MAX_NAME_CHARS,
    MAX_RANKED,
)
from store.pipeline.report.report import ReportJob, report
from store.pipeline.report.traffic import Gap, Traffic
from storenode.sds import codec
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    TODAY,
    admitted,
    asked,
    held,
    marks,
    messages,
    more,
    plain,
    rows,
    write,
)
from tests.support.node import running_node
from tests.unit.builders import entry

NO_CREDENTIALS = dict.fromkeys(("token_file", "tls_ca", "tls_cert", "tls_key"))


def reported(
    spark: SparkSession,
    page: Path,
    lake: Path | None,
    url: str | None,
    *,
    audit: bool = False,
    **options: object,
) -> Gathered:
    """A report's figures; an audit takes several times as long as all others."""
    opened = None if lake is None else DeltaArchive(str(lake))
    job = ReportJob(page, opened, url, audit=audit, **options)  # type: ignore[arg-type]
    return report(spark, job).gathered


def of_messages(spark: SparkSession, url: str, page: Path, **options: object) -> Traffic:
    traffic = reported(spark, page, None, url, **options).traffic  # type: ignore[arg-type]
    assert traffic is not None
    return traffic


def test_the_figures_of_an_archive_are_those_of_duckdb(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    gathered = reported(spark, tmp_path / "page.html", archived, url, audit=True)
    traffic = gathered.traffic
    assert traffic is not None
    assert traffic.messages == len(messages())
    sums = "count(*), sum(octet_length(payload))::bigint, min(ts), max(ts)"
    day = f"select ts // {DAY}, count(*), sum(octet_length(payload))::bigint from lake group by 1"
    assert traffic.days == {each: (count, size) for each, count, size in asked(archived, day)}
    cells = asked(
        archived,
        f"select ts // {HOUR} * {HOUR}, shard, count(*) from lake where ts > 1 group by all",
    )
    assert traffic.axis.step_ns == HOUR
    assert {place: cell.messages for place, cell in traffic.cells.items()} == {
        (start, shard): count for start, shard, count in cells
    }
    assert traffic.not_drawn == 1
    channels = asked(archived, f"select channel, {sums} from lake where channel <> '' group by 1")
    assert {
        (*each.names, each.messages, each.payload_bytes, each.first_ns, each.last_ns)
        for each in traffic.channels.top
    } == set(channels)
    (not_sds,) = asked(archived, "select count(*) from lake where channel is null")
    assert (traffic.not_sds,) == not_sds
    topics = asked(
        archived, f"select pubsub_topic, content_topic, {sums} from lake group by 1, 2 order by 3"
    )
    assert {
        (*(name[:MAX_NAME_CHARS] for name in each.names), each.messages)
        for each in traffic.topics.top
    } == {
        (*(name[:MAX_NAME_CHARS] for name in (pubsub, content)), count)
        for pubsub, content, count, *_ in topics
    }
    assert gathered.completeness is not None
    names = "select count(distinct channel) from lake"
    assert [(gathered.completeness.channels,)] == asked(archived, names)
    assert gathered.compared is not None
    assert gathered.compared.count == 0
    assert gathered.compared.hours > 24


def test_both_kinds_of_places_have_the_same_figures(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    low, high = TODAY - DAY, TODAY
    of_lake = reported(spark, tmp_path / "one.html", archived, None, low_ns=low, high_ns=high)
    assert of_lake.traffic == of_messages(
        spark, url, tmp_path / "two.html", low_ns=low, high_ns=high
    )
    assert of_lake.traffic is not None
    assert of_lake.traffic.messages == sum(low <= ts < high for ts, _ in held(url))
    assert (of_lake.compared, of_lake.arrivals) == (None, None)
    nothing = reported(
        spark, tmp_path / "none.html", archived, None, low_ns=TODAY + 9 * DAY, high_ns=2**62
    )
    assert nothing.traffic is None


def test_hours_that_differ_and_late_messages_are_told(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    new = [plain(70_000 + number, TODAY - DAY + number * HOUR) for number in range(3)]
    more(url, *new)
    marks(url)  # What a commit has added is kept elsewhere before it may go.
    rows(url, "update storenode.commits set committed_at = to_timestamp(max_ts / 1e9) + '2 s'")
    rows(url, "update storenode.commits set source = 'transfer' where position = 2")
    rows(url, "delete from storenode.commits where position = 3")
    gathered = reported(spark, tmp_path / "page.html", archived, url)
    assert gathered.completeness is None
    assert gathered.compared is not None
    assert [each.start_ns for each in gathered.compared.listed] == [
        each.message.timestamp for each in new
    ]
    assert all(each.database == each.archive + 1 for each in gathered.compared.listed)
    late = [
        (source, float(late_s))
        for source, late_s in rows(
            url,
            "select c.source, extract(epoch from c.committed_at) - m.ts / 1e9"
            " from storenode.messages m join storenode.commits c using (batch)",
        )
    ]
    arrivals = gathered.arrivals
    assert arrivals is not None
    assert {source: each.messages for source, each in arrivals.sources.items()} == Counter(
        source for source, _ in late
    )
    assert arrivals.unknown == len(messages()) + 3 - len(late) == 200
    client = sorted(late_s for source, late_s in late if source == "client")
    wanted = Counter(sum(late_s > edge for edge in EDGES_S) for late_s in client)
    assert arrivals.classes == tuple(wanted[place] for place in range(len(EDGES_S) + 1))
    assert arrivals.live == len(client)
    found = arrivals.sources["client"]
    for share, quantile in ((0.5, found.median_s), (0.9, found.p90_s), (0.99, found.p99_s)):
        near = [client[int(share * len(client)) + offset] for offset in (-3, 2)]
        assert near[0] <= quantile <= near[1]
    assert found.most_s == pytest.approx(client[-1], abs=1e-3)
    assert sum(each.messages for each in arrivals.steps.values()) >= len(client) - 1


SHARDS = 3
SPAN_HOURS = 60
SILENT = {1: range(20, 24), 2: range(50, SPAN_HOURS), None: range(30, 32)}
"""Hours without messages, by shard; None: in all."""


def hourly() -> list[WakuMessageAndTopic]:
    """Twelve messages an hour in each shard, but for the silent hours, and a shard seldom used."""
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


def test_planted_gaps_are_found_and_nothing_else(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, start = new_database(), TODAY - 3 * DAY
    asyncio.run(write(url, [admitted(hourly())]))
    until_ns = start + SPAN_HOURS * HOUR + 1
    traffic = of_messages(spark, url, tmp_path / "page.html", high_ns=until_ns)
    found = {
        each.shard: ((each.start_ns - start) // HOUR, (each.end_ns - start) // HOUR)
        for each in traffic.gaps
    }
    assert found == {shard: (hours.start, hours.stop) for shard, hours in SILENT.items()}
    assert traffic.gap_count == len(SILENT)
    assert Gap(2, start + 50 * HOUR, start + 60 * HOUR, 120) in traffic.gaps
    silent = of_messages(spark, url, tmp_path / "silent.html")
    last = next(each for each in silent.gaps if each.shard is None)
    assert last.start_ns == start + SPAN_HOURS * HOUR
    assert 0 <= time.time_ns() - last.end_ns < 2 * HOUR, "it lasts"


def test_what_is_missing_is_told_by_channel(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, at = new_database(), TODAY - DAY
    made = [
        entry(
            codec.encode("room", f"m-{number}", sender_id="alice", lamport=number),
            timestamp=at + number,
        )
        for number in range(5)
    ]
    late = codec.encode(
        "room", "late", sender_id="bob", lamport=9, parents=[("m-4", None), ("lost", None)]
    )
    made += [entry(late, timestamp=at + 9), entry(codec.encode("ok", "x"), timestamp=at + 10)]
    asyncio.run(write(url, [admitted(made)]))
    found = reported(spark, tmp_path / "page.html", None, url, audit=True).completeness
    assert found is not None
    assert (found.channels, found.missing, found.incomplete, found.faults) == (2, 1, 1, 0)
    assert found.pasts[0] == ChannelPast("room", 6, 1, 1, at + 4, at + 9, 1, ("bob",))
    assert found.lost == (MissingParent("room", "lost", 1, "late", "bob", at + 9, None),)


def test_of_thousands_of_hostile_channels_the_largest_fit_on_a_page(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    names = ["<script>alert(1)</script>", "\u202e", "x" * 200, "\x00\x1b[31m"]
    names += [f"channel-{number}" for number in range(2_000)]
    url, page = new_database(), tmp_path / "page.html"
    made = [
        entry(codec.encode(name, f"id-{number}-{copy}"), timestamp=TODAY - HOUR + 7 * number + copy)
        for number, name in enumerate(names)
        for copy in range(3 if number < 4 else 1)
    ]
    asyncio.run(write(url, [admitted(made)]))
    traffic = of_messages(spark, url, page)
    assert traffic.channels.names == len(names)
    assert traffic.channels.other_names == len(names) - MAX_RANKED
    assert traffic.channels.messages == len(made)
    assert {each.names[0] for each in traffic.channels.top[:4]} == {
        name[: MAX_NAME_CHARS + 1] for name in names[:4]
    }
    text = page.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script" not in text
    assert "\u202e" not in text
    assert len(text) < 400_000


def test_a_page_is_never_written_over_and_never_in_part(
    spark: SparkSession, archived: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(PipelineError, match="exists already: name a file that does not"):
        reported(spark, page, archived, None)
    assert page.read_text() == "mine"
    with pytest.raises(PipelineError, match="There is no directory"):
        reported(spark, tmp_path / "none" / "page.html", archived, None)
    new = tmp_path / "new.html"
    reported(spark, new, archived, None)
    assert new.stat().st_mode & 0o777 == 0o644
    assert {each.name for each in tmp_path.iterdir()} == {"page.html", "new.html"}


def test_a_node_tells_of_its_peers(new_database: Callable[[], str], tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    with running_node(tmp_path, "--peer", nobody, database_url=new_database()) as node:
        (peer,) = peers_of(ask_status(node.admin, **NO_CREDENTIALS))
    assert (peer.name, peer.connected, peer.last_sync_ns) == (nobody, False, 0)
