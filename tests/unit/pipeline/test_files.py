"""Files of an archive: written whole or not at all, sliced, and made of rows without a loss."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.messages.record import RecordBatch
from store.pipeline import files
from store.pipeline.columns import ARROW, NAMES, PARTITIONS, SDS_COLUMNS
from store.pipeline.errors import UNREACHABLE, PipelineError, of_spark, of_store, store_error
from store.pipeline.fingerprints import Fingerprint
from store.pipeline.limits import (
    HOUR_NS,
    MAX_SLICE_ROWS,
    MAX_STEP_MESSAGES,
    MIN_SLICE_ROWS,
    MIN_STEP_MESSAGES,
)
from store.pipeline.parquet import WRITTEN, batches_of, write_batches
from store.pipeline.restore import encoded
from store.pipeline.source import NO_SHARD, _decoded, in_shares, in_steps, plan_slices, shard_of
from storenode.message.rules import Policy
from storenode.message.varint import varint
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entries, entry

UNUSABLE = {
    "gs://BUCKET/PATH or abfss://": ("hdfs://h:9/x", "gcs://b/x", "http://h/x", "s3://", "gs:///"),
    "An archive is a directory, not a database": ("", "postgresql://host/name", "postgres://h/x"),
    "choose a path without": ("/a[b", "/a]b", "/a\\b", "/100%", "/a\nb", "s3a://b/\x7f"),
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = f"{tmp_path}/a b/day=1/part-ж.parquet"
    table = pa.table({"ts": range(1_000), "h0": range(1_000)})
    Path(path).parent.mkdir(parents=True)
    pq.write_table(table, path)
    (batch,) = batches_of(path, ["h0", "ts"])
    assert batch.to_pydict() == {"h0": list(range(1_000)), "ts": list(range(1_000))}
    assert b"".join(files.chunks(path)) == Path(path).read_bytes()
    with pytest.raises(PipelineError, match=r"none.parquet could not be read as a file of an arch"):
        list(batches_of(f"{tmp_path}/none.parquet", ["ts"]))


def test_a_file_is_created_once_listed_and_deleted(tmp_path: Path) -> None:
    path = f"{tmp_path}/new/entry"
    files.create(path, b"one")
    with pytest.raises(FileExistsError):
        files.create(path, b"two")
    assert files.listed(str(tmp_path)) == ["new/entry"]
    assert Path(path).read_bytes() == b"one"
    files.delete(f"{tmp_path}/new", ["entry", "none"])
    assert files.listed(str(tmp_path)) == files.listed(f"{tmp_path}/none") == []


def test_a_folder_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.scandir", Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):
        files.listed(str(tmp_path))


def test_an_endpoint_of_s3_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert files.delta_options("/b/x") is None
    assert "aws_endpoint_url" not in (files.delta_options("gs://b/x") or {})
    options = files.delta_options("s3://b/x") or {}
    assert options["aws_endpoint_url"] == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("Generic S3 error: <Code>NoSuchBucket</Code>", "there is no such bucket"),
        ("PUT failed: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>", "refuses these cred"),
        ("error sending request for url (http://169.254.169.254/latest)", "no credentials were"),
        ("Error performing GET https://x in 5s: error sending request", "cannot be reached"),
    ],
)
def test_errors_of_a_store_are_one_sentence(said: str, sentence: str) -> None:
    for error in (store_error("s3://b/x", said), OSError(said)):
        found = of_store("s3://b/x", error).sentence
        assert sentence in found
        assert "Generic" not in found
    again = pickle.loads(pickle.dumps(store_error("s3://b/x", said)))
    assert sentence in again.strerror


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/archive/one/", "/archive/one"),
        ("file:///archive/one", "/archive/one"),
        ("file:/archive/one", "/archive/one"),
        ("/co:lon/a b#c", "/co:lon/a b#c"),
        ("s3a://bucket/one//", "s3://bucket/one"),
        ("s3://bucket/one", "s3://bucket/one"),
        ("gs://bucket", "gs://bucket"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("/", "/"),
        ("lake", "/here/lake"),
        ("file:lake", "/here/lake"),
        ("co:lon", "/here/co:lon"),
    ],
)
def test_a_path_has_one_spelling(given: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    assert files.checked(given) == path


@pytest.mark.parametrize(
    ("path", "words"), [(path, words) for words, paths in UNUSABLE.items() for path in paths]
)
def test_other_stores_databases_and_unusable_names_are_refused(path: str, words: str) -> None:
    with pytest.raises(PipelineError, match=words) as caught:
        files.checked(path)
    assert len(caught.value.sentence.splitlines()) == 1
    assert caught.value.code == 2


def test_files_that_this_process_does_not_see_are_an_error(tmp_path: Path) -> None:
    tmp_path.joinpath("part").write_bytes(b"")
    files.require_visible([f"{tmp_path}/part", "s3://bucket/archive/part"])
    with pytest.raises(PipelineError, match="Nothing was published"):
        files.require_visible([f"{tmp_path}/part", f"{tmp_path}/run-1/part"])


def refusal(path: Path) -> str:
    with pytest.raises(PipelineError) as caught:
        files.require_new(path, "the report")
    assert caught.value.code == 2
    return caught.value.sentence


def test_nothing_is_written_over(tmp_path: Path) -> None:
    tmp_path.joinpath("dangling").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "dangling", Path()):
        assert refusal(path).endswith("exists already: name a file that does not, for the report.")
    assert list(tmp_path.iterdir()) == [tmp_path / "dangling"]


def test_a_text_is_written_whole_whatever_a_killed_job_has_left(tmp_path: Path) -> None:
    tmp_path.joinpath(f".page.{os.getpid()}").touch()
    files.write_text(tmp_path / "page", "The report", ["te", "xt"])
    assert tmp_path.joinpath("page").read_text() == "text"
    with pytest.raises(PipelineError, match=r"The report cannot be written to .*name another"):
        files.write_text(tmp_path / "page", "The report", ["other"])
    assert {each.name for each in tmp_path.iterdir()} == {"page", f".page.{os.getpid()}"}


def test_a_place_that_cannot_be_written_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("file").touch()
    for parent in ("none", "file"):
        assert refusal(tmp_path / parent / "page").startswith("There is no directory")
    files.require_new(tmp_path / "page", "the report")
    assert files.require_new_directory(f"file://{tmp_path}/new/", "IDs") == f"{tmp_path}/new"
    with pytest.raises(PipelineError, match="no directory"):
        files.require_new_directory(str(tmp_path / "none" / "new"), "IDs")
    for path in (tmp_path / "file", tmp_path / "file" / "lake"):
        with pytest.raises(PipelineError, match=r"file is no directory") as caught:
            files.require_room(str(path))
        assert caught.value.code == 2
    files.require_room(str(tmp_path / "none" / "lake"))
    files.require_room("s3://bucket/lake")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write to everything
    assert refusal(tmp_path / "page").startswith("Nothing may be written to")
    with pytest.raises(PipelineError, match="Nothing may be written to"):
        files.require_room(str(tmp_path / "lake"))


TRACEBACK = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n'
OF_WORKER = f"{TRACEBACK}store.pipeline.errors.PipelineError: 3 The database is away.\n"
FULL = "No space is left on a disk"


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        (OF_WORKER, UNREACHABLE, "The database is away."),
        (f"{TRACEBACK}ValueError: odd\n", 1, "Spark gave up: ValueError: odd"),
        ("[SOME.ERROR] What was wrong.\nMore.\n\nJVM stacktrace:\nat x", 1, "What was wrong."),
        (f"{TRACEBACK}OSError: [Errno 28] No space left on device", 1, FULL),
        ("", 1, "Spark's JVM has ended"),
        ("java.io.IOException: No space left on device\n\tat x", 1, FULL),
    ],
)
def test_a_sentence_says_what_was_wrong(text: str, code: int, sentence: str) -> None:
    found = of_spark(Exception(text) if text else ConnectionRefusedError())
    assert (found.code, sentence in found.sentence) == (code, True)
    assert len(found.sentence.splitlines()) == 1


# Files as workers write them

WRITTEN_NAMES = ("ts", "payload", "meta", "parents")
Row = dict[str, Any]


def row(number: int, day: int, shard: int) -> Row:
    parents = [{"id": f"p{each}", "hint": None} for each in range(number % 3)]
    words = {f"h{word}": number + word for word in range(4)}
    return {
        **dict.fromkeys(ARROW.names),
        **words,
        "day": day,
        "shard": shard,
        "ts": number,
        "hash": bytes(32),
        "pubsub_topic": "/waku/2/rs/1/0",
        "content_topic": "c",
        "payload": bytes([number % 256]) * number,
        "parents": None if number % 5 else parents,
    }


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, ARROW)


@pytest.fixture
def rows() -> list[Row]:
    made = [row(number, 20_000 + number % 4, number % 7 - 1) for number in range(200)]
    return sorted(made, key=lambda each: (each["day"], each["shard"], each["ts"]))


def written(folder: Path, rows: list[Row], size: int) -> list[Row]:
    batches = (batch(rows[start : start + size]) for start in range(0, len(rows), size))
    made = [each for found in write_batches(str(folder), ARROW, PARTITIONS, batches) for each in
            found.cast(WRITTEN).to_pylist()]  # fmt: skip
    for each in made:
        assert pq.read_metadata(folder / each["path"]).num_rows == each["rows"]
    return made


def by_time(found: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
    return sorted(found, key=lambda each: int(each[1]["ts"]))


def test_every_row_is_in_the_file_of_its_directory_and_on_the_disk(
    tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[Path, int] = {}
    monkeypatch.setattr(files, "_sync", lambda place: synced.update({place: place.stat().st_size}))
    made = written(tmp_path / "messages", rows, 33)
    assert len(made) == 28
    found = [
        (str(Path(each["path"]).parent), row)
        for each in made
        for part in batches_of(f"{tmp_path}/messages/{each['path']}", WRITTEN_NAMES)
        for row in part.to_pylist()
    ]
    days = {20_000 + number: f"2024-10-0{4 + number}" for number in range(4)}
    wanted = [
        (f"day={days[each['day']]}/shard={each['shard']}", {n: each[n] for n in WRITTEN_NAMES})
        for each in rows
    ]
    assert by_time(found) == by_time(wanted)
    for each in made:
        file = tmp_path / "messages" / each["path"]
        assert synced[file] == file.stat().st_size == each["size_bytes"]
        assert set(file.parents[:3]) <= synced.keys()


def test_only_row_groups_that_may_hold_a_time_are_read(tmp_path: Path, rows: list[Row]) -> None:
    same = sorted(({**each, "day": 20_000, "shard": 0} for each in rows), key=lambda e: e["ts"])
    (file,) = written(tmp_path, same, 20)
    path = tmp_path / file["path"]
    assert pq.read_metadata(path).num_row_groups == 10, "a batch is a row group"
    start = pq.read_metadata(path).row_group(9).column(0).file_offset
    data = bytearray(path.read_bytes())
    data[start : start + 400] = b"\0" * 400
    path.write_bytes(data)
    found = [ts for part in batches_of(str(path), ["ts"], 45, 61) for ts in part["ts"].to_pylist()]
    assert found == list(range(45, 61))


# Rows of the database and messages

WITHOUT_SDS = tuple(name for name in NAMES if name not in SDS_COLUMNS)
ANY = Policy(max_drift_ns=None, publisher=False)


def plain_tail_bytes(ts: int, pubsub_topic: str, content_topic: str) -> int:
    """Compute the protobuf-encoded size of a tail without optional fields, in bytes."""
    topics = (pubsub_topic.encode(), content_topic.encode())
    return 1 + len(varint(2 * ts)) + sum(1 + len(varint(len(t))) + len(t) for t in topics)


def rows_of(batch: RecordBatch) -> pa.RecordBatch:
    """Build the rows that the query returns; a tail without optional fields is null."""
    topics = [batch.topics[key] for key in batch.topic_keys]
    tails = [
        None if 2**55 <= ts < 2**62 and len(tail) == plain_tail_bytes(ts, *names) else tail
        for ts, names, tail in zip(batch.timestamps, topics, batch.tails, strict=True)
    ]
    return pa.record_batch(
        {
            "ts": pa.array(batch.timestamps, pa.int64()),
            "hash": pa.array(batch.hashes, pa.binary()),
            "payload": pa.array(batch.payloads, pa.binary()),
            "pubsub_topic": pa.array([pubsub for pubsub, _ in topics], pa.string()),
            "content_topic": pa.array([content for _, content in topics], pa.string()),
            "tail": pa.array(tails, pa.binary()),
        }
    )


@given(st.lists(entries.filter(lambda item: not item.message.ephemeral), max_size=12))
def test_a_row_is_the_message_that_was_admitted(items: list[WakuMessageAndTopic]) -> None:
    batch = admit(items, NOW_NS, ANY).batch
    rows = _decoded(rows_of(batch), WITHOUT_SDS).to_pylist()
    again = admit([WakuMessageAndTopic.FromString(encoded(row)) for row in rows], NOW_NS, ANY).batch
    for name in ("hashes", "heads", "payloads", "tails"):
        assert getattr(again, name) == getattr(batch, name)


@pytest.mark.parametrize("tail", [b"", b"\x12\x01", b"\xff" * 9])
def test_a_tail_that_is_damaged_is_named_by_its_timestamp(tail: bytes) -> None:
    rows = rows_of(admit([entry(b"x", timestamp=NOW_NS)], NOW_NS, ANY).batch)
    with pytest.raises(PipelineError, match=f"the first with the timestamp {NOW_NS}:"):
        _decoded(rows.set_column(5, "tail", pa.array([tail], pa.binary())), WITHOUT_SDS)


@pytest.mark.parametrize(
    ("topic", "shard"),
    [
        ("/waku/2/rs/1/0", 0),
        ("/waku/2/rs/99/7", 7),
        ("/waku/2/rs/1/64", 0),
        ("/waku/2/rs/1/65535", 63),
        ("/waku/2/rs/1/007", NO_SHARD),
        ("/waku/2/default-waku/proto", NO_SHARD),
    ],
)
def test_strangers_cannot_make_a_directory_each(topic: str, shard: int) -> None:
    assert shard_of(topic) == shard


# Slices

hours = st.dictionaries(
    st.integers(0, 60).map(lambda hour: hour * HOUR_NS),
    st.integers(1, 3 * MIN_SLICE_ROWS).map(lambda count: Fingerprint(count, 1, 2, 3, 4)),
    max_size=20,
)


@given(hours, st.integers(1, 9), st.integers(0, 30), st.integers(31, 61))
def test_slices_are_the_hours_within_the_range_in_order(
    stored: dict[int, Fingerprint], tasks: int, first: int, end: int
) -> None:
    within = (first * HOUR_NS + 7, end * HOUR_NS - 5)
    groups = plan_slices(stored, within, tasks)
    assert len(groups) <= tasks
    assert all(groups)
    found = [each for group in groups for each in group]
    assert all(one.high_ns <= two.low_ns for one, two in pairwise(found))
    covered = sum(each.high_ns - each.low_ns for each in found)
    wanted = sum(max(0, min(hour + HOUR_NS, within[1]) - max(hour, within[0])) for hour in stored)
    assert covered == wanted
    assert all(each.low_ns // HOUR_NS * HOUR_NS in stored for each in found)
    most = max(MIN_SLICE_ROWS, -(-sum(each.messages for each in stored.values()) // tasks))
    assert all(each.rows < 2 * most for each in found)


@pytest.mark.parametrize(
    ("messages", "tasks", "slices"),
    [(9, 8, 1), (MIN_SLICE_ROWS * 3, 8, 3), (MAX_SLICE_ROWS * 10, 2, 10)],
)
def test_a_slice_is_neither_tiny_nor_huge(messages: int, tasks: int, slices: int) -> None:
    groups = plan_slices({0: Fingerprint(messages, 0, 0, 0, 0)}, (0, HOUR_NS), tasks)
    assert sum(map(len, groups)) == slices


@pytest.mark.parametrize(
    ("hours", "each", "most"),
    [
        (24, 1_000, 24_000),
        (24 * 30, 20_000, MIN_STEP_MESSAGES),
        (24 * 365, 60_000, MAX_STEP_MESSAGES),
        (3, 9_000_000, 9_000_000),
    ],
)
def test_steps_are_whole_hours_in_order_and_small_beside_all(
    hours: int, each: int, most: int
) -> None:
    stored = {hour * HOUR_NS: Fingerprint(each, 1, 2, 3, 4) for hour in reversed(range(hours))}
    steps = in_steps(stored)
    assert [start for step in steps for start in step] == sorted(stored)
    assert max(len(step) for step in steps) * each <= most + each
    assert in_steps({}) == []


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 80))
def test_shares_keep_the_order_and_come_near_their_size(sizes: list[int], share: int) -> None:
    groups = in_shares(sizes, int, share)
    assert [size for group in groups for size in group] == sizes
    assert all(groups)
    assert len(groups) <= max(bool(sizes), -(-sum(sizes) // share))
    assert all(sum(group) <= share + max(group) for group in groups)
    assert in_shares([16] * 8, int, 33) == [[16, 16]] * 4
