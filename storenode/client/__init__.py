"""The client of store nodes: publish, query, scan, follow, SDS lookups; asyncio and blocking.

`AsyncClient` and `Client` have the same methods; `AsyncAdmin` and `Admin` call a node's admin
listener. They raise `StorenodeError`. `storenode.client.node` has calls on the schema's classes.
"""

from storenode.client.asynchronous import AsyncAdmin, AsyncClient
from storenode.client.blocking_client import Admin, Client, Publisher
from storenode.client.errors import (
    MessageRejectedError,
    NotConfirmedError,
    PositionError,
    PublishError,
)
from storenode.client.message import Message, Outcome, Page, Published, SdsMessage, SdsResult
from storenode.client.positions import Position
from storenode.client.publisher import AsyncPublisher
from storenode.client.retry import Retry
from storenode.common.errors import ArgumentError, ClientClosedError, StorenodeError
from storenode.connection.channel import TlsIdentity
from storenode.connection.errors import (
    AccessDeniedError,
    CallTimeoutError,
    ClientOptionError,
    ConnectionLostError,
    CursorRefusedError,
    InvalidRequestError,
    LimitExceededError,
    NodeDrainingError,
    NodeError,
    NodeUnavailableError,
    NodeUnreachableError,
    NotAuthenticatedError,
    NotServedError,
    TlsHandshakeError,
    WrongProtocolError,
)

__all__ = [
    "AccessDeniedError",
    "Admin",
    "ArgumentError",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncPublisher",
    "CallTimeoutError",
    "Client",
    "ClientClosedError",
    "ClientOptionError",
    "ConnectionLostError",
    "CursorRefusedError",
    "InvalidRequestError",
    "LimitExceededError",
    "Message",
    "MessageRejectedError",
    "NodeDrainingError",
    "NodeError",
    "NodeUnavailableError",
    "NodeUnreachableError",
    "NotAuthenticatedError",
    "NotConfirmedError",
    "NotServedError",
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
