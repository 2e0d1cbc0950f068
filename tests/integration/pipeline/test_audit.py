"""Auditing: every gap is found and nothing else, whatever is read and wherever it continues."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline.audit import results, tables
from store.pipeline.audit.audit import audit, audit_recorded
from store.pipeline.audit.summary import AuditReport
from store.pipeline.delta import DataFile, DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages
from storenode.message.text import printable
from storenode.sds import codec
from storenode.sds.limits import MAX_ID_BYTES
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import DAY, HOUR, NOW, archived_from, asked, messages_in, more
from tests.support.audit_oracle import Claim, audited
from tests.support.pages import ROOT
from tests.unit.builders import entry

FIRST = NOW - 30 * HOUR
MINUTE = HOUR // 60


def message(
    channel: str,
    name: str,
    lamport: int | None,
    ts: int,
    parents: list[str],
    *,
    hints: dict[str, bytes] | None = None,
    content: bytes = b"",
) -> WakuMessageAndTopic:
    payload = codec.encode(
        channel,
        name,
        sender_id="sender",
        lamport=lamport,
        parents=[(parent, (hints or {}).get(parent)) for parent in parents],
        content=content,
    )
    return entry(payload, timestamp=ts)


def strange_history(seed: int, count: int) -> list[Claim]:
    """Return chains with forks, merges, gaps, wrong clocks, cycles, IDs claimed several times."""
    rng = random.Random(seed)
    made: list[Claim] = []
    for channel in ("kitchen", "Küche\0", "λ"):
        size = count // 3
        for number in range(size):
            past = range(max(0, number - 6), number)
            parents = [f"{each}" for each in rng.sample(past, min(len(past), rng.randrange(1, 3)))]
            lamport: int | None = number * 2
            roll = rng.random()
            if roll < 0.02 or number == 10:
                continue
            if roll < 0.04:
                parents.append(f"{min(size - 1, number + rng.randrange(4))}")
            elif roll < 0.05:
                lamport = rng.choice([None, 2**64 - 1, 2**63, number])
            elif roll < 0.06:
                parents.append(rng.choice(["nobody", "other's"]))
            ts = FIRST + 15 * MINUTE * number
            made.append((channel, f"{number}", lamport, ts, 0, parents))
            if roll > 0.97:
                made.append((channel, f"{number}", lamport, ts + 1, 0, parents[:1]))
    made.append(("elsewhere", "other's", 1, FIRST, 0, []))
    return made


def check(missing: Path, result: AuditReport, claims: list[Claim]) -> None:
    """Assert that the report and the file of missing IDs are those of a plain audit."""
    wanted = audited(claims)
    lines = [json.loads(line) for line in missing.read_text().splitlines()]
    assert {(each["channel"], each["message_id"]) for each in lines} == {
        (channel, parent) for channel, _, parent in wanted.missing
    }
    found = {each["channel"]: each for each in result.listed["channels"]}
    assert found.keys() == wanted.channels.keys()
    for name, channel in wanted.channels.items():
        assert {each: found[name][each] for each in channel.counts} == channel.counts
        point = found[name]["last_complete"]
        assert channel.point == (point and (point["lamport"], point["message_id"], point["ts"]))
    for each in ("missing", "incomplete", "violations", "heads", "messages", "cycles"):
        assert result.counts[each] == sum(c.counts[each] for c in wanted.channels.values())
    late = {(e["channel"], e["message_id"], e["parent"]) for e in result.listed["violations"]}
    assert late == wanted.violations
    cycles = Counter((channel, name) for (channel, _), name in wanted.cycles.items())
    assert {(e["channel"], e["cycle"]): e["messages"] for e in result.listed["cycles"]} == cycles


def test_whole_and_continued_audits_find_what_a_plain_audit_does(
    spark: SparkSession,
    new_database: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let messages and parents come late, and then lose a day."""
    url, lake, strange = new_database(), tmp_path / "lake", strange_history(7, 300)
    come = random.Random(3).sample(strange, len(strange))
    entries = Counter[str]()
    for channel, *_, parents in strange:
        entries[channel] += 1 + len(parents)
    monkeypatch.setattr(tables, "MAX_CHANNEL_ENTRIES", max(entries.values()))

    def grow(claims: list[Claim]) -> None:
        more(
            url, *(message(c, n, lamport, ts, parents) for c, n, lamport, ts, _, parents in claims)
        )
        archived_from(spark, url, lake)

    def of_archive(look: Callable[[ArchiveMessages], AuditReport]) -> dict[str, Any]:
        return look(messages_in(spark, lake)).as_json()

    grow(come[:-60])
    assert of_archive(audit_recorded) == of_archive(audit_recorded), "nothing has changed"
    grow(come[-60:])
    found, missing = of_archive(audit_recorded), tmp_path / "missing"
    of_database = audit(DatabaseMessages(spark, url), missing=missing)
    check(missing, of_database, strange)
    assert found == of_database.as_json() | {"name": str(lake), "missing_file": None}
    assert dashboard(lake, "kitchen") == coverage(lake, "kitchen") != []
    remove_day(lake)
    assert of_archive(audit_recorded) == of_archive(audit)


