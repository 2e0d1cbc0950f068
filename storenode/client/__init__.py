"""The client of store nodes: publish, query, scan, follow, SDS lookups; asyncio and blocking.

`AsyncClient` and `Client` have the same methods; `AsyncAdmin` and `Admin` call a node's admin
listener. Everything that they raise derives from `StorenodeError`. Modules of this package hold the
calls on the schema's own classes (`storenode.client.node`), on which these stand.
"""

from storenode.client.asynchronous import AsyncAdmin, AsyncClient
from storenode.client.blocking_client import Admin, Client, Publisher
from storenode.client.errors import MessageRejected, NotConfirmed, PositionError, PublishError
from storenode.client.message import Message, Outcome, Page, Published, SdsMessage, SdsResult
from storenode.client.positions import Position
from storenode.client.publisher import AsyncPublisher
from storenode.client.retry import Retry
from storenode.common.errors import ArgumentError, ClientClosed, StorenodeError
from storenode.connection.channel import TlsIdentity
from storenode.connection.errors import (
    AccessDenied,
    CallTimeout,
    ClientOptionError,
    ConnectionLost,
    CursorRefused,
    InvalidRequest,
    LimitExceeded,
    NodeDraining,
    NodeError,
    NodeUnavailable,
    NodeUnreachable,
    NotAuthenticated,
    NotServed,
    TlsHandshakeError,
    WrongProtocolError,
)

__all__ = [
    "AccessDenied",
    "Admin",
    "ArgumentError",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncPublisher",
    "CallTimeout",
    "Client",
    "ClientClosed",
    "ClientOptionError",
    "ConnectionLost",
    "CursorRefused",
    "InvalidRequest",
    "LimitExceeded",
    "Message",
    "MessageRejected",
    "NodeDraining",
    "NodeError",
    "NodeUnavailable",
    "NodeUnreachable",
    "NotAuthenticated",
    "NotConfirmed",
    "NotServed",
    "Outcome",
    "Page",
    "Position",
    "PositionError",
    "PublishError",
    "Published",
    "Publisher",
    "Retry",
    "SdsMessage",
    "SdsResult",
    "StorenodeError",
    "TlsHandshakeError",
    "TlsIdentity",
    "WrongProtocolError",
]
