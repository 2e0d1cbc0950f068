"""Operations that HTTP alone has, and tokens in a URL."""

from __future__ import annotations

from typing import Final

import pytest

from storenode.client.messages import new_message
from storenode.wire.storenode.v1.store_pb2 import PublishRequest
from tests.calls.conftest import caller
from tests.calls.transports import PATHS, Json
from tests.integration.rpc.harness import PUBSUB, Node

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLS: Final[list[tuple[str, str, object]]] = [
    ("POST", "/api/v1/messages/query", {}),
    ("GET", "/api/v1/status", None),
    ("GET", "/store/v3/messages", None),
]
"""Requests of operations that are no methods of `Store`."""


async def test_every_operation_demands_a_token_and_its_right(guarded_node: Node) -> None:
    async with caller(guarded_node, Json).client() as stranger:
        document = (await stranger.get("/openapi.json")).json()
        json = {"content-type": "application/json"}
        refused = await stranger.post("/api/v1/messages", content=b"x" * 2_000_000, headers=json)
        assert (refused.status_code, refused.headers["connection"]) == (401, "close")
    served = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert served == {*PATHS.values(), *(call[:2] for call in CALLS)}
    for client, status, sentence in (
        (None, 401, "carries no token"),
        ("nobody", 401, "is not known"),
        ("publisher", 403, "lacks the right `read`"),
    ):
        async with caller(guarded_node, Json, client).client() as http:
            for method, path, body in CALLS:
                refused = await http.request(method, path, json=body)
                assert (refused.status_code, sentence in refused.text) == (status, True), path
                assert ("www-authenticate" in refused.headers) == (status == 401)


async def test_other_topics_are_not_there_on_paths_of_http_alone(
    guarded_node: Node, topic: str
) -> None:
    messages = [new_message(b"%d" % n, f"{n * '/far'}{topic}", PUBSUB, n + 1) for n in range(2)]
    (answer,) = await caller(guarded_node, Json, "everything").call(
        "Publish", PublishRequest(messages=messages)
    )
    hashes = [f"0x{each.message_hash.hex()}" for each in answer.results]
    for client, expected in (("app", hashes[:1]), ("reader", hashes)):
        async with caller(guarded_node, Json, client).client() as http:
            page = await http.get("/store/v3/messages", params={"hashes": ",".join(hashes)})
            assert [each["messageHash"] for each in page.json()["messages"]] == expected
            status = (await http.get("/api/v1/status")).json()
            assert (list(status) == ["ready"]) == (client == "app")


async def test_a_browser_may_give_its_token_in_the_url_of_a_follower_alone(
    guarded_node: Node,
) -> None:
    async with caller(guarded_node, Json).client() as http:
        token = {"access_token": "token-of-everything"}
        async with http.stream("GET", "/api/v1/follow", params=token) as stream:
            assert await anext(stream.aiter_lines()) == "event: page"
        assert (await http.get("/api/v1/messages", params=token)).status_code == 401
