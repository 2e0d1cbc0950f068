"""The errors of the client beyond those of calls, which `storenode.connection.errors` has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storenode.common.errors import StorenodeError

if TYPE_CHECKING:
    from storenode.client.message import Message, Published


class PositionError(StorenodeError):
    """The position of a reader cannot be read or written; the sentence names the file."""


class PublishError(StorenodeError):
    """The ``result`` of ``message`` is not what the caller asked for."""

    def __init__(self, message: Message, result: Published, sentence: str) -> None:
        super().__init__(sentence)
        self.message = message
        self.result = result
        self.sentence = sentence


class MessageRejectedError(PublishError):
    """The node will never accept this message; the sentence says why."""


class NotConfirmedError(PublishError):
    """The node holds the message, but too few other stores confirmed it in time."""
