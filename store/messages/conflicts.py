"""Messages that share a hash and differ in their content.

The Waku hash joins its fields without their lengths, so that it does not determine the content of a
message (`storenode.message.hashing.content_digest` does). A store keeps the message that came
first. The other one is a conflict: it is refused, counted and logged, and never confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Conflict(NamedTuple):
    """A message that is not stored because another one has its hash; both by content digest."""

    message_hash: bytes
    stored_digest: bytes
    received_digest: bytes

    def fields(self) -> dict[str, str]:
        """Return the fields of a log event, in hex."""
        return {
            "hash": self.message_hash.hex(),
            "stored_digest": self.stored_digest.hex(),
            "received_digest": self.received_digest.hex(),
        }


class StoreResult(list[bool]):
    """The outcome of a batch: per record True if it is new, False if its hash was stored already.

    ``conflicts`` has the records that are not stored because another message with their hash is: by
    place in the batch, the content digest of the stored message.
    """

    def __init__(
        self, is_new: Iterable[bool] = (), conflicts: Mapping[int, bytes] | None = None
    ) -> None:
        super().__init__(is_new)
        self.conflicts: Mapping[int, bytes] = conflicts or {}


def is_other_content(stored_digest: bytes, received_digest: bytes) -> bool:
    """Return True if two messages with one hash are known to differ.

    An empty digest is unknown: a peer that does not send digests is taken by the hash alone, as the
    base protocol has it. Nodes of this project always send them.
    """
    return bool(stored_digest and received_digest) and stored_digest != received_digest
