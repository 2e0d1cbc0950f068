"""The commands that sign the manifest of an archive, as docs/pipeline.md has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.pipeline.fingerprints import Fingerprint
from store.pipeline.manifest import Entry, FileNote, manifest_of
from tests.deploy.tools import ROOT, run
from tests.support.pages import blocks, section

EXPORT, MAKE_KEY, SIGN, CHECK = blocks(
    section((ROOT / "docs" / "pipeline.md").read_text("utf-8"), "Signing the manifest"), "sh"
)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A directory with the manifest of an archive, an exported copy, and a signature."""
    manifest = manifest_of(str(tmp_path / "archive"))
    for number in range(3):
        added = {f"file-{number}": FileNote(number, 1, "00" * 32)}
        manifest.append(Entry(number, added, [], {number: Fingerprint(1, 1, 2, 3, 4)}))
    for commands in (EXPORT, MAKE_KEY, SIGN):
        run("bash", "-euc", commands, cwd=tmp_path)
    return tmp_path


def test_what_was_signed_is_right(signed: Path) -> None:
    assert "VerifyReport OK" in run("bash", "-euc", CHECK, cwd=signed)
    found = manifest_of(str(signed / "archive"))
    assert (len(found.digests), found.broken) == (3, [])
    names = [each.name for each in (signed / "copy").iterdir()]
    assert sorted(names) == [f"{number:020}.json" for number in (1, 2, 3)]


def test_an_entry_that_was_changed_is_not_what_was_signed(signed: Path) -> None:
    last = signed / "archive" / "manifest" / f"{3:020}.json"
    last.write_bytes(last.read_bytes().replace(b"file-2", b"file-9"))
    with pytest.raises(AssertionError, match="Verification failure"):
        run("bash", "-euc", CHECK, cwd=signed)


def test_what_is_signed_stands_for_what_came_before(signed: Path) -> None:
    first = signed / "archive" / "manifest" / f"{1:020}.json"
    first.write_bytes(first.read_bytes().replace(b"file-0", b"file-9"))
    run("bash", "-euc", CHECK, cwd=signed)
    assert manifest_of(str(signed / "archive")).broken
