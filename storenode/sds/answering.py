"""Answering repair requests: from memory, and with what the application recalls from its log.

What is due and not in memory comes out as `Recall`; what the application gives for that is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from storenode.sds.events import Event, Reason, Recall, RepairAnswered
from storenode.sds.repair import may_answer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storenode.sds.channel import MessageChannel
    from storenode.sds.envelope import SdsMessage


def answer(channel: MessageChannel, now_ms: int, events: list[Event]) -> None:
    """Send again what others asked for and is due, and recall what is not in memory."""
    if channel.answers is None:
        return
    for message in channel.answers.take(now_ms):
        _send_again(channel, message, events)
    ids = channel.answers.take_recalls(now_ms)
    if ids:
        events.append(Recall(ids))


def recalled(channel: MessageChannel, messages: Iterable[SdsMessage]) -> list[Event]:
    """Send again what the application still had of a `Recall`.

    What is in the log no longer is left out, and what others are to answer.
    """
    events: list[Event] = []
    repair, own_id = channel.config.repair, channel.config.sender_id
    for message in messages:
        chosen = repair and may_answer(repair, own_id, message.sender_id, message.message_id)
        if chosen and message.message_id in channel.log:
            _send_again(channel, message, events)
    return events


def _send_again(channel: MessageChannel, message: SdsMessage, events: list[Event]) -> None:
    answers = channel.answers
    assert answers is not None
    requester = answers.requester_of(message.message_id)
    try:
        sent = replace(channel.broadcast(message, Reason.REPAIR, shown=False), requester=requester)
    except ValueError:
        # In the older revision, as it came, its history takes less room.
        channel.counts.repair_requests_ignored += 1
        return
    if answers.budget.spend(channel.clock.latest_ms, requester, len(sent.payload)):
        events += [sent, RepairAnswered(message.message_id)]
    else:
        channel.counts.repair_requests_ignored += 1
