"""The basics of the client package: names, arguments, representations, and a client left open."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import grpc
import pytest

import storenode
from storenode.client import ArgumentError, ClientClosedError, StorenodeError

ADDRESS = "127.0.0.1:1"


def test_importing_the_package_loads_nothing_else() -> None:
    check = "import sys, storenode; assert storenode.__version__; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
    assert [getattr(storenode, name).__name__ for name in storenode.__all__ if name[0] != "_"] == [
        *("AsyncChannel", "AsyncClient", "Channel", "Client", "Message")
    ]


def test_representations_are_short() -> None:
    message = storenode.Message(b"x" * 100_000, "/a/1/b/proto", timestamp=1)
    assert repr(message).startswith("Message('/a/1/b/proto', 100,000 bytes, 1970-01-01T00:00:00")
    assert repr(storenode.Message(b"", "/a", timestamp=0)).endswith("hash none)")
    with storenode.Client([ADDRESS, "[::1]:2"]) as client:
        assert repr(client) == "Client(127.0.0.1:1, [::1]:2)"


def test_a_client_that_is_not_closed_gives_a_warning() -> None:
    with pytest.warns(ResourceWarning, match=r"AsyncClient\(127.0.0.1:1\) was not closed"):
        repr(storenode.AsyncClient(ADDRESS))


def test_a_client_made_outside_the_event_loop_works_inside() -> None:
    client = storenode.AsyncClient(ADDRESS)

    async def use() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client._calls.nodes.addresses[:] = [f"127.0.0.1:{port}"]
        with pytest.raises(StorenodeError, match="does not serve this call"):
            await client.query()
        with pytest.raises(ClientClosedError, match="make one in each loop"):
            await asyncio.to_thread(asyncio.run, client.query())
        await client.aclose()
        await server.stop(0)

    asyncio.run(use())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda client: client.get_sds("lobby", "id"), "The IDs are one value: pass a list"),
        (lambda client: client.causal_history("lobby", "id"), "The IDs are one value"),
        (lambda client: client.causal_history("lobby", [], known_ids="id"), "The IDs are one"),
        (lambda client: client.get(bytes(32)), "The hashes are one value: pass a list"),
        (lambda client: client.publish_many(storenode.Message(b"", "/a/1/b/c")), "one message"),
        (lambda client: client.publisher(max_pending=0), "allow at least one message"),
        (lambda client: client.publish_many(None), "The messages are one value"),
        (lambda client: client.query(5), "An argument of listed does not fit"),
        (lambda client: client.query("/a/1/\ud800/c"), "holds what UTF-8 cannot carry"),
        (lambda client: client.query(limit="5"), "limit is '5': give a number of messages"),
        (lambda client: client.query(start=2**70), "is no datetime and no number"),
        (lambda client: client.query(timeout_s="5"), "timeout_s is '5': give a number"),
        (lambda client: next(client.scan(page_size=-1)), "scan does not fit: Value out of range"),
        (lambda client: client.get_sds("lobby", [("a", "00")]), "get_sds does not fit"),
        (lambda _: storenode.Client(None), "nodes is None: give HOST:PORT"),  # type: ignore[arg-type]
        (lambda _: storenode.Client(ADDRESS, token=5), "The token 5 is int, not str"),  # type: ignore[arg-type]
        (lambda _: storenode.Client(ADDRESS, retry=5), "retry is 5: give a Retry"),  # type: ignore[arg-type]
        (lambda _: storenode.Message(b"", "/a/1/b/c", None), "The pubsub topic None"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_passed(
    call: Callable[[storenode.Client], object], sentence: str
) -> None:
    with (
        storenode.Client(ADDRESS) as client,
        pytest.raises(ArgumentError, match=sentence),
    ):
        call(client)
