"""Tokens, rights, topics and TLS over HTTP, as the other listeners have them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.calls.transports import PATHS
from tests.integration.http.api import Api, message
from tests.support.credentials import Pki, check_renewal, token_file
from tests.support.node import NodeProcess, running_node

RIGHTS: Final = {
    "writer": 'rights = ["publish"]',
    "reader": 'rights = ["read", "follow"]',
    "near": 'rights = ["read", "follow", "publish"]\ncontent_topics = ["/near/"]',
}
NEAR, FAR = "/near/1/a/proto", "/far/1/a/proto"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Return the authority of the certificates of the node and of its clients."""
    return Pki(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def files(pki: Pki) -> Path:
    """Return a folder with the certificates and the token file."""
    folder = pki.ca.parent
    (folder / "clients.toml").write_text(token_file(RIGHTS))
    pki.issue("127.0.0.1", "node-a.example")
    pki.issue("client.example", file="client")
    return folder


@pytest.fixture(scope="module")
def node(files: Path, new_store: Callable[[], str]) -> Iterator[NodeProcess]:
    """Yield a node that demands tokens and client certificates."""
    options = (
        *("--tls-cert", str(files / "node.pem"), "--tls-key", str(files / "node.key")),
        *("--client-ca", str(files / "ca.pem"), "--peer-listen", "127.0.0.1:0"),
        *("--client-token-file", str(files / "clients.toml")),
        *("--http-listen", "127.0.0.1:0"),
    )
    with running_node(files / "data", *options, database_url=new_store()) as process:
        yield process


@pytest.fixture(scope="module")
def trust(files: Path) -> ssl.SSLContext:
    """Return the authority that a client trusts, and its own certificate."""
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    context.load_cert_chain(files / "client.pem", files / "client.key")
    return context


@pytest.fixture(scope="module")
def caller(node: NodeProcess, trust: ssl.SSLContext) -> Iterator[Callable[[str | None], Api]]:
    """Make callers by the name of a client."""
    with ExitStack() as stack:

        def make(client: str | None) -> Api:
            api = Api.of(node, client and f"token-of-{client}", verify=trust)
            stack.callback(api.client.close)
            return api

        yield make


CALLS: Final[list[tuple[str, str, object]]] = [
    ("POST", "/api/v1/messages/query", {}),
    ("GET", "/api/v1/status", None),
    ("GET", "/store/v3/messages", None),
]
"""Requests of operations that are no methods of `Store`."""


def test_every_operation_demands_a_token_and_its_right(
    caller: Callable[[str | None], Api], node: NodeProcess
) -> None:
    served = {
        (method.upper(), path)
        for path, operations in caller(None).document["paths"].items()
        for method in operations
    }
    assert served == {*PATHS.values(), *(call[:2] for call in CALLS)}
    for method, path, body in CALLS:
        for token, sentence in ((None, "carries no token"), ("forged", "is not known")):
            refused = caller(token).client.request(method, path, json=body)
            assert refused.status_code == 401, path
            assert sentence in refused.text
            assert refused.headers["www-authenticate"] == "Bearer"
        refused = caller("writer").client.request(method, path, json=body)
        assert (refused.status_code, "lacks the right `read`" in refused.text) == (403, True)
    assert "forged" not in node.log()


def test_a_body_without_a_token_is_refused_before_it_has_come(
    caller: Callable[[str | None], Api],
) -> None:
    headers = {"content-type": "application/json"}
    for _ in range(2):
        client = caller(None).client
        refused = client.post("/api/v1/messages", content=b"x" * 2_000_000, headers=headers)
        assert (refused.status_code, refused.headers["connection"]) == (401, "close")


def test_other_topics_are_not_there_on_paths_of_http_alone(
    caller: Callable[[str | None], Api],
) -> None:
    near, far = caller("writer").publish(message(NEAR), message(FAR))
    mine, everything = caller("near"), caller("reader")
    for api, expected in ((mine, [near]), (everything, [near, far])):
        waku = api.get("/store/v3/messages").json()
        assert {each["messageHash"] for each in waku["messages"]} == {
            each["messageHash"] for each in expected
        }
    assert list(mine.get("/api/v1/status").json()) == ["ready"]


def test_a_browser_may_give_its_token_in_the_url_of_a_follower_alone(
    caller: Callable[[str | None], Api],
) -> None:
    stranger = caller(None).client
    with stranger.stream(
        "GET", "/api/v1/follow", params={"access_token": "token-of-reader"}
    ) as stream:
        assert "event: page" in stream.iter_lines()
    assert (
        stranger.get("/api/v1/messages", params={"access_token": "token-of-reader"}).status_code
        == 401
    )


def test_no_call_is_served_without_a_client_certificate(node: NodeProcess, files: Path) -> None:
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://{node.http}/api/v1/status", verify=context)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{node.http}/api/v1/status")


def test_a_renewed_certificate_is_shown_to_new_connections(
    node: NodeProcess, trust: ssl.SSLContext, pki: Pki
) -> None:
    check_renewal(node.http, trust, lambda: pki.issue("127.0.0.1", "node-a.example"))
