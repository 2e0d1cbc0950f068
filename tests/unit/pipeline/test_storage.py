"""Files of an archive: written whole or not at all, listed, moved and deleted."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.pipeline import objects, storage
from store.pipeline.errors import PipelineError, StoreError, of_store
from store.pipeline.scan import batches_of


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = f"file://{tmp_path}/a b/day=1/part-ж.parquet"
    table = pa.table({"ts": range(1_000), "h0": range(1_000)})
    with storage.for_writing(path) as sink:
        pq.write_table(table, sink)
    (file,) = tmp_path.glob("a b/day=1/*")
    (batch,) = batches_of(path, ["h0", "ts"])
    assert batch.to_pydict() == {"h0": list(range(1_000)), "ts": list(range(1_000))}
    assert b"".join(storage.chunks(path)) == file.read_bytes()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"none.parquet could not be read as a file of an arch"):
        list(batches_of(f"file://{tmp_path}/none.parquet", ["ts"]))


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = f"{tmp_path}/new/entry"
    storage.create(path, b"one")
    with pytest.raises(FileExistsError):
        storage.create(path, b"two")
    assert [each.path for each in storage.listed(str(tmp_path))] == ["new/entry"]
    storage.move_folder(str(tmp_path), "new", "old")
    assert Path(tmp_path, "old", "entry").read_bytes() == b"one"
    storage.delete(f"{tmp_path}/old", ["entry", "none"])
    assert storage.listed(str(tmp_path)) == storage.listed(f"{tmp_path}/none") == []


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files of the AWS tools, and no variable besides."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    config, keys = tmp_path / "config", tmp_path / "credentials"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    config.write_text("[default]\nregion = eu-1\n[profile other]\nregion = eu-2\noutput = json\n")
    keys.write_text("[other]\naws_access_key_id = k\naws_secret_access_key = %s\n")
    return config


def test_settings_come_from_the_profile_unless_the_environment_has_them(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert objects.settings("gs://b/x") == {}
    assert objects.settings("s3://b/x") == {"aws_region": "eu-1"}
    monkeypatch.setenv("AWS_PROFILE", "other")
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "%s"}
    assert objects.settings("s3://b/x") == {"aws_region": "eu-2", **keys}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert objects.delta_options("s3://b/x")["allow_http"] == "true"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_REGION", "eu-3")
    assert objects.settings("s3://b/x") == {"aws_endpoint_url": "http://127.0.0.1:9"}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    profile.write_text("no section")
    with pytest.raises(StoreError, match="cannot be read"):
        objects.settings("s3://b/x")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Generic S3 error: <Code>NoSuchBucket</Code>", "there is no such bucket"),
        ("PUT failed: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>", "refuses these cred"),
        ("error sending request for url (http://169.254.169.254/latest)", "no credentials were"),
        ("Error performing GET https://x in 5s: error sending request", "cannot be reached"),
    ],
)
def test_what_a_store_says_is_one_sentence(said: str, told: str) -> None:
    for error in (StoreError("s3://b/x", said), OSError(said)):
        sentence = of_store("s3://b/x", error).sentence
        assert told in sentence
        assert "Generic" not in sentence
    again = pickle.loads(pickle.dumps(StoreError("s3://b/x", said)))
    assert told in again.cause
