"""Drawings in the documentation fetch nothing when they are looked at."""

import re
from xml.etree import ElementTree

import pytest

from tools.rooms import ROOT

MAX_DRAWING_BYTES = 60_000
DRAWINGS = sorted((ROOT / "docs/images").glob("*.svg"))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_fetches_nothing(drawing: object) -> None:
    text = (ROOT / "docs/images" / str(drawing)).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_overview_names_the_parts() -> None:
    words = words_of("overview.svg")
    parts = ("SDS", "store node", "Postgres", "archive", "gossip", "reconciliation")
    assert [part for part in parts if part not in words] == []


def words_of(name: str) -> str:
    """Return the text of a drawing, without its marks."""
    path = ROOT / "docs/images" / name
    assert path.stat().st_size < MAX_DRAWING_BYTES
    text = "".join(ElementTree.parse(path).getroot().itertext())
    return text.replace("\xa0", " ")
