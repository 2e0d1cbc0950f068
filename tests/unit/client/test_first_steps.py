"""The basics of the client package: names, arguments, representations, and a client left open."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime

import grpc
import pytest

import storenode
from storenode.client import Admin, ArgumentError, ClientOptionError, StorenodeError
from storenode.client.message import nanoseconds

ADDRESS = "127.0.0.1:1"


def test_importing_the_package_loads_nothing_else() -> None:
    check = "import sys, storenode; assert storenode.__version__; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
    assert [getattr(storenode, name).__name__ for name in storenode.__all__ if name[0] != "_"] == [
        *("AsyncChannel", "AsyncClient", "Channel", "Client", "Message")
    ]


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: storenode.Message("x", "/a"), ArgumentError, "use .encode()"),  # type: ignore[arg-type]
        (lambda: storenode.Message(1, "/a"), ArgumentError, "is int, not bytes"),  # type: ignore[arg-type]
        (lambda: storenode.AsyncClient(ADDRESS, tls=True), ClientOptionError, "TlsIdentity"),  # type: ignore[arg-type]
        (lambda: nanoseconds(1_764_300_000), ArgumentError, "looks like seconds"),
        (lambda: nanoseconds(datetime(2026, 1, 1)), ArgumentError, "has no zone"),  # noqa: DTZ001
        (lambda: nanoseconds("noon"), ArgumentError, "is no datetime"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_passed(
    make: Callable[[], object], error: type[StorenodeError], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        make()
    assert sentence in str(caught.value)


@pytest.mark.parametrize("kind", [storenode.Client, storenode.Channel, Admin])
def test_the_examples_of_blocking_objects_need_no_event_loop(kind: type) -> None:
    texts = [getattr(kind, name).__doc__ or "" for name in dir(kind) if name[0] != "_"]
    assert any("Examples:" in text for text in texts) == (kind is storenode.Client)
    texts += [kind.__doc__ or ""]
    assert [text for text in texts if "await " in text or "async " in text] == []


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
        await client.aclose()
        await server.stop(0)

    asyncio.run(use())
