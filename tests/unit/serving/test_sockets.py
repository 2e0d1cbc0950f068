"""Names of connections, and the limit of one host, on real sockets of this process."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from store.serving.sockets import ConnectionLimiter, ReceivedBytes, Remote, remote
from tests.support.polling import eventually


def is_open(connection: socket.socket) -> bool:
    """Return False when the other end has closed it."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True


def test_the_newest_connections_of_a_host_are_closed_and_no_others() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=16))
        elsewhere = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=16))
        callers, others = [], []

        def connect(to: socket.socket) -> socket.socket:
            caller = stack.enter_context(socket.create_connection(to.getsockname()))
            stack.enter_context(to.accept()[0])
            return caller

        limiter = ConnectionLimiter([listener.getsockname()[1]], per_host=3)
        callers += [connect(listener) for _ in range(3)]
        others += [connect(elsewhere) for _ in range(6)]
        limiter.close_newest()
        assert all(map(is_open, callers))
        callers += [connect(listener) for _ in range(4)]
        limiter.close_newest()
        # The kernel may bring the end of a connection to its other end a moment later.
        eventually(lambda: not any(map(is_open, callers[3:])))
        assert all(map(is_open, callers[:3]))
        assert all(map(is_open, others))


async def test_two_connections_from_one_port_of_a_caller_are_counted_apart() -> None:
    with ExitStack() as stack:
        source, received = ("127.0.0.1", 0), ReceivedBytes()
        for size in (100, 200):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            caller = stack.enter_context(socket.socket())
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            caller.bind(source)
            caller.connect(listener.getsockname())
            source = caller.getsockname()
            stack.enter_context(listener.accept()[0])
            caller.sendall(bytes(size))
            name = listener.getsockname()[1], f"ipv4:127.0.0.1:{source[1]}"
            counted = {name: size} if hasattr(socket, "TCP_INFO") else {}
            assert await received.count([name]) == counted


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ipv4:127.0.0.1:4000", Remote("host 127.0.0.1", loopback=True)),
        ("ipv4:10.1.2.3:4000", Remote("host 10.1.2.3", loopback=False)),
        ("ipv6:%5B::1%5D:4000", Remote("host ::1", loopback=True)),
        ("ipv6:[::1]:4000", Remote("host ::1", loopback=True)),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:9", Remote("host 2001:db8:1:2::/64", loopback=False)),
        ("ipv6:[fe80::1%25eth0]:9", Remote("host fe80::/64", loopback=False)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:9", Remote("host 10.0.0.1", loopback=False)),
        ("ipv6:%5B::ffff:127.0.0.1%5D:9", Remote("host 127.0.0.1", loopback=True)),
        ("unix:/run/node.sock", Remote("host unix", loopback=True)),
        ("ipv4:nonsense", Remote("host unknown", loopback=False)),
        ("", Remote("host ", loopback=False)),
    ],
)
def test_where_a_call_comes_from(address: str, expected: Remote) -> None:
    assert remote(address) == expected
