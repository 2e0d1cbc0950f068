"""The browser of all tests of this folder; without one each test fails with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.browser import Page, found_chromium, opened
from tests.integration.clients.languages import TYPESCRIPT
from tests.support.javascript import HAS_NPM

# Clients for pages are installed and built by npm; without it CI says that they were not.
collect_ignore = [] if HAS_NPM else ["test_waku.py"]
collect_ignore += [] if TYPESCRIPT.available else ["test_store.py"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield a headless Chromium."""
    found_chromium()
    with opened(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """Yield the browser on an empty page, as wide as a desk's screen, in light colours."""
    browser.driver.get("about:blank")
    browser.look("light", 1200)
    browser.requests()
    browser.complaints()
    yield browser
    browser.driver.get("about:blank")
