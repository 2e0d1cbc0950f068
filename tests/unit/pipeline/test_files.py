"""Files, paths and errors: written whole or not at all, and refused in one sentence."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.pipeline import files
from store.pipeline.errors import UNREACHABLE, PipelineError, of_spark, of_store, store_error
from store.pipeline.parquet import batches_of

STORES = "s3://BUCKET/PATH, gs://BUCKET/PATH or abfss://"
NO_DATABASE = "An archive is a directory, not a database"


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
    ("path", "words"),
    [
        *(
            (path, STORES)
            for path in ("hdfs://h:9000/x", "gcs://b/x", "http://h/x", "s3://", "gs:///")
        ),
        *((path, NO_DATABASE) for path in ("", "postgresql://host/name", "postgres://host/name")),
        *(
            (path, "choose a path without")
            for path in ("/a[b", "/a]b", "/a\\b", "/100%", "/a\nb", "s3a://b/\x7f")
        ),
    ],
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
        ("java.io.IOException: No space left on device\n\tat x", 1, FULL),
    ],
)
def test_a_sentence_says_what_was_wrong(text: str, code: int, sentence: str) -> None:
    found = of_spark(Exception(text))
    assert (found.code, sentence in found.sentence) == (code, True)
    assert len(found.sentence.splitlines()) == 1
