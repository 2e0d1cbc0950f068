"""The message IDs that prove their message: those that can be recomputed from its fields.

Nodes and participants judge alike. An ID that covers channel, sender, clock, causal history and
content proves all of that; one that is the SHA-256 of the content, as `@waku/sds` makes it, proves
the content. Filters, repair requests and hints are in no ID.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

ID_BYTES: Final = 64
"""Of an ID that can be a proof: the hexadecimal digits of a SHA-256."""

_NAMED: Final = b"sds.v1"


def joined(parts: Iterable[bytes]) -> bytes:
    """Return parts one after the other, each behind its length as four bytes, big-endian."""
    return b"".join([len(part).to_bytes(4) + part for part in parts])


def message_digest(
    channel_id: bytes, sender_id: bytes, lamport: int, parents: Iterable[bytes], content: bytes
) -> str:
    """Return the ID that proves a message: 64 lower-case hexadecimal digits.

    IDs are UTF-8, ``parents`` those of the causal history.
    """
    parts = (_NAMED, channel_id, sender_id, b"%d" % lamport, *parents, b"", content)
    return sha256(joined(parts)).hexdigest()


def proves_content(message_id: str, content: bytes) -> bool:
    """Return True if an ID is the SHA-256 of the content.

    With the bytes that another's ID is made of as content, anybody would prove that ID: such
    content proves nothing.
    """
    if content.startswith(_DIGESTED):
        return False
    return message_id == sha256(content).hexdigest()


_DIGESTED: Final = joined([_NAMED])
