"""Drawings in the documentation fetch nothing when they are looked at."""

import re

import pytest

from tests.layering.sources import ROOT

DRAWINGS = sorted((ROOT / "docs/images").glob("*.svg"))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_fetches_nothing(drawing: object) -> None:
    text = (ROOT / "docs/images" / str(drawing)).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_there_is_one_of_the_demo() -> None:
    assert "demo.svg" in {path.name for path in DRAWINGS}
