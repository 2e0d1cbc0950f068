"""`check` finds nothing in what a node wrote, and whatever was changed behind its back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from store.db.check import WRONG_SUMMARY, CheckReport, check
from store.db.retention import prune
from store.domain.partitioning import DAY_NS
from store.domain.retention import RetentionPolicy
from tests.integration.database.rows import NOW, TODAY, opened
from tests.integration.database.sample_messages import admitted, plain, sds, write

LOST_MESSAGE = "row in hashes without a message"
NO_HASH_ROW = "message without a row in hashes"
STRANGE_SDS_ROW = "row in sds about a message that is none of SDS"
WRONG_SDS_ROW = "row in sds differs from its message"
COUNT = 60
SDS_COUNT = 20


async def fill_database(url: str) -> None:
    """Store messages of five days, a third of them SDS messages."""
    day = [TODAY - number % 5 * DAY_NS + number for number in range(COUNT)]
    messages = [plain(number, day[number]) for number in range(SDS_COUNT, COUNT)]
    history = [
        sds(number, day[number], range(max(0, number - 2), number)) for number in range(SDS_COUNT)
    ]
    empty = plain(COUNT, NOW - 400 * DAY_NS, b"")
    await write(url, [admitted(messages), admitted(history), admitted([empty])])


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement)


async def checked(url: str, sample: int | None = None) -> CheckReport:
    return await asyncio.to_thread(check, url, sample=sample)


async def test_a_sample_checks_less(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.db.check.MESSAGE_CHUNK_ROWS", 7)
    monkeypatch.setattr("store.db.check.INDEX_CHUNK_ROWS", 4)
    assert (await checked(database_url)).findings == []
    execute(database_url, "analyze")
    report = await checked(database_url, sample=10_000)
    assert report.findings == []
    assert not report.full
    assert report.checked == {
        "messages": COUNT + 1,
        "hashes": COUNT + 1,
        "sds": SDS_COUNT,
        "unread": 0,
    }
    execute(database_url, "update storenode.messages set payload = payload || 'x'")
    found = (await checked(database_url, sample=10_000)).findings
    assert {each.kind for each in found} == {"damaged frame", STRANGE_SDS_ROW}


FIRST = "(select min(ts) from storenode.messages)"
A_PLAIN_ONE = "(select max(ts) from storenode.messages where payload like 'message %')"
CUT_PAYLOAD = f"update storenode.messages set payload = '\\xff' where ts = {FIRST}"
CHANGED_BYTE = f"""
update storenode.messages set payload = set_byte(payload, 0, 64) where ts = {A_PLAIN_ONE}
"""
OTHER_DIGEST = f"""
update storenode.messages set content_digest = set_byte(content_digest, 0, 64)
where ts = {A_PLAIN_ONE}
"""
MOVED = f"update storenode.messages set ts = ts + 1 where ts = {FIRST}"
OTHER_TOPIC = f"update storenode.messages set topic = gen_random_uuid() where ts = {FIRST}"
NO_HASH = f"delete from storenode.hashes where ts = {FIRST}"
LOST = f"delete from storenode.messages where ts = {FIRST}"
NO_TOPICS = "delete from storenode.topics"
OTHER_NAMES = "update storenode.topics set content_topic = content_topic || 'x'"
NO_SDS = "delete from storenode.sds"
OTHER_LAMPORT = "update storenode.sds set lamport = 5"
OTHER_SENDER = "update storenode.sds set sender = 'me'"
OTHER_CHANNEL_KEY = "update storenode.sds set channel_key = gen_random_uuid()"
NO_HINTS = """
update storenode.sds set parent_hints = array_fill(null::bytea, array[cardinality(parent_ids)])
where cardinality(parent_ids) = 2
"""
PLAIN_AS_SDS = """
insert into storenode.sds select gen_random_uuid(), gen_random_uuid(), ts, hash, 'c', 'm', '', 1,
  '{}', '{}', '{}', false from storenode.messages where payload like 'message %'
"""
SDS_TWICE = """
insert into storenode.sds select key, channel_key, ts, sha256(hash), channel, message_id, sender,
  lamport, parent_keys, parent_ids, parent_hints, proof from storenode.sds
