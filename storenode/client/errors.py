"""What the client raises: every error has a name, and a sentence that says what to do.

All derive from `StorenodeError`. Calls raise a kind of `NodeError`; publishing raises a kind of
`PublishError` for what the node decided about a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storenode.common.errors import ArgumentError, ClientClosed, StorenodeError
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

if TYPE_CHECKING:
    from storenode.client.message import Message, Published

__all__ = [
    "AccessDenied",
    "ArgumentError",
    "CallTimeout",
    "ClientClosed",
    "ClientOptionError",
    "ConnectionLost",
    "CursorRefused",
    "InvalidRequest",
    "LimitExceeded",
    "MessageRejected",
    "NodeDraining",
    "NodeError",
    "NodeUnavailable",
    "NodeUnreachable",
    "NotAuthenticated",
    "NotConfirmed",
    "NotServed",
    "PositionError",
    "PublishError",
    "StorenodeError",
    "TlsHandshakeError",
    "WrongProtocolError",
]


class PositionError(StorenodeError):
    """The position of a reader cannot be read or written; the sentence names the file."""


class PublishError(StorenodeError):
    """The node has answered for ``message`` with a ``result`` that is not what was asked for."""

    def __init__(self, message: Message, result: Published, sentence: str) -> None:
        super().__init__(sentence)
        self.message = message
        self.result = result
        self.sentence = sentence


class MessageRejected(PublishError):
    """The node does not take this message, now or later; the sentence says why."""


class NotConfirmed(PublishError):
    """The node holds the message, but too few other stores confirmed it in time."""
