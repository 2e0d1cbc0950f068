"""js-waku in a browser: a page fetches a node's history through a gateway, over a WebSocket."""

from __future__ import annotations

import functools
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from storenode.client.blocking_client import Client
from storenode.client.message import Message
from tests.browser.browser import Page, Quiet, served, until
from tests.integration.gateway.messages import CLUSTER, PUBSUB, SHARD
from tests.support.gateway import running_gateway
from tests.support.javascript import WAKU, installed
from tests.support.node import clean_environment, running_node

pytestmark = pytest.mark.timeout(900)  # the clients are installed

TOPIC: Final = "/browser/1/history/utf8"
COUNT: Final = 45
"""Messages: more than two pages of the SDK."""

BUNDLE_TIMEOUT_S: Final = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of the page, bundled with the SDK, on a server of its own."""
    folder = installed(tmp_path_factory, WAKU)
    subprocess.run(
        ["node_modules/.bin/esbuild", "page.mjs", "--bundle", "--outfile=page.js"],
        cwd=folder,
        env=clean_environment(),
        timeout=BUNDLE_TIMEOUT_S,
        check=True,
        capture_output=True,
    )
    with served(functools.partial(Quiet, directory=str(folder))) as origin:
        yield f"{origin}/page.html"


def test_a_page_with_js_waku_shows_the_history_of_a_node(
    page: Page, site: str, tmp_path: Path, new_store: Callable[[], str]
) -> None:
    lines = [f"line {number} of the history" for number in range(COUNT)]
    begin_ns = time.time_ns() - 3_600 * 10**9
    with running_node(
        tmp_path / "node", "--max-clock-drift", "off", database_url=new_store()
    ) as node:
        options = ("--cluster", str(CLUSTER), "--shard", str(SHARD))
        with (
            Client([node.listen]) as client,
            running_gateway(tmp_path, node.listen, *options) as gateway,
        ):
            client.publish_many(
                Message(text.encode(), TOPIC, PUBSUB, timestamp=begin_ns + number * 10**9)
                for number, text in enumerate(lines)
            )
            address = gateway.address("ws")
            settings = {"address": address, "cluster": CLUSTER, "shard": SHARD, "topic": TOPIC}
            page.driver.get(f"{site}#{quote(json.dumps(settings))}")
            until(page, lambda: page.text("#state") != "connecting", "the history is there")
            assert page.text("#state") == f"{COUNT} messages from {address}"
            script = "return [...document.querySelectorAll('li')].map(each => each.lastChild.data)"
            assert page.run(script) == lines
            assert gateway.counted('queries_total{by="node"}') >= COUNT // 20
            page.driver.save_screenshot(str(tmp_path / "page.png"))
            page.driver.get("about:blank")
