"""Archives by ``gs://`` and ``abfss://`` are what they are by ``s3://``.

The server of Google's API is a real S3 server behind Google's dialect. That of Azure's is Azurite,
where ``AZURITE`` names its program: `make check-azure` installs it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.db.schema.migrate import upgrade
from store.pipeline import delta, files
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.repair import RepairJob, repair
from store.pipeline.restore import RestoreJob, restore
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.world import held, messages, more, plain, when
from tests.integration.pipeline.writers import refuse_one_of_two_writers
from tests.support import azurite
from tests.support.google_dialect import google_dialect
from tests.support.object_store import BUCKET, running_store
from tests.support.ports import HeldPort
from tests.support.postgres import PostgresServer

_PART: Final = 1024 * 1024

# Each goes the whole way by itself, and a busy machine takes minutes for that.
pytestmark = pytest.mark.timeout(1_800)


@pytest.fixture(scope="module", params=["gs", *(["abfss"] if "AZURITE" in os.environ else [])])
def root(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    azure: HeldPort,
    profile: Path,
) -> Iterator[str]:
    """A bucket that this process and the workers reach."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "abfss":
        with azurite.running_azurite(os.environ["AZURITE"], folder, azure):
            yield azurite.URL
        return
    port = HeldPort()
    account = {"gcs_base_url": f"http://{port.address}", "disable_oauth": True}
    account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    profile.with_name("google.json").write_text(json.dumps(account))
    with running_store(folder) as store, google_dialect(port, store.s3.address):
        files.create(f"gs://{BUCKET}/made", b"")
        yield f"gs://{BUCKET}"


def test_an_archive_from_the_first_message_to_an_empty_database(
    spark: SparkSession,
    url: str,
    postgres: PostgresServer,
    root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = f"{root}/history/one"
    assert archive(spark, ArchiveJob(url, DeltaArchive(path))).messages == len(messages())
    monkeypatch.setattr(delta, "COMPACT_AT_FILES", 2)
    more(url, plain(10_000, when(0) + 1))
    second = archive(spark, ArchiveJob(url, DeltaArchive(path)))
    assert (second.messages, second.compacted_files > 0) == (1, True)
    files.move_folder(path, "messages/_delta_log", "gone")
    assert repair(spark, RepairJob(DeltaArchive(path))).commits_restored > 0
    sound = verify(spark, VerifyJob(DeltaArchive(path), url))
    assert (sound.faults, sound.messages) == ([], len(messages()) + 1)
    lake = DeltaArchive(path).open()
    found = audit(spark, AuditJob(ArchiveMessages(spark, lake), record=lake))
    again = audit(spark, AuditJob(ArchiveMessages(spark, lake), record=lake))
    assert again.as_json() == found.as_json()
    empty = postgres.url(postgres.create_database())
    upgrade(empty)
    restore(spark, RestoreJob(DeltaArchive(path), empty))
    assert held(empty) == held(url)


def test_the_store_refuses_one_of_two_writers(
    spark: SparkSession, url: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{root}/two"
    archive(spark, ArchiveJob(url, DeltaArchive(path)))
    refuse_one_of_two_writers(path, monkeypatch)


def test_files_of_several_parts_and_buckets_that_are_not_there(root: str) -> None:
    path = f"{root}/large"
    table = pa.table({"payload": [random.Random(part).randbytes(_PART) for part in range(20)]})
    with files.for_writing(path) as sink:
        pq.write_table(table, sink)
    size = sum(map(len, files.chunks(path)))
    assert size > 20 * _PART
    with files.for_reading(path) as source:
        assert source.size() == size
        assert pq.read_table(source).equals(table)
    with pytest.raises(PipelineError, match="there is no such bucket") as caught:
        DeltaArchive(path.replace(BUCKET, "none-such")).require_usable()
    assert "\n" not in caught.value.sentence
