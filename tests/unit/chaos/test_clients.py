"""Clients that judge a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from chaos.checker.clients import Endpoint, Follower
from storenode.wire.storenode.v1 import store_pb2, store_pb2_grpc
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue


def page(cursor: bytes, **ephemeral: bool) -> store_pb2.FollowPage:
    entries = [
        WakuMessageKeyValue(message_hash=name.encode(), message=WakuMessage(ephemeral=is_ephemeral))
        for name, is_ephemeral in ephemeral.items()
    ]
    return store_pb2.FollowPage(messages=entries, cursor=cursor)


class ServedPages:
    """Two pages, and then the end of the node."""

    def __init__(self) -> None:
        self.requests: list[store_pb2.FollowRequest] = []

    async def Follow(  # noqa: N802 - of the stub
        self, request: store_pb2.FollowRequest
    ) -> AsyncIterator[store_pb2.FollowPage]:
        self.requests.append(request)
        if not request.cursor:
            yield page(b"1", a=False, b=True)
            yield page(b"2", c=False)


async def test_a_follower_counts_what_nodes_store_and_resumes_at_its_cursor() -> None:
    follower = Follower("n1", Endpoint("127.0.0.1:1"))
    served = ServedPages()
    stub = cast("store_pb2_grpc.StoreAsyncStub", cast("Any", served))
    for _ in range(2):
        await follower._follow(stub)
    assert (follower.hashes, follower.stored) == ([b"a", b"c"], {b"a", b"c"})
    assert [request.cursor for request in served.requests] == [b"", b"2"]
    assert all(request.include_data for request in served.requests)