"""
NO_COMMITS = "delete from storenode.commits"
FEWER_COMMITTED = "update storenode.commits set messages = messages - 1"
SEQUENCES_BACK = """
select setval('storenode.position_seq', 1), setval('storenode.batch_seq', 1)
"""
APART = """
create table storenode.apart (like storenode.messages including all);
create unique index apart_idx on only storenode.commits (position, batch)
"""
LOST_EVENT = (
    "insert into storenode.unread (hash, ts, content_digest, needed) values ('lost', 5, '', 1)"
)
CONFIRMED_TWICE = """
insert into storenode.unread (hash, ts, content_digest, needed, stores)
select hash, ts, content_digest, 3, '{a,a}' from storenode.messages order by ts limit 2
"""
NO_STORE = "delete from storenode.store"
STRAY = "create table storenode.notes (text text)"
NO_COARSE = "drop table storenode.hashes_20261120"
DEFAULT = "create table storenode.rest partition of storenode.messages default"
COLUMN = "alter table storenode.messages add column colour text"

M, H, S = "messages", "hashes", "sds"
Found = dict[tuple[str, str], int | None]
TOGETHER: tuple[dict[str, Found], ...] = (
    {
        CUT_PAYLOAD: {("damaged frame", M): 1},
        CHANGED_BYTE: {("wrong hash", M): 1, ("wrong content digest", M): 1},
        NO_TOPICS: {("message without a row in topics", "topics"): None},
        NO_SDS: {("SDS message without a row in sds", S): SDS_COUNT},
        FEWER_COMMITTED: {("commit of fewer messages than are held", "commits"): 3},
        SEQUENCES_BACK: {
            ("sequence behind its table", "position_seq"): 1,
            ("sequence behind its table", "batch_seq"): 1,
        },
        STRAY: {("stray table", "notes"): 1},
        COLUMN: {("wrong schema", "storenode"): 1},
    },
    {
        OTHER_DIGEST: {("wrong content digest", M): 1},
        OTHER_TOPIC: {("wrong topic", M): 1},
        OTHER_NAMES: {("row in topics has other names", "topics"): None},
        OTHER_LAMPORT: {(WRONG_SDS_ROW, S): SDS_COUNT},
        DEFAULT: {("default partition", M): 1},
    },
    {NO_HASH: {(NO_HASH_ROW, H): 1}, OTHER_SENDER: {(WRONG_SDS_ROW, S): SDS_COUNT}},
    {
        OTHER_CHANNEL_KEY: {(WRONG_SDS_ROW, S): SDS_COUNT},
        NO_COMMITS: {("batch without a commit", "commits"): None, (WRONG_SUMMARY, "buckets"): None},
    },
    {
        LOST: {(LOST_MESSAGE, H): 1, (WRONG_SUMMARY, "buckets"): 1},
        NO_HINTS: {(WRONG_SDS_ROW, S): SDS_COUNT - 2},
    },
    {
        MOVED: {("wrong timestamp", M): 1, (NO_HASH_ROW, H): 1, (LOST_MESSAGE, H): 1},
        PLAIN_AS_SDS: {(STRANGE_SDS_ROW, S): COUNT - SDS_COUNT},
    },
    {
        LOST_EVENT: {("unread event without its message", "unread"): 1},
        CONFIRMED_TWICE: {("store that has confirmed twice", "unread"): 2},
        APART: {
            ("invalid index", "commits"): None,
            ("stray table", "apart"): 1,
            ("wrong schema", "storenode"): 1,
        },
    },
    {SDS_TWICE: {("row in sds without a message", S): SDS_COUNT}},
    {NO_STORE: {("wrong store", "store"): 1}},
    {NO_COARSE: {(NO_HASH_ROW, H): None}},
)
"""Changes of one database that do not touch each other, and what is found of each."""


@pytest.mark.parametrize("changes", TOGETHER, ids=range(len(TOGETHER)))
async def test_what_is_wrong_is_found(database_url: str, changes: dict[str, Found]) -> None:
    expected: Found = {}
    for change, kinds in changes.items():
        execute(database_url, change)
        expected |= kinds
    report = await checked(database_url)
    assert all(each.examples and each.advice for each in report.findings)
    found: Found = {(each.kind, each.where): each.count for each in report.findings}
    assert {
        key: count if key not in expected or expected[key] is not None else None
        for key, count in found.items()
    } == expected


async def test_missing_tables_are_found_and_end_the_check(database_url: str) -> None:
    execute(database_url, "drop table storenode.sds cascade")
    report = await checked(database_url)
    assert "wrong schema" in {each.kind for each in report.findings}
    assert not report.full


async def test_a_check_neither_waits_nor_blocks(database_url: str) -> None:
    def during(act: Callable[[], None]) -> CheckReport:
        acted: list[bool] = []

        def progress(_table: str, _rows: int) -> None:
            if not acted:
                acted.append(True)
                act()

        return check(database_url, progress=progress)

    def prune_everything() -> None:
        async def run() -> None:
            async with await opened(database_url) as connection:
                policy = RetentionPolicy(age_ns=1)
                report = await prune(connection, policy, NOW, lock_timeout_ms=5_000)
                assert report.problems == ()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, run()).result()

    report = await asyncio.to_thread(during, prune_everything)
    assert report.findings == []
    assert report.checked["messages"] < COUNT
    # What was pruned is not missed.
    report = await checked(database_url)
    assert report.findings == []
    assert report.checked["messages"] < report.checked["hashes"] == COUNT + 1
