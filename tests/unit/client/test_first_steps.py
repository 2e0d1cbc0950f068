"""The basics of the client package: names, arguments, representations, and a client left open."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import grpc
import pytest

import storenode
from storenode.client import ArgumentError, ClientClosed, StorenodeError

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
        with pytest.raises(ClientClosed, match="make one in each loop"):
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
    ],
)
def test_a_value_in_place_of_a_list_is_refused(
    call: Callable[[storenode.Client], object], sentence: str
) -> None:
    with (
        storenode.Client(ADDRESS) as client,
        pytest.raises(ArgumentError, match=sentence),
    ):
        call(client)
