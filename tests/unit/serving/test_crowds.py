"""Connections of one host, on real sockets of this process."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from store.serving.crowds import Crowds
from tests.support.polling import eventually


def is_open(connection: socket.socket) -> bool:
    """False when the other end has closed it."""
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

        crowds = Crowds([listener.getsockname()[1]], per_host=3)
        callers += [connect(listener) for _ in range(3)]
        others += [connect(elsewhere) for _ in range(6)]
        crowds.close_newest()
        assert all(map(is_open, callers))
        callers += [connect(listener) for _ in range(4)]
        crowds.close_newest()
        # The kernel may bring the end of a connection to its other end a moment later.
        eventually(lambda: not any(map(is_open, callers[3:])))
        assert all(map(is_open, callers[:3]))
        assert all(map(is_open, others))
