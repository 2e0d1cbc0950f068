"""An archive on an object store: a real S3 server, from the first archive to an empty database."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.db.schema.migrate import upgrade
from store.pipeline import delta, files
from store.pipeline.archive import ArchiveJob, Archiver, ArchiveReport, archive
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.database import connected, lock_archiving
from store.pipeline.delta import DeltaArchive
from store.pipeline.diff import diff
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages
from store.pipeline.parquet import KEY, batches_of, read_rows
from store.pipeline.repair import RepairJob, repair
from store.pipeline.restore import RestoreJob, restore
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.test_restore import pruned
from tests.integration.pipeline.world import held, marks, messages, more, plain, when
from tests.integration.pipeline.writers import refuse_one_of_two_writers
from tests.support.object_store import ObjectStore, running_store
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, profile: Path) -> Iterator[ObjectStore]:
    """A server that this process and the workers reach by their profile."""
    with running_store(tmp_path_factory.mktemp("s3")) as found:
        profile.write_text(found.profile())
        files.create(f"{found.url}/made", b"")  # with the first object the server makes a bucket
        yield found
        profile.unlink()


def archived(spark: SparkSession, url: str, path: str) -> ArchiveReport:
    return archive(spark, ArchiveJob(url, DeltaArchive(path)))


def test_an_archive_on_s3_from_the_first_message_to_an_empty_database(
    spark: SparkSession,
    url: str,
    postgres: PostgresServer,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = f"{store.url}/history/one"
    first = archived(spark, url, path.replace("s3:", "s3a:"))
    assert (first.messages, first.sound) == (len(messages()), True)
    assert sum(marks(url).values()) >= len(messages()) - 200, "all hours but the last ones"

    late = [plain(10_000 + number, when(number) + 1) for number in range(3)]
    more(url, *late)
    monkeypatch.setattr(delta, "COMPACT_AT_FILES", 2)
    second = archived(spark, url, path)
    assert (second.messages, second.compacted_files, second.marked_archive) == (3, 4, None)

    sound = verify(spark, VerifyJob(DeltaArchive(path), url))
    assert (sound.faults, sound.messages) == ([], len(messages()) + 3)
    assert diff(
        spark, ArchiveMessages(spark, DeltaArchive(path)), DatabaseMessages(spark, url, "it")
    ).sound

    files.move_folder(path, "messages/_delta_log", "gone")
    with pytest.raises(PipelineError, match="log that names them"):
        archived(spark, url, path)
    assert repair(spark, RepairJob(DeltaArchive(path))).commits_restored > 0
    assert verify(spark, VerifyJob(DeltaArchive(path), url)).sound

    everything = held(url)
    assert asyncio.run(pruned(url, 1)), "retention drops what the archive on the store holds"
    assert held(url) < everything
    empty = postgres.url(postgres.create_database())
    upgrade(empty)
    lacking = f"{store.url}/lacking"
    found = diff(
        spark,
        ArchiveMessages(spark, DeltaArchive(path)),
        DatabaseMessages(spark, empty, "it"),
        output=lacking,
    )
    assert (found.first_lacks, found.second_lacks) == (0, len(everything))
    assert restore(spark, RestoreJob(DeltaArchive(path), empty, diff=lacking)).new == len(
        everything
    )
    assert held(empty) == everything
    assert restore(spark, RestoreJob(DeltaArchive(path), url)).messages == len(everything)
    assert held(url) == everything


def test_what_is_published_goes_to_the_store_and_is_read_from_it(
    spark: SparkSession, url: str, store: ObjectStore
) -> None:
    path = f"{store.url}/followed"
    job = ArchiveJob(url, DeltaArchive(path))
    with connected(url) as connection:
        lock_archiving(connection)
        archiver = Archiver(spark, job, connection)
        already = archiver.step().messages
        more(url, plain(90_000, when(5)))
        assert archiver.step().messages == already + 1
    followed = ArchiveMessages(spark, DeltaArchive(path)).messages(("ts",), when(5), when(5) + 1)
    assert followed.count() == 2
    output = f"{store.url}/found"
    found = audit(spark, AuditJob(ArchiveMessages(spark, DeltaArchive(path)), output=output))
    read = read_rows(spark, f"{output}/missing", ("channel",))
    assert read.count() == found.counts["missing"] > 0
    with pytest.raises(PipelineError, match="exists already"):
        audit(spark, AuditJob(ArchiveMessages(spark, DeltaArchive(path)), output=output))


def test_of_two_writers_one_is_refused_by_the_store(
    spark: SparkSession, url: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{store.url}/two"
    archived(spark, url, path)
    refuse_one_of_two_writers(path, monkeypatch)


def test_requests_are_few(spark: SparkSession, url: str, store: ObjectStore) -> None:
    path = f"{store.url}/few"
    written = archived(spark, url, path).files
    assert written >= 8

    def asked(work: Callable[[], object]) -> int:
        before = store.requests()
        work()
        return store.requests() - before

    log_and_manifest = 40
    each_file_as_bytes_and_as_rows = 2 * written
    requests = asked(lambda: verify(spark, VerifyJob(DeltaArchive(path))))
    assert requests <= each_file_as_bytes_and_as_rows + log_and_manifest


def test_a_large_file_is_read_in_parts_and_as_a_whole(store: ObjectStore) -> None:
    rows, groups = 40_000, 4
    table = pa.table(
        {
            "ts": range(rows),
            **{f"h{place}": range(place, rows + place) for place in range(4)},
            "payload": [random.Random(number).randbytes(500) for number in range(rows)],
        }
    )
    path = f"{store.url}/large.parquet"
    with files.for_writing(path) as sink:
        pq.write_table(table, sink, row_group_size=rows // groups)
    whole = b"".join(files.chunks(path))
    assert len(whole) > 16 * 1024 * 1024, "it was written in several parts"
    assert pq.read_table(pa.BufferReader(whole)).equals(table)
    before = store.requests()
    found = pa.Table.from_batches(batches_of(path, KEY))
    assert store.requests() - before <= 3 + groups
    assert found.equals(table.select(KEY).cast(found.schema))
    low, high = rows // groups, rows // groups + 1
    (one,) = batches_of(path, ["ts"], low, high)
    assert one["ts"].to_pylist() == [low]


@pytest.mark.parametrize(
    ("changed", "path", "told"),
    [
        ({"aws_secret_access_key": "other"}, "s3://archives/x", "refuses these credentials"),
        ({"aws_access_key_id": "nobody"}, "s3://archives/x", "refuses these credentials"),
        ({}, "s3://no-such-bucket/x", "there is no such bucket"),
        ({"endpoint_url": "http://127.0.0.1:9"}, "s3://archives/y", "cannot be reached"),
    ],
)
def test_what_is_wrong_with_a_store_is_one_sentence(
    store: ObjectStore, profile: Path, changed: dict[str, str], path: str, told: str
) -> None:
    profile.write_text(store.profile(**changed))
    try:
        with pytest.raises(PipelineError, match=told) as caught:
            DeltaArchive(path).require_usable()
    finally:
        profile.write_text(store.profile())
    assert "\n" not in caught.value.sentence
    assert len(caught.value.sentence) < 300
