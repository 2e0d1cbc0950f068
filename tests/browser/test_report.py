"""The pipeline's report in a browser: nothing is cut off; on a phone wide tables scroll."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.browser import Page
from tests.unit.pipeline.test_report import full_page

WIDTHS = (390, 1280)
_BEYOND = """
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll('h1, h2, h3, p, li, th, td, summary, svg text')]
  .filter((each) => !each.closest('.scroll') && each.checkVisibility())
  .filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width && (box.left < 0 || box.right > width + 1);
  })
  .map((each) => each.outerHTML.slice(0, 200));
"""
"""The script that finds elements cut off by an edge of the screen."""

_SCROLLED = """
return [...document.querySelectorAll('.scroll')]
  .filter((each) => each.checkVisibility() && each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.getAttribute('aria-label'));
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a report with as much on it as there can be, and names of strangers."""
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(full_page(), encoding="utf-8")
    return path.as_uri()


def test_nothing_is_cut_off_or_pale(page: Page, report: str) -> None:
    page.driver.get(report)
    for width in WIDTHS:
        page.look("light", width)
        page.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert page.run(_BEYOND) == []
        assert width < max(WIDTHS) or page.run(_SCROLLED) == []
    page.require_readable(WIDTHS)
