"""The comparison of what is held in the end with what was said and published.

Each node is read whole and hashes are computed again; its own counts and states are not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from store.demo.cluster import Cluster
from store.demo.ledger import Ledger, hash_of
from store.demo.people import CHANNELS, People
from storenode.client.node import connect
from storenode.connection.errors import NodeError
from storenode.sds.aio.events import Message


@dataclass(slots=True)
class Verdict:
    """The stores that were read, and a sentence for each difference that was found."""

    held: dict[str, set[bytes]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)


async def judge(cluster: Cluster, ledger: Ledger, people: People) -> Verdict:
    """Compare stores with what was published, and logs with what was said."""
    verdict = Verdict()
    results = await asyncio.gather(*(_scan(cluster, name) for name in cluster.nodes))
    for name, (held, differences) in zip(cluster.nodes, results, strict=True):
        verdict.held[name] = held
        verdict.differences += differences
    verdict.differences += store_differences(verdict.held, ledger)
    for channel_id in CHANNELS:
        logs = {each.who.name: each.final for each in people.members(channel_id)}
        verdict.differences += log_differences(channel_id, ledger.said.get(channel_id, {}), logs)
    return verdict


async def _scan(cluster: Cluster, name: str) -> tuple[set[bytes], list[str]]:
    """Return the hashes of all that a node holds, computed from the fields, and differences."""
    held: set[bytes] = set()
    differences: list[str] = []
    try:
        async with (
            connect(cluster.addresses[name], tls=cluster.tls) as client,
            aclosing(client.scan()) as pages,
        ):
            async for page in pages:
                for item in page.messages:
                    message = item.message
                    digest = hash_of(
                        item.pubsub_topic, message.payload, message.content_topic, message.timestamp
                    )
                    if digest != item.message_hash:
                        differences.append(f"{name} holds a message under the hash of another.")
                    if digest in held:
                        differences.append(f"{name} holds a message twice.")
                    held.add(digest)
    except NodeError as error:
        differences.append(f"{name} could not be read: {error.sentence}")
    return held, differences


def store_differences(held: dict[str, set[bytes]], ledger: Ledger) -> Iterator[str]:
    """Yield a sentence for each way in which stores differ from each other or from the ledger."""
    everything = set().union(*held.values())
    for name, own in held.items():
        if lacking := len(everything - own):
            yield f"{name} lacks {lacking:,} of {len(everything):,} messages that others hold."
        if lost := len(ledger.acknowledged - own):
            yield f"{name} lacks {lost:,} messages that were acknowledged."
        if strange := len(own - ledger.offered):
            yield f"{name} holds {strange:,} messages that nobody published."


def log_differences(
    channel_id: str, said: Mapping[str, bytes], logs: Mapping[str, Sequence[Message]]
) -> Iterator[str]:
    """Yield a sentence for each way in which logs differ from each other or from what was said."""
    orders = {tuple(message.message_id for message in log) for log in logs.values()}
    if len(orders) > 1:
        yield f"In {channel_id} the logs of {len(logs)} participants are not the same."
    for name, log in logs.items():
        found = {message.message_id: message.content for message in log}
        if len(found) != len(log):
            yield f"The log of {name} has a message twice."
        if lost := len(said.keys() - found.keys()):
            yield f"The log of {name} lacks {lost:,} of {len(said):,} messages."
        if any(said.get(message_id) != content for message_id, content in found.items()):
            yield f"The log of {name} has a message that nobody has said so."
