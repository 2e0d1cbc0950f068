"""Drawings in the documentation fetch nothing when they are looked at."""

import re
from xml.etree import ElementTree

import pytest

from tools.rooms import ROOT

DRAWINGS = sorted((ROOT / "docs/images").glob("*.svg"))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_fetches_nothing(drawing: object) -> None:
    text = (ROOT / "docs/images" / str(drawing)).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_overview_names_the_parts() -> None:
    path = ROOT / "docs/images/overview.svg"
    assert path.stat().st_size < 60_000
    words = "".join(ElementTree.parse(path).getroot().itertext()).replace("\xa0", " ")
    parts = ("SDS", "store node", "Postgres", "archive", "gossip", "reconciliation")
    assert [part for part in parts if part not in words] == []
