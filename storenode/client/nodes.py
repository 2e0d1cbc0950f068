"""The nodes of a client, one of which serves it at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import grpc

from storenode.common.errors import ClientClosedError
from storenode.connection.arguments import check_kind
from storenode.connection.channel import (
    MAX_RESPONSE_BYTES,
    Metadata,
    TlsIdentity,
    check_connection,
    open_channel,
)
from storenode.connection.errors import ClientOptionError
from storenode.wire.storenode.v1 import admin_pb2_grpc, store_pb2_grpc

_caller = cache(os.getpid)
"""Returns the process that has called nodes first, also in one that was forked from it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A connection to one node, made by the first call on it."""

    address: str
    channel: grpc.aio.Channel
    metadata: Metadata
    tls: TlsIdentity | None
    store: store_pb2_grpc.StoreAsyncStub
    admin: admin_pb2_grpc.AdminAsyncStub


class Nodes:
    """Stays with one node until that fails; then it is the next one's turn."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        token: str | None,
        tls: TlsIdentity | None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """Check the addresses and the token, as `connect`; the first call opens the channels."""
        check_kind("nodes", addresses, Sequence, "HOST:PORT, or a list of them")
        listed = [addresses] if isinstance(addresses, str | bytes) else list(addresses)
        if not listed:
            raise ClientOptionError("There is no node to call: give the address of at least one.")
        for address in listed:
            check_connection(address, token, tls)
        self.addresses = listed
        self._open = partial(_node, token=token, tls=tls, max_response_bytes=max_response_bytes)
        self._at = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False
        self.have_answered = False
        """True once one of them has answered a call."""

    @cached_property
    def _nodes(self) -> list[Node]:
        # Channels belong to the event loop of the first call.
        return [self._open(address) for address in self.addresses]

    def check(self) -> None:
        """Check that calls can be made from the running event loop.

        Raises:
            ClientClosedError: The client was closed, or belongs to another event loop or process.
        """
        if self.is_closed:
            raise ClientClosedError("The client is closed: make a new one.")
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop() or _caller() != os.getpid():
            raise ClientClosedError(
                "The client belongs to another event loop or process: make one in each loop, and in"
                " each process, begun by spawn, since gRPC does not work after a fork."
            )

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def current(self) -> Node:
        """The node that serves."""
        return self._nodes[self._at]

    def in_order(self) -> list[Node]:
        """Return all nodes in the order of their turns."""
        return [*self._nodes[self._at :], *self._nodes[: self._at]]

    def use(self, node: Node) -> None:
        """Set the node in use to one that has answered."""
        self._at = self._nodes.index(node)
        self.have_answered = True

    def failed(self, node: Node) -> None:
        """Turn to the next node, unless another call has done so already."""
        if node is self.current:
            self._at = (self._at + 1) % len(self._nodes)

    async def close(self) -> None:
        """End all calls and connections."""
        self.is_closed = True
        if "_nodes" in self.__dict__ and _caller() == os.getpid():
            await asyncio.gather(*(node.channel.close(grace=None) for node in self._nodes))


def _node(
    address: str, token: str | None, tls: TlsIdentity | None, max_response_bytes: int
) -> Node:
    channel, metadata = open_channel(address, token, tls, max_response_bytes=max_response_bytes)
    store, admin = store_pb2_grpc.StoreStub(channel), admin_pb2_grpc.AdminStub(channel)
    return Node(address, channel, metadata, tls, store, admin)
