"""From the messages of a request to durable messages, whatever protocol they came by."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.domain.admission import Admission, Admitted
from store.domain.ports import Services, Source
from store.domain.unread import Confirmation
from store.messages.conflicts import StoreResult
from store.messages.fields import chunk_messages
from store.messages.record import RecordBatch
from store.serving.call import Call
from store.serving.failure import over_limit, unready
from storenode.message.rules import Reason

READ_ONLY: Final = "this node only reads: publish at a node that takes writes"

_NS_PER_S: Final = 1e9
_SOURCE: Final = Source.CLIENT.value
_CLOCKS: Final = frozenset({Reason.TOO_OLD, Reason.TOO_NEW})


@dataclass(frozen=True, slots=True)
class Batch:
    """A request whose messages are judged; it arrived at ``began_ns`` of the monotonic clock.

    ``timeout_s``: how long to wait for confirmations, None for the node's time.
    """

    published: Admitted
    min_confirms: int
    timeout_s: float | None
    began_ns: int


class Publishing:
    """Judges, stores and confirms."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def judge(
        self,
        call: Call,
        messages: Sequence[bytes],
        size_bytes: int,
        *,
        min_confirms: int = 0,
        timeout_s: float | None = None,
    ) -> Batch:
        """Judge encoded ``WakuMessageAndTopic``, letting others have a turn now and then.

        ``size_bytes`` is the size of the request that they came in.

        Raises:
            CallFailure: too many messages in this request, or the node only reads.
            Exceeded: too many messages lately.
        """
        node, count = call.node, len(messages)
        began_ns = node.monotonic_ns()
        if node.read_only:
            raise unready(READ_ONLY)
        most = node.limits.batch_messages
        if count > most:
            raise over_limit(f"the request holds more than {most:,} messages: send fewer in one")
        call.account.messages.take(count, began_ns)
        admission = Admission(node.policy(), node.now_ns(), Source.CLIENT, call.client)
        step = chunk_messages(count, size_bytes)
        for start in range(0, count, step):
            if start:
                await asyncio.sleep(0)
            admission.admit(messages[start : start + step])
        in_time = all(each.label not in _CLOCKS for each in admission.admitted.refusals.values())
        node.clocks.note_publisher(call.client.name, in_time=in_time)
        return Batch(admission.admitted, min_confirms, timeout_s, began_ns)

    async def store(self, call: Call, batch: Batch) -> StoreResult:
        """Store what was accepted, and return the outcome when all of it is durable.

        Conflicts with stored messages are refusals of the batch afterwards.
        """
        published, metrics = batch.published, call.node.metrics
        stored = StoreResult()
        metrics.publishes_in_flight.inc()
        try:
            if published.batch.hashes:
                stored = await self._services.writer.store(
                    published.batch, Source.CLIENT, batch.min_confirms
                )
        finally:
            metrics.publishes_in_flight.dec()
        if published.ephemerals:
            # After the commit: a batch that fails is sent again as a whole.
            self._services.feed.announce_ephemeral(published.ephemerals)
        published.refuse_conflicts(stored)
        counts = published.count(stored)
        metrics.count_intake(_SOURCE, counts.duplicate, counts.rejected)
        if counts.ephemeral:
            metrics.messages_ephemeral.inc(counts.ephemeral)
        elapsed_ns = call.node.monotonic_ns() - batch.began_ns
        metrics.publish_batch_seconds.observe(elapsed_ns / _NS_PER_S)
        return stored

    async def confirmed(
        self, call: Call, batch: Batch, stored: StoreResult
    ) -> Sequence[Confirmation]:
        """Return how many other stores confirmed each record; empty where none were wanted.

        Waits for them as long as the request says. A conflict is not waited for.
        """
        published, wanted = batch.published, batch.min_confirms
        if not wanted or not published.batch.hashes:
            return ()
        held, conflicts = published.batch, stored.conflicts
        # Nobody needs the bytes any more, and the wait may be long.
        published.batch = RecordBatch(hashes=held.hashes)
        places = [place for place in range(len(held)) if place not in conflicts]
        hashes = [held.hashes[place] for place in places]
        digests = [held.content_digests[place] for place in places]
        del held
        if not hashes:
            return [Confirmation(0)] * len(stored)
        with call.part("confirm", min_confirms=wanted):
            found = await call.node.confirmations.confirmed(
                hashes, digests, [stored[place] for place in places], wanted, batch.timeout_s
            )
        by_place = dict(zip(places, found, strict=True))
        return [by_place.get(place, Confirmation(0)) for place in range(len(stored))]
