"""What another participant's message says about ours, and about what we lack.

Source: SDS, "Review ACK status"; SDS-Repair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storenode.sds.envelope import Entry, Kind, SdsMessage
from storenode.sds.events import Acknowledged, Event
from storenode.sds.limits import MAX_REPAIR_ANSWERED

if TYPE_CHECKING:
    from storenode.sds.channel import MessageChannel


def learn(channel: MessageChannel, now_ms: int, message: SdsMessage, events: list[Event]) -> None:
    """What another's message says about ours (SDS, "Review ACK status"), and repair."""
    named = {entry.message_id for entry in message.history}
    news = message.kind is Kind.CONTENT or not channel.heads.ids.keys() <= named
    channel.pace.heard(now_ms, news=news)
    for entry in message.history:
        if channel.outgoing.remove(entry.message_id):
            events.append(Acknowledged(entry.message_id, 0.0, message.sender_id))
        # A sender that names its own message has not heard that anybody has it.
        known = channel.log.recent(entry.message_id)
        if known is not None and known.sender_id != message.sender_id:
            channel.pace.acknowledged(entry.message_id)
        channel.gaps.named(entry.message_id)
    if message.bloom_filter is not None:
        _review(channel, now_ms, message, message.bloom_filter, events)
    if channel.answers is not None and channel.requests is not None:
        for entry in message.repair_request[:MAX_REPAIR_ANSWERED]:
            channel.requests.put_off(entry.message_id, now_ms)
        ignored = channel.answers.asked(
            message.repair_request, channel.log, now_ms, message.sender_id
        )
        channel.counts.repair_requests_ignored += ignored


def _review(
    channel: MessageChannel,
    now_ms: int,
    message: SdsMessage,
    bloom_filter: bytes,
    events: list[Event],
) -> None:
    config, sender_id, lamport = channel.config, message.sender_id, message.lamport or 0
    filters = channel.filters
    if filters.is_time(sender_id, now_ms):
        in_use, waiting = channel.lacks.shapes(), channel.incoming.ids
        filters.look(sender_id, bloom_filter, channel.log, now_ms, waiting=waiting, in_use=in_use)
    shape = filters.shape_of(sender_id, bloom_filter)
    channel.lacks.look(sender_id, bloom_filter, shape, lamport, now_ms)
    if shape is None:
        channel.counts.filters_unreadable += 1
        return
    channel.showing.heard(now_ms)
    if channel.outgoing.by_id:
        events += channel.outgoing.witness(
            bloom_filter,
            shape,
            message,
            needed=config.possible_acks,
            max_error=config.max_ack_error,
            resend_ms=config.resend_possible_ms - config.resend_ms,
        )
    if config.gap_entries and channel.gaps.is_time(now_ms):
        unix_ms = channel.clock.unix_ms(now_ms)
        entries = channel.gaps.entries(channel.log, shape, lamport, unix_ms)
        for key in channel.gaps.look(bloom_filter, shape, sender_id, entries, now_ms):
            if channel.answers is not None:
                channel.answers.offer(Entry(key), channel.log, now_ms, sender_id)