def test_results_of_another_format_are_ignored_and_damaged_ones_named(
    spark: SparkSession, lake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = messages_in(spark, lake_path)
    audit_recorded(lake)
    assert results.read_recorded(spark, lake.archive) is not None
    with monkeypatch.context() as patch:
        patch.setattr(results, "FORMAT", "another format")
        assert results.read_recorded(spark, lake.archive) is None, "the next examines everything"
    for file in lake_path.glob("findings/result=references/*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"remove .*/findings: the next"):
        audit_recorded(lake)
    shutil.rmtree(lake_path / "findings")
    assert results.read_recorded(spark, lake.archive) is None


def test_ranges_payloads_and_odd_names_decide_what_is_missing(
    spark: SparkSession,
    new_database: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Publish in a channel one entry more than is audited, and in the next as many."""
    url, long, crowd = new_database(), "ж" * 40_000, "crowd\0"
    monkeypatch.setattr(tables, "MAX_CHANNEL_ENTRIES", 17)
    more(
        url,
        message("room", "early", 1, FIRST + 2, []),
        message("room", "late", 5, FIRST + HOUR, ["early"]),
        message("room", "again", 6, FIRST + HOUR + 1, ["late"], content=b"same"),
        message("room", "again", 6, FIRST + HOUR + 2, ["late"], content=b"same"),
        message("room", "twice", 7, FIRST + HOUR + 3, ["again"], content=b"one"),
        message("room", "twice", 7, FIRST + HOUR + 4, ["again"], content=b"other"),
        message(
            *("room", "end", 9, FIRST + HOUR + 5, ["twice", "lost", "tip"]),
            hints={"lost": b"\1" * 32, "tip": b"short"},
        ),
        message("room", "tip\x1b[2J", 8, FIRST + HOUR + 6, ["\x1bnever"]),
        message("z", "x", 1, FIRST, ["y", long]),
        message("z", "y", 0, FIRST, []),
        message(crowd, "c", 1, FIRST, [f"parent {number}" for number in range(17)]),
    )
    side = DatabaseMessages(spark, url)
    file = tmp_path / "missing.jsonl"
    result = audit(side, missing=file)
    *lines, shortened = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [
        {"channel": "room", "message_id": "\x1bnever"},
        {"channel": "room", "message_id": "lost", "hint": "01" * 32},
        {"channel": "room", "message_id": "tip"},
    ]
    # A name that is too long for any message takes little memory, and is still missing.
    assert shortened["message_id"].startswith("ж" * (MAX_ID_BYTES // 2) + "… (80000 bytes")
    assert MAX_ID_BYTES < len(shortened["message_id"].encode()) < 2 * MAX_ID_BYTES
    named = {each["message_id"]: each for each in result.listed["missing"]}
    assert (named["lost"]["first_named_by"], named["lost"]["sender"]) == ("end", "sender")
    assert result.too_large == [{"channel": crowd, "entries": 18}]
    assert f"{printable(crowd)} has 18 IDs and references" in " ".join(result.lines())
    assert {each["channel"] for each in result.listed["channels"]} == {"room", "z"}
    assert result.counts["copies"] == 2
    (conflict,) = result.listed["conflicts"]
    assert (conflict["message_id"], conflict["contents"]) == ("twice", 2)
    room = next(each for each in result.listed["channels"] if each["channel"] == "room")
    point = {"message_id": "twice", "lamport": 7, "ts": FIRST + HOUR + 3}
    assert room["last_complete"] == point
    assert result.counts["incomplete"] == 3
    assert all(line.isprintable() for line in result.lines())
    assert json.loads(json.dumps(result.as_json()))["missing"] == 4

    within = audit(side, bounds=(FIRST + HOUR, FIRST + HOUR + 3))
    assert within.sound, within.lines()
    assert within.counts["messages"] == 2
    assert within.lines()[-1] == "Every past is complete."


def remove_day(lake: Path) -> None:
    """Remove the files of the first day, as `repair` leaves out what is lost."""
    opened = DeltaArchive(str(lake)).open_for_writing()
    first = min(each.day for each in opened.files())
    gone: list[DataFile] = opened.files({first})
    opened.commit([], gone)


def dashboard(path: Path, channel: str) -> list[tuple[int, int, int]]:
    """Run the query of docs/pipeline.md for a channel; return day, messages and missing parents."""
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    query = page.split("-- DuckDB: messages by day", 1)[1].split("\n", 1)[1].split("```")[0]
    with duckdb.connect() as connection:
        connection.register("findings_table", DeltaTable(path / "findings").to_pyarrow_table())
        query = query.replace("delta_scan('/archive/one/findings')", "findings_table")
        found = connection.execute(query.replace("notes", channel)).fetchall()
    return [(day, messages, missing) for _, day, messages, missing in found]


def coverage(lake: Path, channel: str) -> list[tuple[int, int, int]]:
    """Compute day, messages and missing parents of a channel message by message."""
    columns = f"ts // {DAY}, message_id, [each.id for each in parents]"
    mine = asked(lake, f"select {columns} from lake where channel = '{channel}'")
    stored = {name for _, name, _ in mine}
    found: dict[int, tuple[int, set[str]]] = {}
    for day, _, parents in mine:
        count, missing = found.get(day, (0, set[str]()))
        found[day] = count + 1, missing | set(parents) - stored
    return [(day, count, len(missing)) for day, (count, missing) in sorted(found.items())]
