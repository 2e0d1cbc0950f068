"""Reports: their figures are those of DuckDB, whatever the messages are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from store.pipeline.message_sets import DatabaseMessages, MessageSet
from store.pipeline.report import figures
from store.pipeline.report.figures import Figures
from store.pipeline.report.report import report
from store.pipeline.report.text import MAX_NAME_CHARS
from storenode.sds import codec
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    TODAY,
    asked,
    messages,
    messages_in,
    more,
    stored_ids,
)
from tests.unit.builders import entry


def reported(page: Path, side: MessageSet, **options: Any) -> Figures:  # noqa: ANN401
    """Return a report's figures; an audit takes several times as long as all others."""
    return report(side, page, **{"is_audited": False, **options}).figures


def cut(name: str) -> str:
    """Return a name as a report lists it."""
    return name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "…"


def test_the_figures_of_archive_and_database_are_those_of_duckdb(
    spark: SparkSession, archived: Path, url: str, tmp_path: Path
) -> None:
    """Report all but the oldest message, and what came today."""
    lake, page, bounds = messages_in(spark, archived), tmp_path / "page.html", (2, TODAY)
    traffic = reported(page, lake, bounds=bounds)["traffic"]
    assert page.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [page], "nothing is left beside it"
    assert traffic["messages"] == sum(2 <= ts < TODAY for ts, _ in stored_ids(url))
    assert len(messages()) - 1 > traffic["messages"] > 0

    def found(columns: str, rest: str = "") -> list[tuple[Any, ...]]:
        where = f"ts between 2 and {TODAY - 1} {rest}"
        return asked(archived, f"select {columns} from lake where {where}")

    counts = "count(*), sum(octet_length(payload))::bigint"
    sums, hour = f"{counts}, min(ts), max(ts)", f"ts // {HOUR}"
    assert [tuple(each.values()) for each in traffic["days"]] == found(
        f"strftime(day, '%Y-%m-%d'), {counts}", "group by 1 order by 1"
    )
    steps = found(f"{hour} * {HOUR}, count(*)", "group by 1")
    assert traffic["step_s"] == 3_600
    assert {tuple(each.values()) for each in traffic["steps"] if each["messages"]} == set(steps)
    shards = found(f"shard, {counts}, count(distinct {hour})", "group by 1 order by 1")
    assert [tuple(each.values()) for each in traffic["shards"]] == shards
    channels = found(f"channel, {sums}", "and channel <> '' group by 1")
    assert {tuple(each.values()) for each in traffic["channels"]["top"]} == set(channels)
    assert [(traffic["messages_not_sds"],)] == found("count(*)", "and channel is null")
    topics = found(f"pubsub_topic, content_topic, {sums}", "group by 1, 2")
    assert {tuple(each.values()) for each in traffic["topics"]["top"]} == {
        (cut(pubsub), cut(content), *rest) for pubsub, content, *rest in topics
    }
    database = DatabaseMessages(spark, url)
    assert reported(tmp_path / "database.html", database, bounds=bounds)["traffic"] == traffic
    nothing = reported(tmp_path / "none.html", lake, bounds=(TODAY + 9 * DAY, 2**62))
    assert nothing["traffic"] is None


HOSTILE = ["<script>alert(1)</script>", "\u202e", "x" * 200, '\x00,"\n\x1b[31m']


def test_missing_parents_and_the_largest_channels_are_found_and_nothing_else(
    spark: SparkSession,
    new_database: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Publish in more channels than are listed, the largest of which have hostile names."""
    monkeypatch.setattr(figures, "MAX_NAMES", 5)
    url, at = new_database(), TODAY - DAY
    made = [codec.encode("room", f"m-{n}", sender_id="alice", lamport=n) for n in range(5)]
    parents: list[tuple[str, bytes | None]] = [("m-4", None), ("lost", None)]
    made.append(codec.encode("room", "late", sender_id="bob", lamport=9, parents=parents))
    names = [*HOSTILE * 9, *(f"channel-{number}" for number in range(10))]
    made += [codec.encode(name, f"id-{number}") for number, name in enumerate(names)]
    more(url, *(entry(each, timestamp=at + n) for n, each in enumerate(made)))
    found = reported(tmp_path / "page.html", DatabaseMessages(spark, url), is_audited=True)
    traffic, completeness = found["traffic"], found["completeness"]
    counts = [completeness[name] for name in ("channels", "missing", "incomplete", "faults")]
    assert counts == [15, 1, 1, 0]
    first = completeness["least_complete"][0]
    named = ("channel", "messages", "missing", "incomplete", "missing_since", "naming_senders")
    assert [first[name] for name in named] == ["room", 6, 1, 1, at + 5, 1]
    assert (first["last_complete"]["ts"], first["named_by"]) == (at + 4, ["bob"])
    (lost,) = completeness["missing_parents"]
    by = ("channel", "message_id", "first_named_by", "sender", "ts")
    assert [lost[name] for name in by] == ["room", "lost", "late", "bob", at + 5]
    channels = traffic["channels"]
    totals = [channels[name] for name in ("count", "others", "messages", "others_messages")]
    assert totals == [15, 10, len(made), 10]
    assert {each["channel"] for each in channels["top"][:4]} == set(map(cut, HOSTILE))
