"""Documents name files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md") for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`(tests/[\w/]+(?:\.py|/)?)(?:::(\w+))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lost = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for name, function in TEST.findall(page.read_text(encoding="utf-8")):
        path = ROOT / name
        assert path.exists(), name
        if function:
            text = path.read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), function


def test_there_are_pages() -> None:
    assert ROOT / "README.md" in PAGES
    assert ROOT / "docs" / "security.md" in PAGES
