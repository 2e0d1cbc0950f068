"""The commands of `storenode db` as an operator runs them."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from store.db import migrate
from store.domain.partitioning import DAY_NS
from store.embedded import EmbeddedPostgres
from storenode.cli.client.text import format_time
from storenode.cli.main import main
from tests.integration.database.sample_messages import admitted, plain, sds, write
from tests.support.command import Ended


class Storenode:
    """``storenode db`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(["db", *arguments])
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)


@pytest.fixture(autouse=True)
def _is_later() -> None:
    """Let commands go by the newest commit that there is."""


@pytest.fixture
def storenode(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Storenode:
    for name in ("DATABASE_URL", "DATA_DIR", "RETENTION", "RETENTION_SIZE", "CONFIG"):
        monkeypatch.delenv(f"STORENODE_{name}", raising=False)
    return Storenode(capsys)


def now_ns(url: str) -> int:
    with psycopg.connect(url) as connection:
        [[now_s]] = connection.execute("select extract(epoch from now())::bigint").fetchall()
    return int(now_s) * 1_000_000_000


def shift_commits(url: str, by_ns: int) -> None:
    shift = timedelta(microseconds=by_ns // 1_000)
    with psycopg.connect(url) as connection:
        connection.execute(
            "update storenode.commits set committed_at = committed_at + %s", (shift,)
        )
        connection.execute("update storenode.store set created_at = created_at + %s", (shift,))


async def fill_database(url: str) -> None:
    """Store messages of the last five days."""
    now = now_ns(url)
    messages = [plain(number, now - number * DAY_NS // 2) for number in range(10)]
    await write(url, [admitted(messages, now), admitted([sds(99, now)], now)], now)


def test_upgrade_and_current(storenode: Storenode, empty_database_url: str) -> None:
    target = ("--database-url", empty_database_url, "--json")
    newest = migrate.head()
    assert storenode("current", *target).objects[0] == {
        "revision": None,
        "newest": newest,
        "up_to_date": False,
    }
    done = storenode("upgrade", *target)
    assert (done.code, done.objects[0]) == (0, {"previous": None, "revision": newest})
    now = storenode("current", *target).objects[0]
    assert (now["up_to_date"], now["revision"]) == (True, newest)
    again = storenode("upgrade", "--database-url", empty_database_url)
    assert (again.code, again.out) == (0, f"The schema is at revision {newest} already.\n")


@pytest.mark.parametrize(
    "command", ["accept", "check", "partitions", "prune", "resummarize", "sizes"]
)
def test_a_database_without_a_schema_is_named(
    storenode: Storenode, empty_database_url: str, tmp_path: Path, command: str
) -> None:
    ended = storenode(command, "--data-dir", str(tmp_path), "--database-url", empty_database_url)
    assert ended.code == 1
    assert ended.out == ""
    assert "create it with `storenode db upgrade`" in ended.err


def test_a_check_reports_a_sound_database_and_a_fault_with_what_to_do(
    storenode: Storenode, database_url: str
) -> None:
    ended = storenode("check", "--database-url", database_url, "--json")
    assert ended.code == 0
    assert ended.objects[0] == {
        "ok": True,
        "full": True,
        "checked": {
            "messages": 11,
            "hashes": 11,
            "sds": 1,
            "unread": 0,
            "commits": 2,
            "missing_parents": 0,
            "buckets": 0,
        },
        "findings": [],
    }
    people = storenode("check", "--database-url", database_url, "--sample", "5")
    assert people.code == 0
    assert people.out.startswith("Found no fault in a part of the rows: ")
    with psycopg.connect(database_url) as connection:
        connection.execute("delete from storenode.sds")
    ended = storenode("check", "--database-url", database_url, "--json")
    assert ended.code == 1
    (finding,) = ended.objects[0]["findings"]
    assert (finding["where"], finding["count"]) == ("sds", 1)
    people = storenode("check", "--database-url", database_url)
    assert people.code == 1
    assert "sds: SDS message without a row in sds (1)" in people.out
    assert "To do: " in people.out


def test_partitions_are_listed(storenode: Storenode, database_url: str) -> None:
    ended = storenode("partitions", "--database-url", database_url, "--json")
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0
    assert {row["table"] for row in rows} == {"messages", "hashes", "sds", "topics", "commits"}
    now = now_ns(database_url)
    (today,) = (
        row for row in rows if row["table"] == "messages" and row["from"] <= now < row["to"]
    )
    assert today["bytes"] > 0
    assert any(row["from"] is None for row in rows if row["table"] == "hashes")
    people = storenode("partitions", "--database-url", database_url)
    assert people.out.splitlines()[0].split()[:2] == ["TABLE", "PARTITION"]
    assert len(people.out.splitlines()) == len(rows) + 2


def test_sizes_add_up_to_all_files_of_the_store(storenode: Storenode, database_url: str) -> None:
    ended = storenode("sizes", "--database-url", database_url, "--json")
    assert ended.code == 0
    with psycopg.connect(database_url) as connection:
        [[whole]] = connection.execute(
            "select sum(pg_total_relation_size(oid)) from pg_class"
            " where relnamespace = 'storenode'::regnamespace and relkind = 'r'"
        ).fetchall()
    sizes = ended.objects[0]
    assert sizes["messages"] == 11
    assert sizes["total_bytes"] == whole == sum(part["size_bytes"] for part in sizes["parts"])
    rows = {part["table"] for part in sizes["parts"] if part["part"] == ""}
    assert {"messages", "hashes", "sds", "topics", "commits"} <= rows
    indexes = {part["part"] for part in sizes["parts"] if part["table"] == "messages"}
    assert {"messages_pkey", "messages_topic_idx", "messages_batch_idx"} <= indexes
    people = storenode("sizes", "--database-url", database_url).out.splitlines()
    assert people[0].startswith("11 messages in ")
    (total,) = (line.split() for line in people if line.startswith("all "))
    assert total[2:] == ["100.0%", f"{whole / 11:,.1f}"]


def test_prune_shows_first_then_does_and_fails_where_it_cannot(
    storenode: Storenode, database_url: str
) -> None:
    target = ("--database-url", database_url, "--retention", "2d", "--json")
    reported = storenode("prune", *target, "--dry-run")
    assert reported.code == 0
    assert reported.objects[0]["dry_run"] is True
    dropped = [each["partition"] for each in reported.objects[0]["dropped"]]
    assert dropped != []
    assert all(each["reason"] == "age" for each in reported.objects[0]["dropped"])
    off = storenode("prune", "--database-url", database_url, "--retention", "off")
    assert (off.code, off.out[: len("0 partitions went, 0B of ")]) == (
        0,
        "0 partitions went, 0B of ",
    )
    with psycopg.connect(database_url) as holder:
        holder.execute("lock table storenode.messages in access share mode")
        hurried = ("--retention-lock-timeout", "10ms", "--retention-confirm")
        blocked = storenode("prune", *target[:-1], *hurried)
    assert blocked.code == 1
    assert "could not be dropped" in blocked.out
    refused = storenode("prune", *target)
    assert refused.code == 1
    assert "of the messages), which the agreed ones keep: correct them, or add" in refused.err
    done = storenode("prune", *target, "--retention-confirm")
    assert [each["partition"] for each in done.objects[0]["dropped"]] == dropped
    assert storenode("prune", *target).objects[0]["dropped"] == []
    listed = storenode("partitions", "--database-url", database_url).out
    assert not any(name in listed for name in dropped)
    assert storenode("check", "--database-url", database_url).code == 0


def test_prune_goes_by_no_clock_that_nothing_confirms(
    storenode: Storenode, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ("--database-url", database_url, "--retention", "20d")
    year_ns = 365 * DAY_NS
    monkeypatch.setattr(time, "time_ns", lambda: now_ns(database_url) + year_ns)
    ended = storenode("prune", *target)
    assert ended.code == 1
    assert "s ahead of the database's: correct one of them, or go by this one with" in ended.err
    # A database of the same machine is wrong as well; only its commits show the time.
    shift_commits(database_url, -year_ns)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns(database_url))
    doubted = storenode("prune", *target, "--json").objects[0]
    assert (doubted["dropped"], doubted["clock_ahead_s"] > 364 * 86_400) == ([], True)
    people = storenode("prune", *target)
    assert (people.code, "ages are counted from it" in people.out) == (0, True)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns(database_url) + year_ns)
    trust = ("--trust-clock", "--retention-confirm", "--json")
    trusted = storenode("prune", *target, *trust).objects[0]
    assert (trusted["dropped"] != [], trusted["clock_ahead_s"]) == (True, 0)


def test_limits_of_retention_are_shown_and_agreed_to(
    storenode: Storenode, database_url: str
) -> None:
    target = ("retention", "--database-url", database_url)
    shown = storenode(*target, "--retention", "2d", "--json").objects[0]
    assert (shown["agreed"], shown["pruned"]) == (None, None)
    assert shown["limits"] == {"retention_s": 2 * 86_400, "retention_bytes": None}
    assert shown["due"] == shown["to_confirm"] != None  # noqa: E711 - a chain of comparisons
    people = storenode(*target, "--retention", "2d").out
    assert "agreed      nothing yet\n" in people
    assert "A node with these limits does not start before --apply confirms it." in people
    applied = storenode(*target, "--retention", "2d", "--apply", "--json").objects[0]
    assert applied["agreed"] == shown["limits"]
    assert len(applied["pruned"]["dropped"]) > 0
    assert (applied["due"], applied["horizon_ns"] > 0) == (None, True)
    # Without limits of its own a command goes by the agreed ones.
    assert storenode("prune", "--database-url", database_url).code == 0
    lowered = ("--retention", "30d", "--lower-horizon")
    assert storenode(*target, *lowered).code == 0
    reopened = storenode(*target, "--json").objects[0]
    assert reopened["limits"] == {"retention_s": 30 * 86_400, "retention_bytes": None}
    assert applied["horizon_ns"] - reopened["horizon_ns"] > 27 * DAY_NS


def test_summaries_are_made_anew(storenode: Storenode, database_url: str) -> None:
    target = ("--database-url", database_url)
    later = format_time(now_ns(database_url) + DAY_NS)
    nothing = storenode("resummarize", *target, "--from", later, "--json").objects[0]
    assert nothing == {"days": 0, "messages": 0}
    done = storenode("resummarize", *target, "--to", later)
    assert done.code == 0
    assert re.fullmatch(r"Summarised 11 messages of \d days anew.\n", done.out)
    assert storenode("check", *target).code == 0


@pytest.mark.parametrize(
    "command", ["accept", "upgrade", "current", "check", "partitions", "prune", "resummarize"]
)
def test_a_database_out_of_reach_is_exit_code_3(
    storenode: Storenode, tmp_path: Path, command: str
) -> None:
    url = "postgresql://nobody:secret@127.0.0.1:1/none"
    ended = storenode(command, "--data-dir", str(tmp_path), "--database-url", url)
    assert ended.code == 3
    assert "could not be reached" in ended.err
    assert "secret" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--sample", "none"),
        ("prune", "--retention", "soon"),
        ("resummarize", "--from", "soon"),
        ("resummarize", "--from", "2026-11-20T00:00:00Z", "--to", "2026-11-20T00:00:00Z"),
        ("current", "--database-url", "postgresql://me:secret@host/base?colour=red"),
        ("accept",),
        ("accept", "--data-dir", "/nowhere", "--database-url", "postgresql://me:secret@host/d"),
        ("vacuum",),
    ],
)
def test_wrong_usage_is_exit_code_2(storenode: Storenode, arguments: tuple[str, ...]) -> None:
    ended = storenode(*arguments)
    assert ended.code == 2
    assert "secret" not in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_directory_without_a_database_is_left_alone(storenode: Storenode, tmp_path: Path) -> None:
    ended = storenode("check", "--data-dir", str(tmp_path / "none"))
    assert ended.code == 2
    assert "There is no database in" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_an_embedded_database_is_used_whether_it_runs_or_not(
    storenode: Storenode, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    server = EmbeddedPostgres(tmp_path / "data")
    with server:
        assert storenode("upgrade", "--data-dir", data).code == 0
        assert storenode("check", "--data-dir", data, "--json").objects[0]["ok"] is True
        pid = server.pid
        assert pid is not None
    ended = storenode("current", "--data-dir", data, "--json")
    assert ended.objects[0]["up_to_date"] is True
    assert server.pid is None
