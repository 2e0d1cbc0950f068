"""What becomes of forged messages: those that come, and those that were taken for genuine.

Where an ID proves the content alone, copies with that content may name different senders, clocks
and histories, and nobody can tell which is genuine. The first that can be delivered counts:
otherwise a copy with invented causes would hold up the content for as long as they are waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storenode.sds.claims import Proof, proof_of
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


def frees(channel: MessageChannel, message: SdsMessage) -> bool:
    """Whether a message waits of which another copy with the same proven content need not wait."""
    serial = channel.incoming.ids.get(message.message_id)
    if serial is None:
        return False
    waiting = channel.incoming.waiting[serial]
    if not waiting.unmet or waiting.message.content != message.content:
        return False
    return proof_of(message) is Proof.CONTENT and not channel.unmet(message)


def withdraw(channel: MessageChannel, message_id: str, events: list[Event]) -> None:
    """Let a message go whose place another one takes: its ID proves nothing, or it waits."""
    copy = channel.claims.is_certain(message_id)
    lamport = 0 if copy else channel.claims.withdraw(message_id)
    channel.counts.forged += not copy
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
