"""The documentation's site: no line is cut, in light and dark; the search finds common words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.browser.browser import Page, Quiet, host_of, served, until
from tests.support.node import clean_environment
from tests.support.pages import ROOT
from tools.release import present

WIDTHS = (390, 1280)
PAGES = ("", "client/", "several-nodes/", "operations/", "reference/command-line/")
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(30, 33, 41)"}
CUT = """
const blocks = document.querySelectorAll(
  ".md-header__topic:first-child > *, .md-content :is(pre, p, li, img)");
return [...blocks].filter(each => each.scrollWidth > each.clientWidth + 1)
  .filter(each => getComputedStyle(each).display !== "inline")
  .map(each => each.outerHTML.slice(0, 200));
"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site as `make docs` does, and yield its address."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env=clean_environment(NO_MKDOCS_2_WARNING="1"),
        check=True,
    )
    with served(partial(Quiet, directory=str(folder))) as address:
        yield address


@pytest.mark.parametrize("name", PAGES, ids=lambda name: name or "home")
def test_no_line_is_cut(page: Page, origin: str, name: str) -> None:
    page.driver.get(f"{origin}/{name}")
    for scheme, ground in GROUNDS.items():
        for width in WIDTHS:
            page.look(scheme, width)
            shown = page.run("return getComputedStyle(document.body).backgroundColor")
            assert shown == ground, (scheme, width)
            # The theme lays its header out again some time after the width has changed.
            fits = f"return document.documentElement.scrollWidth <= {width}"
            until(page, partial(page.run, fits), f"nothing is wider than {width}")
            assert page.run(CUT) == [], (scheme, width)


def test_the_home_page_has_four_doors_and_loads_nothing_from_elsewhere(
    page: Page, origin: str
) -> None:
    page.driver.get(f"{origin}/")
    assert page.text(".md-header__title").startswith(f"storenode {present()}")
    assert page.run("return document.querySelectorAll('.grid.cards > ul > li').length") == 4
    asked = {each for each in page.requests() if each.startswith("http")}
    assert {host_of(each) for each in asked} == {host_of(origin)}


@pytest.mark.parametrize(
    ("word", "guide"), [("resume", "client"), ("duplicate", "sds"), ("retention", "database")]
)
def test_the_search_finds_a_guide(page: Page, origin: str, word: str, guide: str) -> None:
    page.driver.get(f"{origin}/?q={word}")
    first = "return [...document.querySelectorAll('.md-search-result__link')].slice(0, 8)"
    wanted = f"{origin}/{guide}/"
    until(
        page,
        lambda: any(each.startswith(wanted) for each in page.run(f"{first}.map(a => a.href)")),
        f"{guide} is among the first results for {word}",
    )
