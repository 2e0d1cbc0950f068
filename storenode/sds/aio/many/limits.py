"""Limits of what many channels share."""

from typing import Final

from storenode.message.limits import MAX_QUERY_CONTENT_TOPICS

MAX_TOPICS_PER_FEED: Final = MAX_QUERY_CONTENT_TOPICS
"""Content topics of one call of ``Follow``: a node allows no more in a filter."""

MAX_CALLS_AT_ONCE: Final = 64
"""Scans, look-ups and feeds of single channels under way over one connection; others wait. Nodes
allow 256 calls per connection."""

MAX_QUEUED_PAGES: Final = 256
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""What a shared feed keeps for a channel that does not take it; past this the channel is given the
rest by a call of its own."""

MAX_ALL_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""The same for all channels of one node."""

GATHER_S: Final = 0.05
"""How long a shared feed waits for more channels before it begins anew with those that joined."""

MAX_THREADS: Final = 4
"""Threads that read and write states."""

DEFAULT_OPEN_STATES: Final = 64
"""State files that are open at one time, with two descriptors each."""

MAX_LEAVING_AT_ONCE: Final = 64
"""Channels that are left at one time."""
