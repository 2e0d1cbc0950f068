"""The counters of a node that say by which way its messages came."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections import Counter
from typing import Final

from store.demo.limits import CALL_TIMEOUT_S, MAX_METRICS_BYTES

_STORED: Final = re.compile(
    rb'^storenode_messages_stored_total\{source="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE
)
WAYS: Final = ("gossip", "transfer", "resume")
"""Values of the label ``source`` for messages from other nodes; `transfer` is reconciliation."""


async def stored_by_source(address: str) -> Counter[str]:
    """Return the number of messages that a node has stored since its start, by source."""
    text = await asyncio.to_thread(_metrics, address)
    return Counter({name.decode(): int(float(value)) for name, value in _STORED.findall(text)})


def _metrics(address: str) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=CALL_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(MAX_METRICS_BYTES)
    finally:
        connection.close()
