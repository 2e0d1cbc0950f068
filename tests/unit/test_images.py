"""Drawings in the documentation fetch nothing when they are looked at."""

import re
from xml.etree import ElementTree

import pytest

from store.demo.report import LEGEND
from store.demo.story import LOST, SCRIPT
from tests.layering.sources import ROOT

MAX_DRAWING_BYTES = 60_000
DRAWINGS = sorted((ROOT / "docs/images").glob("*.svg"))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_fetches_nothing(drawing: object) -> None:
    text = (ROOT / "docs/images" / str(drawing)).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_drawing_of_the_demo_shows_a_gap_that_a_store_node_closed() -> None:
    """`tools/draw_demo.py` draws it anew, from a real run."""
    words = words_of("demo.svg")
    said = [text for _, text in SCRIPT]
    assert [text for text in said if text not in words] == []
    assert [text for each in LEGEND for text in each if text not in words] == []
    assert f"{said[LOST]}  (back from a store node, by " in words


def test_the_overview_names_the_parts() -> None:
    words = words_of("overview.svg")
    parts = ("SDS", "store node", "Postgres", "archive", "gossip", "reconciliation")
    assert [part for part in parts if part not in words] == []


def words_of(name: str) -> str:
    """The text of a drawing, without its marks."""
    path = ROOT / "docs/images" / name
    assert path.stat().st_size < MAX_DRAWING_BYTES
    text = "".join(ElementTree.parse(path).getroot().itertext())
    return text.replace("\xa0", " ")
