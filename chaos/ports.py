"""Ports of 127.0.0.1 that stay their owner's also while nothing listens on them."""

from __future__ import annotations

import os
import random
import socket
import sys
import weakref
from typing import Final

_PORTS: Final = (10_000, 32_768)
_RNG: Final = random.SystemRandom()


class ReservedPort:
    """A free port that is given to no other caller, until this object is gone.

    A server may listen on it and end again and again. Without this, the kernel may give the port
    of a server that is down to a listener elsewhere that asks for any, or to either end of a
    connection, be it of another test or of a client of that server.
    """

    def __init__(self) -> None:
        sock = _bound()
        self.number: int = sock.getsockname()[1]
        # Servers set it too. Linux then lets one of them listen where another socket is bound and
        # does not listen.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Elsewhere no server could have a port that is bound: there it is only found here.
        if sys.platform == "linux":
            weakref.finalize(self, os.close, sock.detach())
        else:
            sock.close()

    @property
    def address(self) -> str:
        """HOST:PORT of it."""
        return f"127.0.0.1:{self.number}"


def _bound() -> socket.socket:
    """Return a socket on a free port below those that the kernel gives to who asks for any.

    A Postgres that was given one of these prefers it at its next start.
    """
    while True:
        sock = socket.socket()
        try:
            sock.bind(("127.0.0.1", _RNG.randrange(*_PORTS)))
        except OSError:
            sock.close()
        else:
            return sock
