"""``Publish`` and ``PublishStream``: from the bytes of a request to durable messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from store.domain.access import Right
from store.domain.admission import Admission, Admitted, Verdict
from store.domain.ports import Source
from store.domain.quota import CallKind
from store.domain.unread import Confirmation
from store.messages.conflicts import StoreResult
from store.messages.fields import chunk_messages
from store.messages.record import RecordBatch
from store.serving.answers import COPIES
from store.serving.call import Call, Method
from store.serving.failure import over_limit, unready
from store.serving.methods.decode import decode_head
from storenode.message.limits import HASH_BYTES, MAX_BATCH_MESSAGES, MAX_REQUEST_BYTES, NS_PER_S
from storenode.message.rules import Reason
from storenode.message.varint import delimited, varint
from storenode.wire.storenode.internal.v1 import publish_raw_pb2
from storenode.wire.storenode.v1 import store_pb2

_publish = partial(Method, right=Right.PUBLISH, max_request_bytes=MAX_REQUEST_BYTES)
PUBLISH: Final = _publish("Publish", kind=CallKind.CALL, free_request_bytes=0)
# Each of its requests waits for its memory.
PUBLISH_STREAM: Final = _publish(
    "PublishStream", kind=CallKind.STREAM, free_request_bytes=MAX_REQUEST_BYTES
)

READ_ONLY: Final = "this node only reads: publish at a node that takes writes"
RETRY_NS: Final = 3_600 * NS_PER_S
"""The time in which a message that was received in time, and not stored, may be retried."""

_SOURCES: Final[dict[int, Source]] = {
    publish_raw_pb2.RAW_PUBLISH_SOURCE_RELAY: Source.RELAY,
    publish_raw_pb2.RAW_PUBLISH_SOURCE_NWAKU: Source.NWAKU,
}
ABANDONED_NS: Final = 1_000_000_000
"""A caller that hangs up after so long has waited for the database in vain."""

RESULT_BYTES: Final = 64
UNCOUNTED_RESULTS: Final = 64
"""The likely size of a message's result, and how many take no room before a unary answer."""

_CLOCKS: Final = frozenset({Reason.TOO_OLD, Reason.TOO_NEW})

_Result = store_pb2.PublishResult
_ACCEPTED, _STORED = Verdict.ACCEPTED, _Result.STORED
_OUTCOMES: Final = {
    _ACCEPTED: _Result.DUPLICATE,
    Verdict.DUPLICATE: _Result.DUPLICATE,
    Verdict.EPHEMERAL: _Result.EPHEMERAL,
    Verdict.REJECTED: _Result.REJECTED,
}
"""The outcome of a message that is not new."""

_RESULT: Final = b"\x0a"
_SHORT: Final = _RESULT + varint(HASH_BYTES + 4) + b"\x0a" + varint(HASH_BYTES)
_ENDS: Final = {each: b"\x10" + varint(each) for each in _Result.Outcome.values()}
"""The bytes before and behind a hash in a result that has nothing else."""


@dataclass(frozen=True, slots=True)
class PublishBatch:
    """A request whose messages are judged, which began at ``began_ns`` of the monotonic clock.

    ``timeout_s`` of confirmations; None: the node's. ``room_bytes``: what refusals take of answers.
    """

    published: Admitted
    source: Source
    min_confirms: int
    timeout_s: float | None
    began_ns: int
    room_bytes: int


async def publish(call: Call, request: bytes) -> bytes:
    """Serve ``Publish``."""
    return await respond(call, await admit(call, request, call.node.now_ns()))


async def admit(call: Call, request: bytes, now_ns: int) -> PublishBatch:
    """Judge the messages of a request by the time of its arrival; others have a turn now and then.

    Raises:
        CallError: it cannot be read or holds too many messages, the node only reads, or there is no
            room for its answer.
        QuotaExceededError: too many messages lately.
    """
    node, size, most = call.node, len(request), MAX_BATCH_MESSAGES
    decoded, is_whole = decode_head(publish_raw_pb2.RawPublishRequest, request, most)
    if node.read_only:
        raise unready(READ_ONLY)
    messages, count = decoded.messages, len(decoded.messages)
    if count > most or not is_whole:
        raise over_limit(
            f"the request holds more than {most:,} messages, or far more other fields: send fewer"
            " in one"
        )
    call.account.messages.take(count, node.monotonic_ns())
    room_bytes = 0
    if count > UNCOUNTED_RESULTS or call.counted is not None:
        room_bytes = await call.sender.take(COPIES * RESULT_BYTES * count)
    began_ns = node.monotonic_ns()
    source = Source.CLIENT
    if Right.BACKFILL in call.client.rights:
        source = _SOURCES.get(decoded.source, source)

    def is_retry(digest: bytes) -> bool:
        return began_ns - node.unstored.get(digest, -RETRY_NS) < RETRY_NS

    admission = Admission(node.policy(), now_ns, source, call.client, is_retry)
    step = chunk_messages(count, size)
    for start in range(0, count, step):
        if start:
            await asyncio.sleep(0)
        admission.admit(messages[start : start + step])
    in_time = all(each.label not in _CLOCKS for each in admission.admitted.refusals.values())
    node.clocks.note_publisher(call.client.name, in_time=in_time)
    if room_bytes:
        # Not for what is stored: else reads would wait for room while commits wait.
        before, room_bytes = room_bytes, COPIES * RESULT_BYTES * len(admission.admitted.refusals)
        call.sender.add(room_bytes - before)
    timeout_s = None
    if decoded.HasField("confirm_timeout"):
        timeout_s = decoded.confirm_timeout.ToNanoseconds() / NS_PER_S
    published, confirms = admission.admitted, decoded.min_confirms
    return PublishBatch(published, source, confirms, timeout_s, began_ns, room_bytes)


