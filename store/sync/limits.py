"""Bounds of the exchange with peers, besides those of a transfer and of a session's payloads."""

from typing import Final

from storenode.message.limits import NS_PER_S

PEER_CLOSING_S: Final = 10.0
"""From the last word of a transfer to the end of its call, which nothing depends on."""

LAST_WORDS_S: Final = 0.5
"""After a write has failed, for what the peer had sent before it left; a database that is away may
keep it from being taken in."""

MAX_OPENING_CALLS: Final = 8
"""Calls of peers whose first frame, of up to `MAX_PEER_FRAME_BYTES`, is read at the same time."""

FIRST_FRAME_S: Final = 20.0
"""From a call of a peer to its first frame, for which others may have to wait: shorter than any
silence, and long enough to open a view."""

MAX_OPENING_CALLS_OF_PEER: Final = 2
"""Those of one trusted peer among them; more are refused."""

MAX_STRANGE_OPENING_CALLS: Final = 8
"""The same of untrusted callers, who do not wait for each other: the one that has been silent for
longest gives way."""

RESERVED_SESSIONS: Final = 1
"""Sessions that only trusted peers, and those that this node calls, can have."""

WAIT_PATIENCE_NS: Final = 5 * NS_PER_S
"""A session of a peer that was useful may wait for its transfer for so long, although its place is
wanted."""

STALLED_NS: Final = 10 * NS_PER_S
"""A session that waits for its peer's next frame for so long only waits."""

SLOW_RECONCILE_NS: Final = 60 * NS_PER_S
"""And so does one that reconciles for so long."""

MAX_USEFUL_PEERS: Final = 256
"""Peers of which is remembered that a session with them has brought or taken messages."""

MAX_EQUAL_PEERS: Final = 64
"""Peers of whose last session is known that it found nothing."""

MAX_REMEMBERED_PEERS: Final = 64
"""Peers with whom sums of what is in memory are kept: 16 bytes for 4,096 IDs, each."""

MAX_RECONCILE_S: Final = 600.0
"""One ``Reconcile``, however many frames it takes."""

LARGE_PAYLOAD_BYTES: Final = 512 * 1024
"""Two bytes of a payload may become a range of 150: larger ones are worked on one at a time, of all
sessions together."""

THREADED_PAYLOAD_BYTES: Final = 64 * 1024
"""The step of a session on a larger payload runs beside the event loop."""

MAX_UNCUT_ENTRIES: Final = 131_072
"""Entries that a ``TransferFrame`` may seem to have and is still decoded at one go; such a frame
has less than 20 MiB of objects. An honest one of 1 MiB seems to have 30,000."""

MAX_PIECE_ANSWERS: Final = 8_192
"""Answers in a piece of a larger frame."""

BUSY_PATIENCE_S: Final = 30.0
"""How long a transfer waits for a store that is busy; its peer takes that for silence."""

FIRST_BUSY_PAUSE_S: Final = 0.05
LONGEST_BUSY_PAUSE_S: Final = 2.0

TRANSFER_TICK_S: Final = 5.0
"""How often a transfer looks whether its peer is silent."""

THREADED_ROWS: Final = 4_096
"""The step of a session on an answer of more ranges and IDs runs beside the event loop."""

MAX_SHOWN_HIDDEN: Final = 16
"""Hashes of messages in the log of a session that found forged fingerprints."""

MAX_LATTICE_SPAN_NS: Final = 4_096 * 24 * 3600 * NS_PER_S
"""What lattice digests are about, eleven years: a sum of 2 kB is in memory for each day of it."""

MAX_LATTICE_DAYS: Final = 64
"""Days whose lattice sums differ that a session looks into, the newest; the next one finds more."""

MAX_LATTICE_HOURS: Final = 24 * MAX_LATTICE_DAYS

MAX_SEARCHED_IDS: Final = 1_000_000
"""IDs held in the hours that a session searches for hidden messages, but for one hour in any case:
150 bytes each."""

RANDOM_CUTS: Final = 3
"""Where the first payload divides the window towards a peer that does not know keyed digests."""

MIN_KEPT_STEPS: Final = 64
MAX_HORIZON_STEP_NS: Final = 2**36
"""Steps in which the horizon of reconciliations moves: at least so many in the time that messages
are kept, and each at most 69 s long."""

MAX_TOLD_IDS: Final = 16_384
"""Messages found by a reconciliation that gossip does not announce to the peer that sends them."""

ONLINE_INTERVAL_S: Final = 10.0
"""How often it is noted that the store is online."""

COMPACT_FROM_IDS: Final = 4_096
"""The compact mode is offered for so many IDs or more: with fewer, a base session takes one or two
round trips."""
