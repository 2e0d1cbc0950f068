"""The manifest of an archive without Spark: a chain, in which nothing goes unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.pipeline import storage
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import Fingerprint
from store.pipeline.manifest import Entry, FileNote, Manifest, lacking, manifest_of

HOUR = 3_600_000_000_000
ONE, TWO = Fingerprint(1, 1, -2, 3, -4), Fingerprint(2, 5, 6, 7, 8)


def line(version: str = "1", hours: str = "[]") -> bytes:
    """An entry with values that no job writes."""
    told = f'"number":1,"before":"{"0" * 64}","version":{version},"hours":{hours}'
    return f'{{{told},"added":[],"removed":[]}}'.encode()


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Of an archive with two files, which were made one."""
    found = manifest_of(str(tmp_path))
    assert not found
    found.append(Entry(1, {"a": FileNote(0, 1, "aa"), "b": FileNote(0, 1, "bb")}, [], {0: ONE}))
    found.append(Entry(2, {"c": FileNote(0, 2, "cc")}, ["a", "b"], {0: TWO, HOUR: ONE}))
    found.append(Entry(3, {"ü\n": FileNote(1, 1, "dd")}, [], {24 * HOUR: ONE}))
    return found


def test_what_was_read_before_is_not_read_again(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = manifest_of(str(tmp_path))
    manifest.append(Entry(4, {"e": FileNote(2, 1, "ee")}, ["c"], {}))
    read: list[str] = []
    chunks = storage.chunks

    def noted(path: str) -> Iterator[bytes]:
        read.append(Path(path).name)
        return chunks(path)

    monkeypatch.setattr(storage, "chunks", noted)
    assert manifest_of(str(tmp_path), known) == manifest
    assert read == [f"{number:020}.json" for number in (3, 4)], "the last one, and what is new"


def test_what_is_not_as_it_was_is_read_as_a_whole(manifest: Manifest, tmp_path: Path) -> None:
    folder = tmp_path / "manifest"
    (folder / f"{3:020}.json").write_bytes((folder / f"{2:020}.json").read_bytes())
    assert manifest_of(str(tmp_path), manifest).broken == manifest_of(str(tmp_path)).broken != []
    for each in folder.iterdir():
        each.unlink()
    assert not manifest_of(str(tmp_path), manifest)


def test_what_is_written_is_read(manifest: Manifest, tmp_path: Path) -> None:
    assert manifest_of(str(tmp_path)) == manifest
    assert manifest.files.keys() == {"c", "ü\n"}
    assert manifest.hours == {0: TWO, HOUR: ONE, 24 * HOUR: ONE}
    assert (manifest.version, manifest.broken) == (3, [])
    assert [each.name for each in sorted((tmp_path / "manifest").iterdir())] == [
        f"{number:020}.json" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (None, "1.json is missing"),
        (b"", "1.json cannot be read"),
        (b"[]", "1.json cannot be read"),
        (b'{"added":[[' * 99, "1.json cannot be read"),
        (b"[" * 100_000, "1.json cannot be read"),
        (b"\xff", "1.json cannot be read"),
        (line(version="Infinity"), "1.json cannot be read"),
        (line(hours="[[1000000000000000000000000000000,1,1,1,1,1]]"), "1.json cannot be read"),
    ],
)
def test_damage_breaks_the_chain(
    manifest: Manifest, tmp_path: Path, damage: bytes | None, told: str
) -> None:
    first = tmp_path / "manifest" / f"{1:020}.json"
    first.unlink() if damage is None else first.write_bytes(damage)
    found = manifest_of(str(tmp_path))
    assert any(told in line for line in found.broken)
    assert found.hours[24 * HOUR] == ONE
    assert not found.continues(manifest)


def test_a_changed_entry_does_not_fit_the_next(manifest: Manifest, tmp_path: Path) -> None:
    second = tmp_path / "manifest" / f"{2:020}.json"
    second.write_bytes(second.read_bytes().replace(b'"cc"', b'"ce"'))
    assert manifest_of(str(tmp_path)).broken == [
        f"{3:020}.json does not follow the entry before it"
    ]
    assert manifest.digests[:1] == manifest_of(str(tmp_path)).digests[:1]


def test_a_cut_end_is_seen_beside_a_copy(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "manifest" / f"{3:020}.json").unlink()
    cut = manifest_of(str(tmp_path))
    assert cut.broken == []
    assert manifest.continues(cut)
    assert not cut.continues(manifest)


def test_an_entry_of_another_job_is_not_replaced(manifest: Manifest, tmp_path: Path) -> None:
    other = manifest_of(str(tmp_path))
    other.append(Entry(4, {}, [], {}))
    with pytest.raises(PipelineError, match="Another job has written"):
        manifest.append(Entry(5, {}, [], {}))
    assert manifest_of(str(tmp_path)).version == 4


def test_a_log_that_was_made_anew_begins_to_count_again(manifest: Manifest, tmp_path: Path) -> None:
    manifest.append(Entry(0, {"a": FileNote(0, 1, "aa")}, [], {}, repaired=True))
    found = manifest_of(str(tmp_path))
    assert (found.version, found.gone, found.broken) == (0, {"b"}, [])
    manifest.append(Entry(1, {}, [], {}))
    assert manifest_of(str(tmp_path)).version == 1


def test_fewer_messages_or_as_many_others_are_lacking() -> None:
    wanted = {0: TWO, 1: TWO, 2: TWO, 3: TWO, 4: ONE}
    held = {0: TWO, 1: ONE, 2: Fingerprint(2, 0, 0, 0, 0), 4: TWO}
    assert lacking(wanted, held) == [1, 2, 3]
