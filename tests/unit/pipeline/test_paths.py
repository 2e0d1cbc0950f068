"""Paths: what Spark and delta-rs are told is the same place, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.pipeline.errors import PipelineError
from store.pipeline.paths import (
    checked,
    for_spark,
    literally,
    require_new,
    require_new_directory,
    require_room,
    require_visible,
    spelled,
    spellings,
)


@pytest.mark.parametrize(
    ("given", "path", "spark"),
    [
        ("/archive/one/", "/archive/one", "file:///archive/one"),
        ("file:///archive/one", "/archive/one", "file:///archive/one"),
        ("file:/archive/one", "/archive/one", "file:///archive/one"),
        ("/co:lon/a b#c", "/co:lon/a b#c", "file:///co:lon/a b#c"),
        ("s3a://bucket/one//", "s3://bucket/one", "s3://bucket/one"),
        ("s3://bucket/one", "s3://bucket/one", "s3://bucket/one"),
        ("gs://bucket", "gs://bucket", "gs://bucket"),
        ("abfss://c@a.dfs.core.windows.net/x", *(2 * ("abfss://c@a.dfs.core.windows.net/x",))),
        ("/", "/", "file:///"),
    ],
)
def test_a_path_is_the_same_place_for_both(given: str, path: str, spark: str) -> None:
    found = checked(given)
    assert found == path
    assert for_spark(found) == spark


STORES = "s3://BUCKET/PATH, gs://BUCKET/PATH or abfss://"
NO_DATABASE = "An archive is a directory, not a database"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        *(
            (path, STORES)
            for path in ("hdfs://h:9000/x", "gcs://b/x", "http://h/x", "s3://", "gs:///")
        ),
        *((path, NO_DATABASE) for path in ("", "postgresql://host/name", "postgres://host/name")),
    ],
)
def test_another_kind_of_store_and_a_database_are_refused(path: str, words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        checked(path)


def test_a_store_is_known_by_all_that_it_was_called(tmp_path: Path) -> None:
    assert spellings("s3://b/x") == ["s3://b/x", "s3a://b/x", "s3n://b/x"]
    assert [spelled(each) for each in spellings("s3://b/x")] == ["s3://b/x"] * 3
    assert spellings(str(tmp_path)) == [str(tmp_path)]


def test_a_path_of_this_machine_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked("lake") == checked("file:lake") == str(tmp_path / "lake")
    assert checked("co:lon") == str(tmp_path / "co:lon")


@pytest.mark.parametrize("path", ["/a[b", "/a]b", "/a\\b", "/100%", "/a\nb", "s3a://b/\x7f"])
def test_what_delta_cannot_name_is_refused(path: str) -> None:
    with pytest.raises(PipelineError, match="choose a path without") as caught:
        checked(path, "The output")
    assert caught.value.sentence.startswith("The output cannot be in")
    assert len(caught.value.sentence.splitlines()) == 1
    assert caught.value.code == 2


def test_what_spark_would_take_for_a_pattern_means_itself() -> None:
    assert literally("/plain/day=3/ü") == "/plain/day=3/ü"
    assert literally("/st*r/{a,b}?") == "/st\\*r/\\{a,b\\}\\?"


def test_files_that_this_process_does_not_see_are_told(tmp_path: Path) -> None:
    tmp_path.joinpath("part").write_bytes(b"")
    require_visible(str(tmp_path), ["part"])
    require_visible("s3://bucket/archive", ["part"])
    with pytest.raises(PipelineError, match="Nothing was published"):
        require_visible(str(tmp_path), ["part", "run-1/part"])


def refusal(path: Path) -> str:
    with pytest.raises(PipelineError) as caught:
        require_new(path, "the report")
    assert caught.value.code == 2
    return caught.value.sentence


def test_nothing_is_written_over(tmp_path: Path) -> None:
    tmp_path.joinpath("dangling").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "dangling", Path()):
        assert refusal(path).endswith("exists already: name a file that does not, for the report.")
    assert list(tmp_path.iterdir()) == [tmp_path / "dangling"]


def test_where_nothing_can_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("file").touch()
    for parent in ("none", "file"):
        assert refusal(tmp_path / parent / "page").startswith("There is no directory")
    assert "File name too long" in refusal(tmp_path / ("x" * 300))
    require_new(tmp_path / "page", "the report")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write to everything
    assert refusal(tmp_path / "page").startswith("Nothing may be written to")
    with pytest.raises(PipelineError, match="Nothing may be written to"):
        require_room(str(tmp_path / "lake"))


def test_a_new_directory_is_one_that_spark_can_be_told(tmp_path: Path) -> None:
    assert require_new_directory(f"file://{tmp_path}/new/", "IDs") == f"{tmp_path}/new"
    assert require_new_directory("s3a://bucket/new", "IDs") == "s3://bucket/new"
    with pytest.raises(PipelineError, match="no directory"):
        require_new_directory(str(tmp_path / "none" / "new"), "IDs")
    with pytest.raises(PipelineError, match="not a database"):
        require_new_directory("", "IDs")


def test_an_archive_cannot_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "lake"):
        with pytest.raises(PipelineError, match=f"{file} is no directory") as caught:
            require_room(str(path))
        assert caught.value.code == 2
    require_room(str(tmp_path / "none" / "lake"))
    require_room("s3://bucket/lake")
