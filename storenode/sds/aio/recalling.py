"""Messages that others ask for and that are not in memory are read from the state."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from storenode.sds.aio.ledger import Row
from storenode.sds.aio.schema import LAMPORT_OFFSET
from storenode.sds.aio.state import StateError
from storenode.sds.envelope import MessageError, SdsMessage, decode_history
from storenode.sds.limits import MAX_PENDING_RECALLS, MAX_RECALLED_AT_ONCE


class Recalling:
    """Reads a few at a time with ``read``, in the thread of the state, and hands them to ``found``.

    What cannot be read is left out: it will be asked for again.
    """

    def __init__(
        self,
        channel_id: str,
        read: Callable[[Sequence[str]], Awaitable[list[Row]]],
        found: Callable[[list[SdsMessage]], None],
    ) -> None:
        self._channel_id = channel_id
        self._read = read
        self._found = found
        self._wanted: deque[str] = deque(maxlen=MAX_PENDING_RECALLS)
        self._news = asyncio.Event()

    def want(self, message_ids: Sequence[str]) -> None:
        """Have messages read; where too many wait, the oldest are left out."""
        self._wanted.extend(message_ids)
        self._news.set()

    async def run(self) -> None:
        """Read for ever what `want` names."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted:
                some = [
                    self._wanted.popleft()
                    for _ in range(min(MAX_RECALLED_AT_ONCE, len(self._wanted)))
                ]
                with suppress(StateError, MessageError):
                    rows = await self._read(some)
                    self._found([message_of(self._channel_id, row) for row in rows])


def message_of(channel_id: str, row: Row) -> SdsMessage:
    """A row of the log as the message that it was, without filter and requests.

    Raises:
        MessageError: its causal history is damaged.
    """
    return SdsMessage(
        channel_id,
        row["message_id"].decode(),
        row["sender_id"].decode(),
        row["lamport"] + LAMPORT_OFFSET,
        decode_history(row["history"]),
        content=row["content"],
    )
