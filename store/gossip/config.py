"""The options and bounds of a node's gossip, with the defaults of the text."""

from __future__ import annotations

from dataclasses import dataclass

from store.gossip.limits import CATCH_UP_IDS, DEFAULT_CUT_OFF_NS, MAX_PEERS, MAX_UNREAD
from storenode.message.limits import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipConfig:
    """Options and bounds of gossip; durations in nanoseconds.

    Attributes:
        store_id: of this node's own database; a peer with the same one is rejected.
        max_confirms: stores that must confirm every message before it counts as read (text:
            MAX_CONFIRMS); with 0 a message is unread only if its publisher wants confirmations.
        unread_interval_ns: between announcements of unread events (SEND_UNREAD_EVENTS_INTERVAL).
        unread_age_ns: an event without confirmations for this long is announced no more.
        leaves_interval_ns: between exchanges of leaves, if they changed (text: SyncEvent).
        patience_ns: for a peer that sends, but does not deliver what was requested.
        silence_ns: for a silent peer, before another one is asked too.
        retry_ns: before the database is asked again after a failure.
        cut_off_ns: of a first disconnection; each one that follows is twice as long.
        slow_ns: between frames read from a slowed peer.
        seen_ids: messages whose holders are remembered (text: Seen).
        max_unread: unread events; beyond it the oldest expires.
        max_waiting: events that wait for parents; beyond it the oldest waits no longer.
        graph_events: events whose parents and children are remembered.
        queued_ids: announcements that wait for one peer; beyond it the oldest are dropped.
        pushed_ids: bodies that wait to be pushed to one peer; further ones are announced only.
        asked_ids: requested IDs of one peer that were not sent yet; further ones are ignored.
        announced_ids: announced IDs of a peer that have not come; with more, it is not read from.
        unstored_bytes: of received frames of one peer that wait for the database; with more, it is
            not read from.
        frame_ids: IDs in a frame that is sent, 140 kB.
        max_frame_ids: IDs in a received frame; more are a fault.
        frame_bytes: bodies in a frame that is sent; a larger message goes alone.
        round_ids: IDs in one request for bodies.
        leaf_ids: leaves that are listed; the others are in the XOR and the count.
        catch_up_ids: newest messages that are announced to a peer that joins.
    """

    store_id: str
    max_confirms: int = 0
    unread_interval_ns: int = 10 * NS_PER_S
    unread_age_ns: int = 24 * 3600 * NS_PER_S
    leaves_interval_ns: int = 2 * NS_PER_S
    patience_ns: int = 10 * NS_PER_S
    silence_ns: int = 5 * NS_PER_S
    retry_ns: int = NS_PER_S
    cut_off_ns: int = DEFAULT_CUT_OFF_NS
    slow_ns: int = NS_PER_S
    seen_ids: int = 2**16
    max_peers: int = MAX_PEERS
    max_unread: int = MAX_UNREAD
    max_waiting: int = 8_192
    graph_events: int = 2**16
    queued_ids: int = 2**16
    pushed_ids: int = 2_048
    asked_ids: int = 16_384
    announced_ids: int = 16_384
    unstored_bytes: int = 8 * 1024 * 1024
    frame_ids: int = 4_096
    max_frame_ids: int = 8_192
    frame_bytes: int = 1024 * 1024
    round_ids: int = 1_024
    leaf_ids: int = 256
    catch_up_ids: int = CATCH_UP_IDS
