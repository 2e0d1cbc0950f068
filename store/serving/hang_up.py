"""Closes connections that gRPC serves, which has no call for that itself.

gRPC keeps what it was given for a call until the caller takes it or its connection ends. The socket
is found among those of this process by the other end's address; gRPC finds it closed by the peer.
"""

from __future__ import annotations

from collections.abc import Iterable

from store.serving import sockets


def hang_up(connections: Iterable[str]) -> int:
    """Close connections that gRPC calls ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``.

    How many were closed; the others have ended by themselves.
    """
    wanted = {end for end in map(sockets.other_end, connections) if end is not None}
    return sum(
        sockets.shut_down(each)
        for each in sockets.connections(sockets.descriptors())
        if sockets.end_of(each) in wanted
    )
