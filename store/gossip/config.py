"""What a node's gossip is like: the options, with the defaults of the text."""

from __future__ import annotations

from dataclasses import dataclass

from store.gossip import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipConfig:
    """Durations in nanoseconds.

    ``store_id``: of this node's own database; a peer with the same is turned away.
    ``max_confirms``: stores that must confirm every message before it counts as read (text:
    MAX_CONFIRMS); with 0 a message is unread only where its publisher wants confirmations.
    ``unread_interval_ns``: text: SEND_UNREAD_EVENTS_INTERVAL. ``seen_ids`` to ``round_ids`` are
    the bounds of `store.gossip.limits` of those names, here so that small ones can be tried.
    """

    store_id: str
    max_confirms: int = 0
    unread_interval_ns: int = limits.DEFAULT_UNREAD_INTERVAL_NS
    unread_age_ns: int = limits.DEFAULT_UNREAD_AGE_NS
    leaves_interval_ns: int = limits.DEFAULT_LEAVES_INTERVAL_NS
    patience_ns: int = limits.DEFAULT_PATIENCE_NS
    silence_ns: int = limits.DEFAULT_SILENCE_NS
    retry_ns: int = limits.DEFAULT_RETRY_NS
    cut_off_ns: int = limits.DEFAULT_CUT_OFF_NS
    slow_ns: int = limits.DEFAULT_SLOW_NS
    seen_ids: int = limits.MAX_SEEN_IDS
    max_peers: int = limits.MAX_PEERS
    max_unread: int = limits.MAX_UNREAD
    max_waiting: int = limits.MAX_WAITING
    graph_events: int = limits.MAX_GRAPH_EVENTS
    queued_ids: int = limits.MAX_QUEUED_IDS
    pushed_ids: int = limits.MAX_PUSHED_IDS
    asked_ids: int = limits.MAX_ASKED_IDS
    announced_ids: int = limits.MAX_ANNOUNCED_IDS
    unstored_bytes: int = limits.MAX_UNSTORED_BYTES
    frame_ids: int = limits.FRAME_IDS
    max_frame_ids: int = limits.MAX_FRAME_IDS
    frame_bytes: int = limits.FRAME_BYTES
    round_ids: int = limits.ROUND_IDS
    leaf_ids: int = limits.LEAF_IDS
    catch_up_ids: int = limits.CATCH_UP_IDS
