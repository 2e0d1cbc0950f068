"""Archives on object stores: real servers, from the first archive to an empty database.

The server of Google's API is a real S3 server behind Google's dialect. That of Azure's is Azurite,
where ``AZURITE`` names its program: `make check-azure` installs it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import AzureFileSystem
from pyspark.sql import SparkSession

from chaos.ports import ReservedPort
from store.pipeline import delta, files
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import audit_recorded
from store.pipeline.delta import DeltaArchive
from store.pipeline.diff import diff
from store.pipeline.errors import PipelineError
from store.pipeline.manifest import write_copy
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages
from store.pipeline.parquet import batches_of
from store.pipeline.repair import repair
from store.pipeline.restore import RestoreJob, restore
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.world import messages, more, plain, published, stored_ids, when
from tests.support.object_store import BUCKET, ObjectStore, google_dialect, running_store
from tests.support.polling import eventually

_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The key of every Azurite, which is public."""

_CONTAINER: Final = "archives"
URL: Final = f"abfss://{_CONTAINER}@{_ACCOUNT}.dfs.core.windows.net"


@contextmanager
def running_azurite(program: str, folder: Path, port: ReservedPort) -> Iterator[None]:
    """Yield a server with its data in a folder, and a container."""
    command = [
        *(program, "--blobHost", "127.0.0.1", "--blobPort", str(port.number)),
        *("--location", str(folder), "--silent", "--skipApiVersionCheck", "--disableTelemetry"),
    ]
    with (folder / "log").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        eventually(psutil.Process(server.pid).net_connections)  # it listens
        at = {"blob_storage_authority": port.address, "blob_storage_scheme": "http"}
        AzureFileSystem(account_name=_ACCOUNT, account_key=_KEY, **at).create_dir(_CONTAINER)
        yield
    finally:
        server.kill()
        server.wait()


# Each goes the whole way by itself, and a busy machine takes minutes for that.
pytestmark = pytest.mark.timeout(1_800)


@contextmanager
def opened(
    scheme: str, folder: Path, azure: ReservedPort, s3: ObjectStore, google_account: Path
) -> Iterator[str]:
    """Start the server of a scheme, and return the URL of a bucket."""
    if scheme == "abfss":
        with running_azurite(os.environ["AZURITE"], folder, azure):
            yield URL
        return
    with running_store(s3, folder), ExitStack() as stack:
        if scheme == "gs":
            port = ReservedPort()
            account = {"gcs_base_url": f"http://{port.address}", "disable_oauth": True}
            account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            google_account.write_text(json.dumps(account))
            stack.enter_context(google_dialect(port, s3.s3.address))
        files.create(f"{scheme}://{BUCKET}/made", b"")  # with the first object the bucket is made
        yield f"{scheme}://{BUCKET}"


OTHERS: Final = ["gs", *(["abfss"] if "AZURITE" in os.environ else [])]


@pytest.fixture(scope="module", params=["s3", *OTHERS])
def bucket(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    azure: ReservedPort,
    s3: ObjectStore,
    google_account: Path,
) -> Iterator[str]:
    """Open a bucket of each kind of store."""
    folder = tmp_path_factory.mktemp(request.param)
    with opened(request.param, folder, azure, s3, google_account) as found:
        yield found


@contextmanager
def few_requests(bucket: str, s3: ObjectStore, most: int) -> Iterator[None]:
    """Assert that a block makes at most ``most`` requests of an S3 server."""
    before = s3.requests() if bucket.startswith("s3:") else 0
    yield
    assert not bucket.startswith("s3:") or s3.requests() - before <= most


def archived_without_log(spark: SparkSession, url: str, path: str) -> DeltaArchive:
    """Return an archive at a URL that has lost its log and had it restored."""
    log = f"{path}/messages/_delta_log"
    files.delete(log, files.listed(log))
    with pytest.raises(PipelineError, match="log that names them"):
        archive(spark, ArchiveJob(url, DeltaArchive(path)))
    assert repair(spark, DeltaArchive(path)).commits_restored > 0
    return DeltaArchive(path).open()


