"""The messages of `publish`, from payloads or from lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from storenode.cli.client.text import safe
from storenode.cli.errors import FAILED, USAGE, CliError
from storenode.client.messages import hash_of, new_message
from storenode.client.plain import message_from_plain
from storenode.client.sds_messages import sds_payload
from storenode.common.errors import ArgumentError
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.sds.proofs import message_digest

if TYPE_CHECKING:
    from storenode.client.node import Entry
    from storenode.client.types import WakuMessageAndTopic

_NS_PER_MS = 1_000_000
_CURSOR_KEYS = frozenset({"cursor", "pagination_cursor"})


class MessageBuilder:
    """Makes one message after the other, each with a timestamp of its own.

    ``timestamp_ns`` is the first one's; None: now. With ``channel_id`` they are SDS messages, of
    which the first names ``parents``, and each other one the one before.
    """

    def __init__(
        self,
        *,
        pubsub_topic: str,
        content_topic: str,
        timestamp_ns: int | None,
        meta: bytes | None = None,
        ephemeral: bool = False,
        channel_id: str | None = None,
        sender_id: str = "",
        parents: tuple[Entry, ...] = (),
        message_id: str | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._topics = content_topic, pubsub_topic
        self._wanted_ns = timestamp_ns
        self._meta = meta
        self._ephemeral = ephemeral or None
        self._channel_id = channel_id
        self._sender_id = sender_id
        self._parents = parents
        self._message_id = message_id
        self._clock = clock
        self._last_ns: int | None = None
        self._last_lamport = 0

    def make(self, payload: bytes) -> WakuMessageAndTopic:
        """Wrap a payload, in an SDS message where a channel is given.

        Raises:
            CliError: It would be no SDS message.
        """
        message_id = ""
        if self._channel_id is not None:
            message_id, payload = self._wrapped(self._channel_id, payload)
        message = new_message(
            payload,
            *self._topics,
            self._timestamp_ns(),
            meta=self._meta,
            ephemeral=self._ephemeral,
        )
        if message_id:
            self._parents = ((message_id, _hint(message)),)
        return message

    def _timestamp_ns(self) -> int:
        first = self._clock() if self._wanted_ns is None else self._wanted_ns
        # Equal payloads must not become one message.
        if self._last_ns is not None:
            first = min(max(first, self._last_ns + 1), MAX_TIMESTAMP_NS)
        self._last_ns = first
        return first

    def _wrapped(self, channel_id: str, content: bytes) -> tuple[str, bytes]:
        """Return the ID and the payload of an SDS message; by default its ID is its hash."""
        lamport = self._last_lamport = max(self._clock() // _NS_PER_MS, self._last_lamport + 1)
        names = [parent.encode() for parent, _ in self._parents]
        who = channel_id.encode(), self._sender_id.encode()
        message_id = self._message_id or message_digest(*who, lamport, names, content)
        try:
            return message_id, sds_payload(
                channel_id,
                message_id,
                content,
                sender_id=self._sender_id,
                lamport=lamport,
                parents=self._parents,
            )
        except ValueError as error:
            raise CliError(USAGE, safe(str(error))) from error


def _hint(message: WakuMessageAndTopic) -> bytes | None:
    try:
        return hash_of(message)
    except ValueError:
        # The timestamp that was asked for has no hash; the node says so in its answer.
        return None


class JsonLines:
    """Reads what `scan --json` prints back into messages."""

    def __init__(self) -> None:
        self._line = 0

    def read(self, line: bytes) -> WakuMessageAndTopic | None:
        """Parse the message of one line; ``None`` for a blank one and for a cursor.

        Raises:
            CliError: The line is something else.
        """
        self._line += 1
        if not line.strip():
            return None
        try:
            value = json.loads(line)
            if isinstance(value, dict) and _CURSOR_KEYS & value.keys():
                return None
            return message_from_plain(value)
        except ArgumentError as error:
            raise self._refused(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise self._refused("it is not JSON in UTF-8") from error

    def _refused(self, cause: str) -> CliError:
        return CliError(FAILED, f"Line {self._line} of the input is no message: {safe(cause)}.")
