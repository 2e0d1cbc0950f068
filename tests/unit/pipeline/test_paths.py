"""Paths: what Spark and delta-rs are told is the same place, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.paths import checked, for_delta, for_spark, literally, require_visible


@pytest.mark.parametrize(
    ("given", "path", "spark", "delta"),
    [
        ("/archive/one/", "/archive/one", "file:///archive/one", "/archive/one"),
        ("file:///archive/one", "/archive/one", "file:///archive/one", "/archive/one"),
        ("file:/archive/one", "/archive/one", "file:///archive/one", "/archive/one"),
        ("/co:lon/a b#c", "/co:lon/a b#c", "file:///co:lon/a b#c", "/co:lon/a b#c"),
        ("s3a://bucket/one//", "s3a://bucket/one", "s3a://bucket/one", "s3://bucket/one"),
        ("hdfs://host:9000/one", "hdfs://host:9000/one", "hdfs://host:9000/one", None),
        ("/", "/", "file:///", "/"),
    ],
)
def test_a_path_is_the_same_place_for_both(
    given: str, path: str, spark: str, delta: str | None
) -> None:
    found = checked(given)
    assert found == path
    assert for_spark(found) == spark
    assert for_delta(found) == (found if delta is None else delta)


def test_a_path_of_this_machine_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked("lake") == checked("file:lake") == str(tmp_path / "lake")
    assert checked("co:lon") == str(tmp_path / "co:lon")


@pytest.mark.parametrize("path", ["", "postgresql://host/name", "postgres://host/name"])
def test_a_database_is_no_path(path: str) -> None:
    with pytest.raises(PipelineError, match="An archive is a directory, not a database"):
        checked(path)


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
    require_visible("s3a://bucket/archive", ["part"])
    with pytest.raises(PipelineError, match="Nothing was published"):
        require_visible(str(tmp_path), ["part", "run-1/part"])
