"""Reading messages for a transfer, against what was stored."""

import random

from reconcile.ids import SyncIds
from store.db.reading.transfer_reads import MAX_LOADED_IDS, TransferReader
from store.messages.transfer import transferred
from tests.integration.storage.node import Node
from tests.integration.storage.world import (
    DAY,
    NOW,
    TOPICS,
    KnownMessage,
    batch_of,
    in_order,
    messages_of,
)

EVERYTHING = 2**40


async def filled(node: Node, sizes: list[int], *, spread: int = 40 * DAY) -> list[KnownMessage]:
    """Store messages with payloads of these sizes over many partitions, three in a nanosecond."""
    rng = random.Random(1)
    batch = batch_of(
        (
            NOW - spread + (number // 3) * (spread // (len(sizes) // 3 + 1)),
            rng.choice(TOPICS),
            rng.randbytes(size),
        )
        for number, size in enumerate(sizes)
    )
    await node.store(batch)
    return in_order(messages_of(batch))


def ids_of(stored: list[KnownMessage]) -> SyncIds:
    return SyncIds.of(message.at for message in stored)


def with_strangers(stored: list[KnownMessage]) -> tuple[SyncIds, list[bytes | None]]:
    """Return IDs of which some are stored, and what a read should give."""
    known = {message.at: transferred(message.frame) for message in stored}
    strangers = [(timestamp, bytes(32)) for timestamp, _ in list(known)[::2]]
    strangers += [(timestamp + 1, digest) for timestamp, digest in list(known)[::3]]
    ids = sorted({*known, *strangers})
    return SyncIds.of(ids), [known.get(at) for at in ids]


async def test_messages_come_in_the_order_asked(node: Node) -> None:
    stored = await filled(node, [0, 1, 127, 128, 2_000, 9_000, 150_000, 40] * 40)
    ids, expected = with_strangers(stored)
    reads = TransferReader(node.database)
    assert await reads.load(ids, EVERYTHING) == expected
    assert await reads.held(ids) == [message is not None for message in expected]


async def test_a_read_is_cut_at_its_bytes_and_goes_on_from_there(node: Node) -> None:
    stored = await filled(node, [10, 3_000, 100_000, 10, 10] * 30)
    ids, expected = with_strangers(stored)
    reads, given, largest = TransferReader(node.database), list[bytes | None](), 0
    limit = 120_000
    while len(given) < len(ids):
        part = await reads.load(ids[len(given) :], limit)
        assert part
        largest = max(largest, sum(len(message or b"") for message in part))
        given += part
    assert given == expected
    assert 100_000 < largest <= limit


async def test_a_message_that_alone_is_too_large_comes_alone(node: Node) -> None:
    stored = await filled(node, [5_000, 5_000, 5_000])
    ids = ids_of(stored)
    reads = TransferReader(node.database)
    assert await reads.load(ids, 1) == [transferred(stored[0].frame)]
    missing_first = SyncIds.join([SyncIds.of([(1, bytes(32))]), ids])
    assert await reads.load(missing_first, 1) == [None, transferred(stored[0].frame)]


async def test_many_in_one_nanosecond_and_nothing_at_all(node: Node) -> None:
    count = MAX_LOADED_IDS + 100
    stored = await filled(node, [8] * count, spread=0)
    reads, ids = TransferReader(node.database), ids_of(stored)
    first = await reads.load(ids, EVERYTHING)
    assert first == [transferred(message.frame) for message in stored[:MAX_LOADED_IDS]]
    assert await reads.held(ids) == [True] * count
    assert await reads.load(SyncIds.empty(), EVERYTHING) == []
    assert await reads.held(SyncIds.empty()) == []
    strangers = SyncIds.of([(NOW, bytes(32)), (NOW + 1, bytes(32))])
    assert await reads.load(strangers, 1) == [None, None]
    assert await reads.held(strangers) == [False, False]
