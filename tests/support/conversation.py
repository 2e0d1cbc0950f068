"""A channel's past, made at once: what some participants would have said to each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from storenode.message.hashing import message_hash
from storenode.sds.bloom import FilterShape, RollingFilter
from storenode.sds.codec import Entry, SdsMessage, encode_message
from storenode.sds.proofs import content_id

NS_PER_MS = 1_000_000
CONTENT_BYTES = 100


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a channel as it was published."""

    message_id: str
    payload: bytes
    timestamp_ns: int
    hint: bytes


def conversation(
    channel_id: str,
    count: int,
    *,
    pubsub_topic: str,
    content_topic: str,
    newest_ns: int,
    shape: FilterShape,
    senders: int = 4,
    hints: bool = True,
) -> Iterator[Said]:
    """Yield messages one millisecond apart; each names the two before it, and has a filter."""
    seen = RollingFilter(shape)
    rng = random.Random(count)
    last: list[Entry] = []
    for number in range(count):
        timestamp_ns = newest_ns - (count - 1 - number) * NS_PER_MS
        lamport, sender = timestamp_ns // NS_PER_MS, f"participant-{number % senders}"
        history, content = tuple(last[-2:]), rng.randbytes(CONTENT_BYTES)
        name = content_id(channel_id, sender, lamport, history, content)
        message = SdsMessage(
            channel_id, name, sender, lamport, history, seen.encode(), content=content
        )
        payload = encode_message(message)
        hint = message_hash(pubsub_topic, payload, content_topic, None, timestamp_ns)
        seen.add(name)
        last = [*last[-1:], Entry(name, hint if hints else None, sender)]
        yield Said(name, payload, timestamp_ns, hint)
