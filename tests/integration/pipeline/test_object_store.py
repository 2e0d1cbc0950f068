"""Archives on object stores: real servers, from the first archive to an empty database.

The server of Google's API is a real S3 server behind Google's dialect. That of Azure's is Azurite,
where ``AZURITE`` names its program: `make check-azure` installs it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.db.schema.migrate import upgrade
from store.pipeline import delta, files
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import AuditJob, audit, require_outputs
from store.pipeline.delta import CommitMetadata, DeltaArchive, read_manifest
from store.pipeline.diff import diff
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages
from store.pipeline.parquet import KEY, batches_of, files_with, read_rows
from store.pipeline.repair import RepairJob, repair
from store.pipeline.restore import RestoreJob, restore
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.world import messages, more, plain, published, stored_ids, when
from tests.support import azurite
from tests.support.google_dialect import google_dialect
from tests.support.object_store import BUCKET, ObjectStore, running_store
from tests.support.ports import HeldPort
from tests.support.postgres import PostgresServer

# Each goes the whole way by itself, and a busy machine takes minutes for that.
pytestmark = pytest.mark.timeout(1_800)


Bucket = tuple[str, ObjectStore | None]
"""A bucket that this process and the workers reach: its URL, and the server if it speaks S3."""


@contextmanager
def opened(scheme: str, folder: Path, azure: HeldPort, profile: Path) -> Iterator[Bucket]:
    """Start the server of a scheme, and have the profile name it."""
    if scheme == "abfss":
        with azurite.running_azurite(os.environ["AZURITE"], folder, azure):
            yield azurite.URL, None
        return
    with running_store(folder) as store:
        if scheme == "s3":
            profile.write_text(store.profile())
            files.create(f"{store.url}/made", b"")  # with the first object the bucket is made
            yield store.url, store
            profile.unlink()
            return
        port = HeldPort()
        account = {"gcs_base_url": f"http://{port.address}", "disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        profile.with_name("google.json").write_text(json.dumps(account))
        with google_dialect(port, store.s3.address):
            files.create(f"gs://{BUCKET}/made", b"")
            yield f"gs://{BUCKET}", None


@pytest.fixture(
    scope="module", params=["s3", "gs", *(["abfss"] if "AZURITE" in os.environ else [])]
)
def bucket(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    azure: HeldPort,
    profile: Path,
) -> Iterator[Bucket]:
    """Open a bucket of each kind of store."""
    folder = tmp_path_factory.mktemp(request.param)
    with opened(request.param, folder, azure, profile) as found:
        yield found


def test_an_archive_from_the_first_message_to_an_empty_database(
    spark: SparkSession,
    url: str,
    postgres: PostgresServer,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, s3 = bucket
    path = f"{root}/history/one"
    first = archive(spark, ArchiveJob(url, DeltaArchive(path.replace("s3:", "s3a:"))))
    assert (first.messages, first.sound) == (len(messages()), True)
    monkeypatch.setattr(delta, "COMPACT_AT_FILES", 2)
    more(url, *(plain(10_000 + number, when(number) + 1) for number in range(3)))
    second = archive(spark, ArchiveJob(url, DeltaArchive(path)))
    assert (second.messages, second.compacted_files, second.marked_archive) == (3, 4, None)
    files.move_folder(path, "messages/_delta_log", "gone")
    with pytest.raises(PipelineError, match="log that names them"):
        archive(spark, ArchiveJob(url, DeltaArchive(path)))
    assert repair(spark, RepairJob(DeltaArchive(path))).commits_restored > 0
    lake = DeltaArchive(path).open()
    before = s3.requests() if s3 is not None else 0
    sound = verify(spark, VerifyJob(lake, url))
    assert (sound.faults, sound.messages) == ([], len(messages()) + 3)
    if s3 is not None:
        # Each file is read as bytes and as rows, besides the log and the manifest.
        assert s3.requests() - before <= 2 * len(lake.files()) + 40
    output = f"{root}/found"
    found = audit(spark, AuditJob(ArchiveMessages(spark, lake), output=output, record=lake))
    missing = read_rows(spark, files_with(f"{output}/missing", ("channel",)), ("channel",))
    assert missing.count() == found.counts["missing"] > 0
    again = audit(spark, AuditJob(ArchiveMessages(spark, lake), record=lake))
    assert {**again.as_json(), "output": output} == found.as_json()
    with pytest.raises(PipelineError, match="exists already"):
        require_outputs(output, None)
    empty = postgres.url(postgres.create_database())
    upgrade(empty)
    lacking = f"{root}/lacking"
    sides = ArchiveMessages(spark, lake), DatabaseMessages(spark, empty, "it")
    assert diff(spark, *sides, output=lacking).second_lacks == len(stored_ids(url))
    assert restore(spark, RestoreJob(lake, empty, diff=lacking)).new == len(stored_ids(url))
    assert stored_ids(empty) == stored_ids(url)


def test_of_two_writers_one_is_refused_by_the_store(
    bucket: Bucket, archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let both commit, then copy a commit, then take the refusal of the store away."""
    path = f"{bucket[0]}/two"
    for file in (*archived.rglob("*.json"), *map(Path, published(archived))):
        files.create(f"{path}/{file.relative_to(archived)}", file.read_bytes())
    one, other = DeltaArchive(path).open_for_writing(), DeltaArchive(path).open_for_writing()
    (first, *_) = one.files()
    one.commit([], [first], CommitMetadata())
    with pytest.raises(PipelineError, match="Another job has written to the archive"):
        other.commit([], [first], CommitMetadata())
    ahead, behind = (read_manifest(f"{path}/manifest") for _ in range(2))
    ahead.append(b"{}")
    with pytest.raises(PipelineError, match="Another job has written to"):
        behind.append(b"[]")
    monkeypatch.setattr(delta, "create", lambda *_: None)
    with pytest.raises(PipelineError, match="does not support conditional writes"):
        DeltaArchive(path).open_for_writing()


