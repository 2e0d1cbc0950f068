"""Limits of gossip; those that tests and the simulator change are in `GossipLimits`.

Source: the event graph's network protocol (the list of seen IDs) and the node's contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from storenode.message.limits import NS_PER_S

MAX_PEERS: Final = 64
"""Streams at one moment; a further one is refused, or takes the place of another. No unread
event waits for more stores."""

RESERVED_PEERS: Final = 32
"""Streams among them that only trusted peers, and those that this node calls, can have."""

LEAST_WAIT_NS: Final = 10 * NS_PER_S
"""A stream that has brought nothing for so long may lose its place to one that is worth more, or to
any where it has never brought anything."""

WAIT_PATIENCE_NS: Final = 60 * NS_PER_S
"""The time after which a request goes to a peer of the same worth."""

USEFUL_NS: Final = 600 * NS_PER_S
"""A peer is worth something for so long after its last message."""

MAX_STORES: Final = 256
"""Stores of which is remembered what they hold; with more, the one that left first is forgotten."""

LARGE_FRAME_IDS: Final = 256
"""A received frame with this many IDs, which take milliseconds, is the only one of its turn of the
event loop."""

NEWS_WINDOW: Final = 8_192
"""Messages that are announced to a peer before it says that it holds any of them."""

NEWS_ORDER: Final = 4_096
"""A peer that holds a message has handled those announced this many messages before it."""

NEWS_PATIENCE_NS: Final = 10 * NS_PER_S
"""A peer that has not confirmed any for so long gets further ones."""

MAX_UNSTORED_FRAMES: Final = 64
MAX_UNSTORED_BYTES: Final = 64 * 1024 * 1024
"""Received frames of one peer, and bytes of all peers and of those that have left, that wait for
the database; with more, a peer is not read from."""

MAX_FAILURES: Final = 6
"""Requests without a message after which the only peer that has it is asked for it no more."""

SLOWED_ROUND_IDS: Final = 64
"""IDs that a slowed peer is asked for at once."""

MAX_HOLDERS: Final = 8
"""Peers that are remembered to have announced one message that has not come."""

LOOK_UP_IDS: Final = 4_096
"""IDs that are looked up in the database at once."""

REBROADCAST_IDS: Final = 4_096
"""Unread events that are announced again in one interval, the longest ago first."""

MAX_PARENTS: Final = 256
"""Parents of one event that count (SDS, "causal history")."""

DESCENDANT_IDS: Final = 1_024
"""Descendants that are announced in answer to one list of leaves."""

MAX_GUESSES: Final = 1_024
"""Missing parents that a peer is asked for when it joins."""

MAX_MISSING_PARENTS: Final = 32_768
"""Parents that are missing, and requested from peers that join; the oldest beyond are forgotten."""

MAX_DOUBTED: Final = 65_536
"""Messages that wait to be looked up; with more, no parents are."""

MAX_REFUSED: Final = 2**16
"""Refused messages that are remembered, so that they are not asked for again."""

MAX_OFFENDERS: Final = 1_024
"""Peers and stores whose faults are remembered."""

MAX_TRIES: Final = 60
MAX_RETRIES: Final = 1_024
"""The number of times that the same is read from the database, and of requests that wait for a
retry; the reconciliation finds what is given up."""

MAX_CUT_OFF_NS: Final = 3600 * NS_PER_S
"""The longest cut-off; each one that follows another is twice as long."""

REFUSED_NS: Final = 3600 * NS_PER_S
TOO_NEW_NS: Final = 60 * NS_PER_S
"""A refused message is not asked for again for so long; one that came too early is sooner."""

PATIENCE_NS: Final = 10 * NS_PER_S
"""The patience with a peer that sends but does not deliver what was requested."""

SILENCE_NS: Final = 5 * NS_PER_S
"""The patience with a silent peer before another one is asked too."""

RETRY_NS: Final = NS_PER_S
"""The pause before the database is asked again after a failure."""

SLOW_NS: Final = NS_PER_S
"""The pause between frames that are read from a slowed peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipLimits:
    """Bounds of gossip that tests make small; durations in nanoseconds.

    Attributes:
        unread_interval_ns: between announcements of unread events (SEND_UNREAD_EVENTS_INTERVAL).
        unread_age_ns: an event without confirmations for this long is announced no more.
        leaves_interval_ns: between exchanges of leaves, if they changed (text: SyncEvent).
        cut_off_ns: of a first disconnection; each one that follows is twice as long.
        seen_ids: messages whose holders are remembered (text: Seen).
        max_unread: unread events; beyond it the one announced longest ago expires.
        graph_events: events whose parents and children are remembered.
        queued_ids: announcements that wait for one peer; beyond it the oldest are dropped.
        pushed_ids: bodies that wait to be pushed to one peer; further ones are announced only.
        asked_ids: requested IDs of one peer that were not sent yet; further ones are ignored.
        announced_ids: announced IDs of a peer that have not come; with more, it is not read from.
        unstored_bytes: of received frames of one peer that wait for the database; with more, it is
            not read from.
        frame_ids: IDs in a frame that is sent, 140 kB.
        frame_bytes: bodies in a frame that is sent; a larger message goes alone.
        round_ids: IDs in one request for bodies.
        leaf_ids: leaves that are listed; the others are in the XOR and the count.
        catch_up_ids: newest messages that are announced to a peer that joins.
    """

    unread_interval_ns: int = 10 * NS_PER_S
    unread_age_ns: int = 24 * 3600 * NS_PER_S
    leaves_interval_ns: int = 2 * NS_PER_S
    cut_off_ns: int = 60 * NS_PER_S
    seen_ids: int = 2**16
    max_unread: int = 2**16
    graph_events: int = 2**16
    queued_ids: int = 2**16
    pushed_ids: int = 2_048
    asked_ids: int = 16_384
    announced_ids: int = 16_384
    unstored_bytes: int = 8 * 1024 * 1024
    frame_ids: int = 4_096
    frame_bytes: int = 1024 * 1024
    round_ids: int = 1_024
    leaf_ids: int = 256
    catch_up_ids: int = 8_192


DEFAULT_LIMITS: Final = GossipLimits()
