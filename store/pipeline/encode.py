"""Rows as a node takes messages: the inverse of `store.pipeline.decode`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from storenode.message.varint import delimited, varint

COLUMNS: Final = (
    "ts",
    "hash",
    "pubsub_topic",
    "content_topic",
    "payload",
    "version",
    "meta",
    "rate_limit_proof",
    "ephemeral",
)
"""The columns that a message is made of."""


def encoded(row: Mapping[str, Any]) -> bytes:
    """Encode the ``WakuMessageAndTopic`` of a row, fields in ascending order (14/WAKU2-MESSAGE).

    Raises:
        ValueError: a number is negative.
    """
    parts = [delimited(b"\x0a", row["payload"])] if row["payload"] else []
    parts.append(delimited(b"\x12", row["content_topic"].encode()))
    if row["version"] is not None:
        parts.append(b"\x18" + varint(row["version"]))
    parts.append(b"\x50" + varint(2 * row["ts"]))
    if row["meta"] is not None:
        parts.append(delimited(b"\x5a", row["meta"]))
    if row["rate_limit_proof"] is not None:
        parts.append(delimited(b"\xaa\x01", row["rate_limit_proof"]))
    if row["ephemeral"] is not None:
        parts.append(b"\xf8\x01" + varint(row["ephemeral"]))
    message = delimited(b"\x0a", b"".join(parts))
    return message + delimited(b"\x12", row["pubsub_topic"].encode())