def test_a_large_file_is_read_in_parts_and_as_a_whole(bucket: Bucket) -> None:
    rows, groups = 40_000, 4
    table = pa.table(
        {
            "ts": range(rows),
            **{f"h{place}": range(place, rows + place) for place in range(4)},
            "payload": [random.Random(number).randbytes(500) for number in range(rows)],
        }
    )
    root, s3 = bucket
    path = f"{root}/large.parquet"
    with files.for_writing(path) as sink:
        pq.write_table(table, sink, row_group_size=rows // groups)
    whole = b"".join(files.chunks(path))
    assert len(whole) > 16 * 1024 * 1024, "it was written in several parts"
    assert pq.read_table(pa.BufferReader(whole)).equals(table)
    before = s3.requests() if s3 is not None else 0
    found = pa.Table.from_batches(batches_of(path, KEY))
    if s3 is not None:
        assert s3.requests() - before <= 3 + groups
    assert found.equals(table.select(KEY).cast(found.schema))
    low, high = rows // groups, rows // groups + 1
    (one,) = batches_of(path, ["ts"], low, high)
    assert one["ts"].to_pylist() == [low]
    with pytest.raises(PipelineError, match="there is no such bucket") as caught:
        DeltaArchive(path.replace(BUCKET, "none-such")).require_usable()
    assert "\n" not in caught.value.sentence


@pytest.mark.parametrize(
    ("changed", "path", "reported"),
    [
        ({"aws_secret_access_key": "other"}, "s3://archives/x", "refuses these credentials"),
        ({"aws_access_key_id": "nobody"}, "s3://archives/x", "refuses these credentials"),
        ({"endpoint_url": "http://127.0.0.1:9"}, "s3://archives/y", "cannot be reached"),
    ],
)
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_what_is_wrong_with_a_store_is_one_sentence(
    bucket: Bucket, profile: Path, changed: dict[str, str], path: str, reported: str
) -> None:
    _, s3 = bucket
    assert s3 is not None
    profile.write_text(s3.profile(**changed))
    try:
        with pytest.raises(PipelineError, match=reported) as caught:
            DeltaArchive(path).require_usable()
    finally:
        profile.write_text(s3.profile())
    assert "\n" not in caught.value.sentence
    assert len(caught.value.sentence) < 300