async def respond(call: Call, batch: PublishBatch) -> bytes:
    """Store a batch, and encode its answer when there is room for it, which it takes."""
    stored, published = await store(call, batch), batch.published
    confirmations = await confirm(call, batch, stored)
    if call.counted is None:
        return publish_response(published, stored, confirmations)
    expected_bytes = COPIES * RESULT_BYTES * len(published.hashes)
    room_bytes = batch.room_bytes + await call.counted.take(expected_bytes - batch.room_bytes)
    answer = publish_response(published, stored, confirmations)
    call.counted.add(COPIES * len(answer) - room_bytes)
    return answer


async def store(call: Call, batch: PublishBatch) -> StoreResult:
    """Store what was accepted, and return the outcome when all of it is durable.

    Conflicts with stored messages are refusals of the batch afterwards.
    """
    published, metrics = batch.published, call.node.metrics
    stored = StoreResult()
    metrics.publishes_in_flight.inc()
    try:
        if published.batch.hashes:
            stored = await call.node.writer.store(published.batch, batch.source, batch.min_confirms)
    except BaseException as error:
        # Also where the caller has given up: it tries again when its message may be too old.
        for digest in published.batch.content_digests:
            call.node.unstored[digest] = batch.began_ns
        # The deadline of a client ends its call like this too. A stream counts once.
        waited_ns = call.node.monotonic_ns() - batch.began_ns
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if is_cancelled and waited_ns >= ABANDONED_NS and not call.is_abandoned:
            call.is_abandoned = True
            metrics.publishes_abandoned.inc()
        raise
    finally:
        metrics.publishes_in_flight.dec()
    if published.ephemerals:
        # After the commit: a batch that fails is sent again as a whole.
        call.node.feed.announce_ephemeral(published.ephemerals)
    published.refuse_conflicts(stored)
    counts = published.count(stored)
    metrics.count_intake(batch.source.value, counts.duplicate, counts.rejected)
    metrics.messages_ephemeral.inc(counts.ephemeral)
    elapsed_ns = call.node.monotonic_ns() - batch.began_ns
    metrics.publish_batch_seconds.observe(elapsed_ns / NS_PER_S)
    return stored


async def confirm(call: Call, batch: PublishBatch, stored: StoreResult) -> Sequence[Confirmation]:
    """Return how many other stores confirmed each record; empty where none were wanted.

    Waits for them as long as the request says. A conflict is not waited for.
    """
    published, wanted = batch.published, batch.min_confirms
    if not wanted or not published.batch.hashes:
        return ()
    records, conflicts = published.batch, stored.conflicts
    # The bytes are not needed any more, and the wait may be long.
    published.batch = RecordBatch(hashes=records.hashes)
    positions = [index for index in range(len(records)) if index not in conflicts]
    hashes = [records.hashes[index] for index in positions]
    digests = [records.content_digests[index] for index in positions]
    del records
    if not hashes:
        return [Confirmation(0)] * len(stored)
    assert call.node.confirmations is not None, "only a node that reads alone has none"
    found = await call.node.confirmations.confirmed(
        hashes, digests, [stored[index] for index in positions], wanted, batch.timeout_s
    )
    confirmations = dict(zip(positions, found, strict=True))
    return [confirmations.get(index, Confirmation(0)) for index in range(len(stored))]


def publish_response(
    published: Admitted, stored: Sequence[bool], confirmations: Sequence[Confirmation] = ()
) -> bytes:
    """Encode a ``PublishResponse``, without an object per message.

    ``stored`` says of each record of the batch whether it was new, ``confirmations`` how many
    stores confirmed it, where that was asked for.
    """
    outcomes = [
        _STORED if verdict is _ACCEPTED and stored[position] else _OUTCOMES[verdict]
        for verdict, position in zip(published.verdicts, published.positions, strict=True)
    ]
    remarks = {index: Confirmation(0, each.sentence) for index, each in published.refusals.items()}
    for index, position in enumerate(published.positions if confirmations else ()):
        if position >= 0:
            found = remarks[index] = confirmations[position]
            outcomes[index] = _Result.UNCONFIRMED if found.reason else outcomes[index]
    hashes = published.hashes
    results = [_SHORT + each + _ENDS[end] for each, end in zip(hashes, outcomes, strict=True)]
    for index, found in remarks.items():
        result = _Result(
            message_hash=hashes[index],
            outcome=outcomes[index],
            reason=found.reason,
            confirms=found.confirms,
        )
        results[index] = delimited(_RESULT, result.SerializeToString())
    return b"".join(results)
