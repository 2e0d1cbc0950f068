"""The commands that sign the manifest of an archive, as docs/pipeline.md has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.pipeline.delta import DeltaArchive
from store.pipeline.manifest import read_manifest
from tests.deploy.tools import ROOT, run
from tests.support.pages import blocks, section

EXPORT, MAKE_KEY, SIGN, CHECK = blocks(
    section((ROOT / "docs" / "pipeline.md").read_text("utf-8"), "Signing the manifest"), "sh"
)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """Return a directory with the manifest of an archive, an exported copy, and a signature."""
    archive = DeltaArchive(str(tmp_path / "archive")).open_for_writing()
    for number in range(2):
        archive.commit([], [], as_of=("mine", number))
    for commands in (EXPORT, MAKE_KEY, SIGN):
        run("bash", "-euc", commands, cwd=tmp_path)
    return tmp_path


def test_what_was_signed_is_right(signed: Path) -> None:
    assert "Verified OK" in run("bash", "-euc", CHECK, cwd=signed)
    found = read_manifest(str(signed / "archive" / "manifest"))
    assert (len(found.digests), found.broken) == (3, [])
    names = [each.name for each in (signed / "copy").iterdir()]
    assert sorted(names) == [f"{number:020}.json" for number in range(3)]


def test_an_entry_that_was_changed_is_not_what_was_signed(signed: Path) -> None:
    last = signed / "archive" / "manifest" / f"{2:020}.json"
    last.write_bytes(last.read_bytes().replace(b"mine", b"else"))
    with pytest.raises(AssertionError, match="Verification failure"):
        run("bash", "-euc", CHECK, cwd=signed)


def test_what_is_signed_stands_for_what_came_before(signed: Path) -> None:
    first = signed / "archive" / "manifest" / f"{1:020}.json"
    first.write_bytes(first.read_bytes().replace(b"mine", b"else"))
    run("bash", "-euc", CHECK, cwd=signed)
    assert read_manifest(str(signed / "archive" / "manifest")).broken
