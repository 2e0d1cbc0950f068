"""The documentation's site in a browser: no line is cut, and the search finds common words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.browser.browser import Page, Quiet, host_of, served
from tests.support.node import clean_environment
from tests.support.pages import ROOT

WIDTHS = (390, 1280)
PAGES = ("", "client/", "several-nodes/", "operations/", "reference/command-line/")
CUT = """
const blocks = document.querySelectorAll(".md-content :is(pre, p, li, img)");
return [...blocks].filter(each => each.scrollWidth > each.clientWidth + 1)
  .filter(each => getComputedStyle(each).display !== "inline")
  .map(each => each.outerHTML.slice(0, 200));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env=clean_environment(NO_MKDOCS_2_WARNING="1"),
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def origin(site: Path) -> Iterator[str]:
    with served(partial(Quiet, directory=str(site))) as address:
        yield address


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_cut(page: Page, origin: str, width: int, tmp_path: Path) -> None:
    for name in PAGES:
        for scheme in ("light", "dark"):
            page.look(scheme, width)
            page.driver.get(f"{origin}/{name}")
            assert page.run("return document.documentElement.scrollWidth") <= width, name
            assert page.run(CUT) == [], name
            picture = tmp_path / f"{name.replace('/', '-')}{scheme}.png"
            page.driver.save_screenshot(str(picture))
            assert picture.stat().st_size > 0


def test_the_home_page_has_four_doors_and_loads_nothing_from_elsewhere(
    page: Page, origin: str
) -> None:
    page.driver.get(f"{origin}/")
    assert page.run("return document.querySelectorAll('.grid.cards > ul > li').length") == 4
    asked = {each for each in page.requests() if each.startswith("http")}
    assert {host_of(each) for each in asked} == {host_of(origin)}


@pytest.mark.parametrize(
    ("word", "pages"),
    [
        ("resume", {"client/", "tutorial/"}),
        ("duplicate", {"failures/"}),
        ("retention", {"database/", "configuration/"}),
    ],
)
def test_the_search_finds_what_people_look_for(site: Path, word: str, pages: set[str]) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {
        each["location"].partition("#")[0]
        for each in index["docs"]
        if word in f"{each['title']} {each['text']}".lower()
    }
    assert pages <= found
