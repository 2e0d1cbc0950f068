"""Pages of other sites in a real browser: what they may ask of a node that demands no token."""

from __future__ import annotations

import httpx

from tests.browser.browser import REBOUND, Page
from tests.integration.http.api import PUBSUB
from tests.support.node import NodeProcess, shared_node

TOPIC = "/sites/1/lobby/proto"
READ = """
const done = arguments[arguments.length - 1];
fetch(arguments[0], {headers: {"accept-language": ""}})
  .then(answer => done(answer.status), error => done(error.name));
"""
PUBLISH = """
const done = arguments[arguments.length - 1];
const [api, body, type] = arguments;
fetch(`${api}/api/v1/messages`, {method: "POST", body, headers: {"content-type": type}})
  .then(answer => done(answer.status), error => done(error.name));
"""
BODY = (
    f'{{"messages": [{{"pubsubTopic": "{PUBSUB}", "contentTopic": "{TOPIC}", "payload": "AA==",'
    ' "timestamp": "1"}]}'
)

OPTIONS = ("--http-listen", "127.0.0.1:0", "--max-clock-drift", "off", "--retention", "off")
node = shared_node("sites", *OPTIONS, scope="module")
"""A node without tokens, with a page."""


def publish(page: Page, node: NodeProcess, content_type: str) -> object:
    """Publish from the page that is shown, and return the status or the browser's error."""
    given = f"http://{node.http}", BODY, content_type
    return page.driver.execute_async_script(PUBLISH, *given)


def test_a_page_of_another_site_publishes_nothing(page: Page, node: NodeProcess) -> None:
    port = node.http.rpartition(":")[2]
    page.driver.get(f"http://localhost:{port}/")
    assert page.driver.title == "Messages"
    # The browser asks the node first, or shows the page nothing of an answer, which was a refusal.
    for content_type in ("application/json", "text/plain"):
        assert publish(page, node, content_type) == "TypeError"
    stored = httpx.get(f"http://{node.http}/api/v1/messages", params={"contentTopics": TOPIC})
    assert stored.json() == {"messages": []}
    page.driver.get(f"http://{node.http}/")
    assert publish(page, node, "application/json") == 200
    assert publish(page, node, "text/plain") == 415


def test_a_page_whose_name_leads_to_the_node_reads_nothing(page: Page, node: NodeProcess) -> None:
    port = node.http.rpartition(":")[2]
    for path in ("/", "/api/v1/messages", "/openapi.json"):
        page.driver.get(f"http://{REBOUND}:{port}{path}")
        assert f"this node is not called '{REBOUND}'" in page.text()


def test_such_a_page_reads_nothing_of_the_metrics_listener(page: Page, node: NodeProcess) -> None:
    port = node.metrics.rpartition(":")[2]
    for path in ("/status", "/status.json", "/metrics"):
        page.driver.get(f"http://{REBOUND}:{port}{path}")
        assert f"This node is not called '{REBOUND}'" in page.text()
        assert page.driver.execute_async_script(READ, path) == 421
