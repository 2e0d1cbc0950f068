"""A headless Chromium of the system, and what it saw: requests, errors, colours."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome")
LOAD_TIMEOUT_S: Final = 120
PATIENCE_S: Final = 120.0
LOOK_EVERY_S: Final = 0.1
LEAST_CONTRAST: Final = 4.5
"""WCAG 2.2, success criterion 1.4.3, for text of any size."""

WIDTHS: Final = (360, 768, 1_200)
HOSTILE: Final = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "<b>bold</b>\u202e" + "w" * 400
)
REBOUND: Final = "rebound.example"
"""A name that leads the browser to this machine, as the name of a hostile page may."""

_CONTRASTS: Final = (Path(__file__).with_name("contrast.js")).read_text(encoding="utf-8")


class Page:
    """The status page of a node in a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Open the page of the node whose metrics listener is at HOST:PORT."""
        self.driver.get(f"http://{address}/status")

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the script gives
        """Return what a script returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        """Return the text of what a selector finds first, "" where there is none."""
        return str(
            self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        )

    def classes(self, selector: str) -> list[str]:
        """Return the class of each element that a selector finds."""
        script = "return [...document.querySelectorAll(arguments[0])].map(each => each.className)"
        return list(self.run(script, selector))

    def labels(self, selector: str) -> list[str]:
        """Return the accessible name of each element that a selector finds."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".map(each => each.getAttribute('aria-label'))"
        )
        return list(self.run(script, selector))

    def look(self, scheme: str, width: int, height: int = 900) -> None:
        """Set the width of the screen, and the colours ``light`` or ``dark``."""
        self._tell(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        self._tell(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def contrasts(self) -> list[tuple[float, str]]:
        """Return contrast ratio (WCAG 2.2, 1.4.3) and text of all that is written, worst first."""
        return sorted((float(ratio), str(text)) for ratio, text in self.run(_CONTRASTS))

    def require_readable(self, widths: Iterable[int]) -> None:
        """Check that nothing exceeds these screens, or is pale in light or dark colours."""
        for width in widths:
            for scheme in ("light", "dark"):
                self.look(scheme, width)
                assert self.run("return innerWidth") == width
                assert self.run("return document.documentElement.scrollWidth") <= width
                ratio, text = self.contrasts()[0]
                assert ratio >= LEAST_CONTRAST, text

    def requests(self) -> list[str]:
        """Return the URLs that were asked for since the last call."""
        urls = []
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(str(message["params"]["request"]["url"]))
        return urls

    def complaints(self) -> list[str]:
        """Return what the browser complained of in its console since the last call."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def _tell(self, command: str, arguments: dict[str, Any]) -> None:
        self.driver.execute_cdp_cmd(command, arguments)


def host_of(url: str) -> str:
    """Return HOST:PORT of a URL."""
    return urlsplit(url).netloc


def found_chromium() -> tuple[str, str]:
    """Return paths of the browser and of its driver.

    Raises:
        FileNotFoundError: one is not installed; the text says what to install.
    """
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        raise FileNotFoundError(
            "the browser tests need Chromium and its driver: install them, on Debian with"
            " `apt install chromium chromium-driver`"
        )
    return browser, driver


def until(page: Page, right: Callable[[], object], what: str) -> None:
    """Wait until the page shows something, without touching it; each look is a request to it."""
    deadline = time.monotonic() + PATIENCE_S
    while not right():
        assert time.monotonic() < deadline, f"{what}; the page says:\n{page.text()}"
        time.sleep(LOOK_EVERY_S)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files silently."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@contextmanager
def served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server on a port of this machine, and yield its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """Yield a browser with a fresh profile, ended afterwards."""
    browser, driver_path = found_chromium()
    options = Options()
    options.binary_location = browser
    for argument in (
        "--headless=new",
        "--no-sandbox",  # the tests may be run by root, in a container
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=driver_path))
    try:
        driver.set_page_load_timeout(LOAD_TIMEOUT_S)
        driver.set_script_timeout(LOAD_TIMEOUT_S)
        yield Page(driver)
    finally:
        driver.quit()
