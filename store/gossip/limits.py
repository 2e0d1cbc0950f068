"""Limits of gossip: whatever a peer can make grow has its bound here.

Source: the event graph's network protocol (the list of seen IDs) and the node's contract.
"""

from __future__ import annotations

from typing import Final

from storenode.message.limits import NS_PER_S

MAX_PEERS: Final = 64
"""Peers that are joined at one moment; a further one is turned away."""

RESERVED_PEERS: Final = 32
"""Streams among them that only trusted peers, and those that this node calls, can have."""

LEAST_WAIT_NS: Final = 10 * NS_PER_S
"""A stream that has brought nothing for so long may lose its place to one that is worth more, or to
any where it has never brought anything."""

WAIT_PATIENCE_NS: Final = 60 * NS_PER_S
"""And after so long to one that is worth as much."""

USEFUL_NS: Final = 600 * NS_PER_S
"""A peer is worth something for so long after its last message."""

MAX_STORES: Final = 256
"""Stores of which is remembered what they hold; with more, the one that left first is forgotten."""

MAX_SEEN_IDS: Final = 2**16
"""Messages of which is remembered that they are held, and by whom ("Seen")."""

MAX_FRAME_IDS: Final = 8_192
"""IDs in a received frame; one with more is a fault of the peer."""

LARGE_FRAME_IDS: Final = 256
"""A received frame with so many IDs, which take milliseconds, is the only one of its turn of the
event loop."""

FRAME_IDS: Final = 4_096
"""IDs in a frame that is sent: 140 kB."""

FRAME_BYTES: Final = 1024 * 1024
"""Bodies in a frame that is sent; one message that alone has more goes alone."""

MAX_QUEUED_IDS: Final = 2**16
"""IDs that wait to be announced to one peer; with more, the oldest are not announced."""

NEWS_WINDOW: Final = 8_192
"""Messages that are announced to a peer before it says that it holds any of them."""

NEWS_ORDER: Final = 4_096
"""A peer that holds one of them has dealt with those announced so many before it."""

NEWS_PATIENCE_NS: Final = 10 * NS_PER_S
"""A peer that has not said so for so long is told of further ones."""

MAX_PUSHED_IDS: Final = 2_048
"""Bodies that wait to be pushed to one peer; what comes on top is announced only."""

MAX_ASKED_IDS: Final = 16_384
"""IDs that a peer has asked for and that were not sent yet; what comes on top is passed over."""

MAX_ANNOUNCED_IDS: Final = 16_384
"""IDs that a peer has announced and that have not come; with more, it is not read from."""

MAX_UNSTORED_BYTES: Final = 8 * 1024 * 1024
"""Received frames of one peer that wait for the database; with more, it is not read from."""

MAX_UNSTORED_FRAMES: Final = 64
"""And so many such frames, however small they are."""

ROUND_IDS: Final = 1_024
"""IDs that a peer is asked for at once (one ``get_events``)."""

MAX_ROUNDS: Final = 16
"""Rounds of one peer that are under way."""

SLOWED_ROUND_IDS: Final = 64
"""IDs that a slowed peer is asked for at once."""

MAX_HOLDERS: Final = 8
"""Peers that are remembered to have announced one message that has not come."""

LOOK_UP_IDS: Final = 4_096
"""IDs that are looked up in the database at once."""

MAX_UNREAD: Final = 2**16
"""Unread events; with more, the oldest expires."""

REBROADCAST_IDS: Final = 4_096
"""Unread events that are announced again in one interval, the longest ago first."""

CATCH_UP_IDS: Final = 8_192
"""Newest messages that are announced to a peer that joins."""

MAX_PUBLISHING: Final = 2**16
"""IDs of which is remembered that a client of this node is publishing them."""

MAX_GRAPH_EVENTS: Final = 2**16
"""Events whose parents and children are remembered; the oldest are forgotten."""

MAX_PARENTS: Final = 256
"""Parents of one event that count (SDS, "causal history")."""

LEAF_IDS: Final = 256
"""Leaves that are listed; the others are in the XOR and the count."""

DESCENDANT_IDS: Final = 1_024
"""Descendants that are announced in answer to one list of leaves."""

MAX_WAITING: Final = 8_192
"""Events that wait for parents; with more, the oldest waits no longer."""

MAX_GUESSES: Final = 1_024
"""Missing parents that a peer is asked for when it joins."""

MAX_PARENT_DEPTH: Final = 64
"""Generations of parents that are fetched one by one; what lies deeper is left to the
reconciliation."""

MAX_REFUSED: Final = 2**16
"""Refused messages that are remembered, so that they are not asked for again."""

MAX_OFFENDERS: Final = 1_024
"""Peers and stores whose faults are remembered."""

MAX_TRIES: Final = 60
MAX_RETRIES: Final = 1_024
"""How often the database is asked for the same, and how many requests wait to be asked again; what
is given up is left to the reconciliation."""

DEFAULT_UNREAD_INTERVAL_NS: Final = 10 * NS_PER_S
"""SEND_UNREAD_EVENTS_INTERVAL, for which the text has no value."""

DEFAULT_UNREAD_AGE_NS: Final = 24 * 3600 * NS_PER_S
"""An event that nobody confirmed for so long is announced no more."""

DEFAULT_LEAVES_INTERVAL_NS: Final = 2 * NS_PER_S
"""How often leaves are exchanged, when something changed ("SyncEvent")."""

DEFAULT_PATIENCE_NS: Final = 10 * NS_PER_S
"""A peer that talks, and does not deliver what it was asked for, is believed for so long."""

DEFAULT_SILENCE_NS: Final = 5 * NS_PER_S
"""A peer that has been silent for so long since it was asked: another one is asked too."""

DEFAULT_RETRY_NS: Final = NS_PER_S
"""How long to wait before the database is asked again that has failed."""

DEFAULT_CUT_OFF_NS: Final = 60 * NS_PER_S
MAX_CUT_OFF_NS: Final = 3600 * NS_PER_S
"""A cut-off lasts so long, and twice as long each time that one follows another."""

DEFAULT_SLOW_NS: Final = NS_PER_S
"""A peer that is slowed is read from so long after its last frame."""

REFUSED_NS: Final = 3600 * NS_PER_S
TOO_NEW_NS: Final = 60 * NS_PER_S
"""A refused message is not asked for again for so long; one that came too early is sooner."""
