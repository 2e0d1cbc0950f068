"""Web pages that may call a real node; which ones is tested in tests/unit/http/test_sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.integration.http.api import Api, failed, message
from tests.integration.http.conftest import HOST, ORIGIN
from tests.integration.run.helpers import get
from tests.support.node import NodeProcess, running_node

OTHER = "https://other.example"


def test_a_name_that_leads_to_the_node_is_refused_and_counted(
    api: Api, node: NodeProcess, topic: str
) -> None:
    body = {"messages": [message(topic)]}
    foreign = {"host": "rebound.example"}
    for answer in (
        api.client.get("/", headers=foreign),
        api.client.get("/openapi.json", headers=foreign),
        api.client.post("/api/v1/messages", json=body, headers=foreign),
        api.client.options("/api/v1/messages", headers={**foreign, "origin": ORIGIN}),
    ):
        status, code, sentence = failed(answer)
        assert (status, code) == (421, "PERMISSION_DENIED")
        assert "--http-allow-host" in sentence
    assert api.get("/api/v1/messages", contentTopics=topic).json() == {"messages": []}
    assert api.client.get("/api/v1/status", headers={"host": HOST}).status_code == 200
    name = 'storenode_http_requests_total{code="421",operation="refused"} '
    assert name in get(node.metrics, "/metrics")[1]


def test_other_sites_write_nothing_and_only_named_ones_read(api: Api, topic: str) -> None:
    asking = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, connect-protocol-version",
    }
    path, body = "/api/v1/messages", {"messages": [message(topic)]}
    for origin, allowed in ((ORIGIN, ORIGIN), (OTHER, None)):
        sent = {"origin": origin, "sec-fetch-site": "cross-site"}
        answers = [
            api.client.options(path, headers={**asking, "origin": origin}),
            api.client.get("/api/v1/status", headers={"origin": origin}),
            api.client.post(path, json=body, headers=sent),
        ]
        named = [each.headers.get("access-control-allow-origin") for each in answers]
        assert named == [allowed] * 3
    assert "--http-allow-origin" in failed(answers[-1])[2]
    assert len(api.get(path, contentTopics=topic).json()["messages"]) == 1


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
