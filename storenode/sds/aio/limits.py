"""Limits of a participant: what it asks for at once, and what others can make it hold."""

from typing import Final

from storenode.message.limits import (
    MAX_CAUSAL_HEADS,
    MAX_CAUSAL_KNOWN_IDS,
    MAX_QUERY_HASHES,
    MAX_SDS_ENTRIES,
)

MAX_NODE_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""One response of a node; nodes keep theirs under 4 MiB unless they are set to send more."""

WARN_AFTER_S: Final = 5.0
"""Waiting for a status that takes longer is reported in the log."""

MAX_HINTS_PER_CALL: Final = MAX_QUERY_HASHES
MAX_IDS_PER_CALL: Final = MAX_SDS_ENTRIES
MAX_HEADS_PER_CALL: Final = MAX_CAUSAL_HEADS
MAX_KNOWN_IDS: Final = MAX_CAUSAL_KNOWN_IDS

MAX_CLOSURE_MESSAGES: Final = 20_000
"""Messages of one causal closure; what is deeper is asked for again."""

MAX_CLOSURES_PER_ROUND: Final = 16
"""Closures of one node in one round of repair; the rest waits for the next round."""

MAX_FETCHED_BYTES: Final = 256 * 1024 * 1024
"""What one call that fetches may bring in all. Pages are taken as they come, never collected."""

MAX_CURSOR_BYTES: Final = 1_024
"""A cursor of a feed; a node's has less than 100."""

MAX_REASON_CHARS: Final = 500
"""What is kept of a node's words."""

MAX_EMPTY_PAGES: Final = 1_000
"""Pages without messages in a row, after which a stream is given up."""

MAX_REPAIR_IDS: Final = 10_000
"""Missing messages of one round of repair."""

PACKETS_AT_ONCE: Final = 256
"""Packets that are taken before other tasks get their turn: a few milliseconds."""

MAX_QUEUED_EVENTS: Final = 10_000
"""Events that wait for one reader; then nothing more is received until it reads."""

MAX_LOG_PAGE: Final = 1_000
"""Messages that are read from the state at once."""

MAX_VOLATILE_ITEMS: Final = 1_024
"""Resends, syncs and answers that wait for a node; the oldest makes room."""

MAX_KNOWN_TIMES: Final = 4_096
"""Messages whose time of publication is remembered, so that they can be published as they were."""

MAX_PUBLISH_MESSAGES: Final = 500
MAX_PUBLISH_BYTES: Final = 1_000_000
"""One publish request."""

MAX_REPUBLISHED: Final = 256
REPUBLISH_NS: Final = 60 * 10**9
"""What was published lately, and is given to the next node when one goes away."""

MAX_PUBLISH_TRIES: Final = 3
"""How often a refused message is offered with a new timestamp."""

RESTAMP_AFTER_NS: Final = 5 * 10**9
"""A refused message at least this old gets a new timestamp: nodes refuse old ones."""

CALL_TIMEOUT_S: Final = 30.0
"""An answer, or the next page of one, that takes longer counts as a failure of the node."""

FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 5.0
"""Pause after a failure: doubles with each failure in a row, up to a bound."""

REPAIR_FIRST_DELAY_MS: Final = 1_000
REPAIR_MAX_DELAY_MS: Final = 60_000
"""Pause before a missing message is asked for again."""

CATCH_UP_OVERLAP_NS: Final = 600 * 10**9
"""How far before the last moment online a scan begins: clocks differ, and nodes reconcile every
few minutes."""

SEARCH_LOST_EVERY_S: Final = 60.0
"""Time between scans for causes that were given up for want of room."""

LEAVE_TIMEOUT_S: Final = 10.0
"""How long leaving a channel waits for what is not yet published."""

MAX_TICK_S: Final = 1.0
"""Longest sleep between two looks at what is due."""

MAX_TRANSPORTS: Final = 64
"""Nodes of one participant."""

MAX_LINKS_PER_CONNECTION: Final = 40
MAX_CALLS_AT_ONCE: Final = 32
MAX_PUBLISHES_AT_ONCE: Final = 16
"""Channels of one connection, each of which follows, and their other calls at the same time; more
of them wait. A node allows 100 calls per connection."""

MAX_THREADS: Final = 4
"""Threads that read and write states."""

DEFAULT_OPEN_STATES: Final = 64
"""State files that are open at the same time, with two descriptors each."""

MAX_LEAVING_AT_ONCE: Final = 64
"""Channels that are left at the same time."""
