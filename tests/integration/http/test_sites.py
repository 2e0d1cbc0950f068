"""Web pages that may call a real node: by the name that they use, and by their own origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.http.api import Api, failed, message
from tests.integration.http.conftest import ORIGIN
from tests.integration.run.helpers import get
from tests.support.node import NodeProcess, running_node

OTHER = "https://other.example"
OWN = [
    "127.0.0.1",
    "10.1.2.3:80",
    "[::1]:7423",
    "[::1]",
    "LOCALHOST:1",
    "a.localhost.",
    "node.example:9",
]
FOREIGN = [
    "rebound.example",
    "127.0.0.1.rebound.example:7423",
    "localhost.rebound.example",
    "[::1].rebound.example",
    "127.0.0.1:80@rebound.example",
    "",
]


@pytest.mark.parametrize("host", OWN)
def test_own_names_are_served(api: Api, host: str) -> None:
    assert api.client.get("/api/v1/status", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_a_node_without_tokens_answers_to_its_own_names_alone(
    api: Api, topic: str, host: str
) -> None:
    body = {"messages": [message(topic)]}
    for answer in (
        api.client.get("/api/v1/messages", headers={"host": host}),
        api.client.get("/openapi.json", headers={"host": host}),
        api.client.post("/api/v1/messages", json=body, headers={"host": host}),
        api.client.options("/api/v1/messages", headers={"host": host, "origin": ORIGIN}),
    ):
        status, code, sentence = failed(answer)
        assert (status, code) == (421, "PERMISSION_DENIED")
        assert "--http-allow-host" in sentence
    assert api.get("/api/v1/messages", contentTopics=topic).json() == {"messages": []}


def test_other_sites_write_nothing_and_only_named_ones_read(api: Api, topic: str) -> None:
    asking = {"origin": ORIGIN, "access-control-request-method": "POST"}
    answer = api.client.options("/api/v1/messages", headers=asking)
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    asking["origin"] = OTHER
    assert "access-control-allow-origin" not in (
        api.client.options("/api/v1/messages", headers=asking).headers
    )
    for origin, allowed in ((ORIGIN, ORIGIN), (OTHER, None)):
        answer = api.client.get("/api/v1/status", headers={"origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed
    # A form and text need no leave, so a node does not take them.
    body = json.dumps({"messages": [message(topic)]}).encode()
    simple = api.client.post(
        "/api/v1/messages", content=body, headers={"content-type": "text/plain"}
    )
    assert (simple.status_code, "application/json" in simple.text) == (415, True)
    own = str(api.client.base_url).rstrip("/")
    for sent, status in (
        ({"origin": OTHER}, 403),
        ({"origin": "null"}, 403),
        ({"origin": own, "sec-fetch-site": "cross-site"}, 403),
        ({"origin": OTHER, "sec-fetch-site": "same-site"}, 403),
        ({"origin": OTHER, "sec-fetch-site": "same-origin"}, 200),
        ({"origin": ORIGIN, "sec-fetch-site": "cross-site"}, 200),
        ({"origin": own}, 200),
    ):
        before = api.get("/api/v1/messages", contentTopics=topic).json()["messages"]
        answer = api.client.post(
            "/api/v1/messages", json={"messages": [message(topic)]}, headers=sent
        )
        assert answer.status_code == status, sent
        after = api.get("/api/v1/messages", contentTopics=topic).json()["messages"]
        assert len(after) - len(before) == (status == 200)
        if status == 403:
            assert "--http-allow-origin" in failed(answer)[2]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-dest": "empty", "origin": OTHER}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "empty", "origin": ORIGIN}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-dest": "image"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-dest": "document"}, 200),
    ],
)
def test_other_sites_have_a_node_read_nothing(api: Api, sent: dict[str, str], status: int) -> None:
    assert api.client.get("/api/v1/scan", headers=sent).status_code == status


def test_refusals_are_counted(api: Api, node: NodeProcess) -> None:
    api.client.get("/", headers={"host": "rebound.example"})
    name = 'storenode_http_requests_total{code="421",operation="refused"} '
    assert name in get(node.metrics, "/metrics")[1]


def test_a_node_with_tokens_is_served_by_any_name_unless_names_are_given(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    tokens = tmp_path / "clients.toml"
    tokens.write_text("[clients]\n")
    options = ("--http-listen", "127.0.0.1:0", "--client-token-file", str(tokens))
    with running_node(tmp_path / "node", *options, database_url=new_store()) as process:
        api = Api.of(process)
        answer = api.client.get("/api/v1/status", headers={"host": "public.example"})
        assert failed(answer)[:2] == (401, "UNAUTHENTICATED")
        assert process.terminate() == 0
        process.args = [*process.args, "--http-allow-host", "public.example"]
        process.start()
        api = Api.of(process)
        for host, status in (("public.example", 401), ("other.example", 421), ("127.0.0.1", 401)):
            answer = api.client.get("/api/v1/status", headers={"host": host})
            assert answer.status_code == status