@pytest.mark.parametrize("bucket", OTHERS, indirect=True)
def test_an_archive_is_written_repaired_and_read(
    spark: SparkSession, url: str, bucket: str
) -> None:
    path = f"{bucket}/history/one"
    first = archive(spark, ArchiveJob(url, DeltaArchive(path)))
    assert (first.messages, first.sound) == (len(messages()), True)
    sound = verify(spark, VerifyJob(archived_without_log(spark, url, path), url))
    assert (sound.faults, sound.messages) == ([], len(messages()))


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_an_archive_from_the_first_message_to_an_empty_database(
    spark: SparkSession, url: str, new_database: Callable[[], str], bucket: str, s3: ObjectStore
) -> None:
    path = f"{bucket}/history/one"
    first = archive(spark, ArchiveJob(url, DeltaArchive(path.replace("s3:", "s3a:"))))
    assert (first.messages, first.sound) == (len(messages()), True)
    more(url, *(plain(10_000 + number, when(number) + 1) for number in range(3)))
    second = archive(spark, ArchiveJob(url, DeltaArchive(path)))
    assert (second.messages, second.marked_archive) == (3, None)
    lake = archived_without_log(spark, url, path)
    # Each file is read as bytes and as rows, besides the log and the manifest.
    with few_requests(bucket, s3, 2 * len(lake.files()) + 40):
        sound = verify(spark, VerifyJob(lake, url))
    assert (sound.faults, sound.messages) == ([], len(messages()) + 3)
    found = audit_recorded(ArchiveMessages(spark, lake))
    assert audit_recorded(ArchiveMessages(spark, lake)).as_json() == found.as_json()
    empty = new_database()
    lacking = f"{bucket}/lacking"
    sides = ArchiveMessages(spark, lake), DatabaseMessages(spark, empty)
    assert diff(spark, *sides, output=lacking).second_lacks == len(stored_ids(url))
    with pytest.raises(PipelineError, match="exists already"):
        files.require_new_directory(lacking, "IDs")
    assert restore(spark, RestoreJob(lake, empty, diff=lacking)).new == len(stored_ids(url))
    assert stored_ids(empty) == stored_ids(url)


def test_of_two_writers_one_is_refused_by_the_store(
    bucket: str, archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let both commit, then copy a commit, then take the refusal of the store away."""
    path = f"{bucket}/two"
    for file in (*archived.rglob("*.json"), *map(Path, published(archived))):
        files.create(f"{path}/{file.relative_to(archived)}", file.read_bytes())
    one, other = DeltaArchive(path).open_for_writing(), DeltaArchive(path).open_for_writing()
    (first, *_) = one.files()
    one.commit([], [first])
    with pytest.raises(PipelineError, match="Another job has written to the archive"):
        other.commit([], [first])
    write_copy(f"{path}/manifest", 9, b"{}")
    with pytest.raises(PipelineError, match="Another job has written to"):
        write_copy(f"{path}/manifest", 9, b"[]")
    monkeypatch.setattr(delta, "create", lambda *_: None)
    with pytest.raises(PipelineError, match="does not support conditional writes"):
        DeltaArchive(path).open_for_writing()
    with pytest.raises(PipelineError, match="there is no such bucket") as caught:
        DeltaArchive(path.replace(BUCKET, "none-such")).require_usable()
    assert "\n" not in caught.value.sentence


def test_a_large_file_is_read_in_parts_and_as_a_whole(bucket: str, s3: ObjectStore) -> None:
    rows, groups = 40_000, 4
    payloads = [random.Random(number).randbytes(500) for number in range(rows)]
    table = pa.table({"ts": range(rows), "payload": payloads})
    path = f"{bucket}/large.parquet"
    system, key = files.file_system(path)
    with system.open_output_stream(key) as sink:
        pq.write_table(table, sink, row_group_size=rows // groups)
    whole = b"".join(files.chunks(path))
    assert len(whole) > 16 * 1024 * 1024, "it was written in several parts"
    assert pq.read_table(pa.BufferReader(whole)).equals(table)
    low = rows // groups
    with few_requests(bucket, s3, 4):
        (one,) = batches_of(path, ["ts"], low, low + 1)
    assert one["ts"].to_pylist() == [low]


@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("AWS_SECRET_ACCESS_KEY", "other", "refuses these credentials"),
        ("AWS_ACCESS_KEY_ID", "nobody", "refuses these credentials"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "cannot be reached"),
    ],
)
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
@pytest.mark.usefixtures("bucket")
def test_what_is_wrong_with_a_store_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, reported: str
) -> None:
    monkeypatch.setenv(name, value)
    # The bucket's own name, since an opened store is used again.
    path = f"s3://{name.lower().replace('_', '-')}/x"
    with pytest.raises(PipelineError, match=reported) as caught:
        DeltaArchive(path).require_usable()
    assert "\n" not in caught.value.sentence
    assert len(caught.value.sentence) < 300
