"""What becomes of forged messages: those that come, and those that were taken for genuine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storenode.sds.events import Event, Forged, Withdrawn

if TYPE_CHECKING:
    from storenode.sds.channel import MessageChannel
    from storenode.sds.envelope import SdsMessage


def reject(
    channel: MessageChannel, message: SdsMessage, hint: bytes | None, events: list[Event]
) -> None:
    """Report a forged message, once."""
    if channel.claims.is_news(message):
        message_id, sender, lamport = message.message_id, message.sender_id, message.lamport
        certain = channel.claims.is_certain(message_id)
        content = message.content or b""
        channel.counts.forged += 1
        events.append(Forged(message_id, sender, lamport or 0, content, hint, certain))


def withdraw(channel: MessageChannel, message_id: str, events: list[Event]) -> None:
    """Let a message go whose ID proves nothing: the genuine one is here."""
    lamport = channel.claims.withdraw(message_id)
    channel.counts.forged += 1
    if channel.incoming.withdraw(message_id):
        for forgotten in channel.incoming.take_forgotten():
            channel.stop_asking(forgotten)
        return
    channel.log.remove((lamport, message_id))
    channel.heads.ids.pop(message_id, None)
    # It may have passed for naming messages that nothing else names.
    channel.showing.due = True
    if channel.answers is not None:
        channel.answers.drop(message_id)
    events.append(Withdrawn(message_id, lamport))
