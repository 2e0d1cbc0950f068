"""Bounds of the exchange with peers, besides those of a session's payloads.

Whatever a peer can make grow has its bound here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconcile.index import MIN_CHUNK_IDS
from storenode.message.limits import MAX_BATCH_MESSAGES, MAX_RESPONSE_BYTES, NS_PER_S

PEER_CLOSING_S: Final = 10.0
"""The time from the last frame of a transfer to the end of its call, on which nothing depends."""

LAST_WORDS_S: Final = 0.5
"""The time after a failed write to read what the peer had sent before it left; an unavailable
database may delay that."""

FIRST_FRAME_S: Final = 20.0
"""The time from a peer's call to its first frame; the listener bounds its memory."""

RESERVED_SESSIONS: Final = 1
"""Sessions that only trusted peers, and those that this node calls, can have."""

WAIT_PATIENCE_NS: Final = 5 * NS_PER_S
"""A session of a peer that was useful may wait for its transfer for so long, although its place is
wanted."""

STALLED_NS: Final = 10 * NS_PER_S
"""A session that waits for its peer's next frame for so long only waits."""

SLOW_RECONCILE_NS: Final = 60 * NS_PER_S
"""The duration from which a reconciliation counts as slow."""

MAX_NOTED_PEERS: Final = 64
"""Peers of which is remembered what the last sessions found, and whether they moved messages."""

MAX_KNOWN_CONFLICTS: Final = 4_096
"""Conflicts with one peer that are remembered, about 200 bytes each."""

MAX_RECONCILE_NS: Final = 600 * NS_PER_S
"""The time limit of a ``Reconcile``, however many frames it takes."""

LARGE_PAYLOAD_BYTES: Final = 512 * 1024
"""The size from which payloads are processed one at a time, of all sessions together: two bytes may
become a range of 150. The numbers of so large a frame are counted before it is decoded."""

THREADED_PAYLOAD_BYTES: Final = 64 * 1024
"""The step of a session on a larger payload runs beside the event loop."""

MAX_PIECE_ANSWERS: Final = 8_192
"""Answers in a piece of a frame."""

BUSY_PATIENCE_S: Final = 30.0
"""The time that a transfer waits for a busy store, which its peer takes for silence."""

FIRST_BUSY_PAUSE_S: Final = 0.05
LONGEST_BUSY_PAUSE_S: Final = 2.0

TRANSFER_TICK_S: Final = 5.0
"""The interval at which a transfer checks whether its peer is silent."""

THREADED_ROWS: Final = 2_048
"""A step that works on more IDs, ranges or spans of time runs beside the event loop."""

MAX_SHOWN_HIDDEN: Final = 16
"""Hashes of messages in the log of a session that found forged fingerprints, or conflicts."""

MAX_SEARCHED_SPANS: Final = 64
"""Spans whose sums differ that a step of a search looks into; the next session finds more."""

MAX_SEARCH_SPANS: Final = 64 * (MAX_SEARCHED_SPANS + 1)
"""Spans in one step: 64 parts of each of those; a sum of 2 kB is in memory for each."""

MAX_SEARCH_ROUNDS: Final = 32
"""Steps of one side: three for each length of parts."""

FEW_LISTED_IDS: Final = 256
"""The number of IDs up to which a differing span is listed, and not divided."""

MAX_LISTED_IDS: Final = 1_024
"""A longer list of a span is not sent."""

MAX_SEARCH_IDS: Final = 2 * MAX_SEARCHED_SPANS * MAX_LISTED_IDS
"""Messages in the lists of one step: those that differ, and answers to as many; 7.3 MB."""

MIN_KEPT_STEPS: Final = 64
MAX_HORIZON_STEP_NS: Final = 2**36
"""Limits of the steps in which the horizon of reconciliations moves: the least number in the time
that messages are kept, and the longest, 69 s."""

ONLINE_INTERVAL_S: Final = 15.0
"""The interval at which the store is recorded as online."""

MAX_OFFER_PAYLOAD_BYTES: Final = 1_024
"""A base payload of one fingerprint is shorter, but for very many shards."""

COMPACT_FROM_IDS: Final = 4_096
"""The compact mode is offered from this many IDs on: with fewer, a base session takes one or two
round trips."""

# The index in memory, and views that read from the database

FRESH_NS: Final = 65 * NS_PER_S
"""The index answers without a statement for this long after a report of the feed, which reports
once a minute where nothing is committed."""

FLOOR_STEP_NS: Final = 60 * NS_PER_S
"""Floors are at multiples of it, where summaries have an edge."""

FULL_SHARE: Final = 0.9
"""An index that has no room for everything is filled to this share: there is time until it is full
again."""

LONGEST_BACKOFF_S: Final = 60.0

MAX_COLD_VIEWS: Final = 4
"""Transactions, each with a connection of its own, that may be open for views at a time."""


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """Bounds that a node has by default.

    Attributes:
        entries: IDs in memory, 96 MB at most.
        chunk_ids: IDs in a full chunk of a small index.
        waiting_commits: commits that wait to be inserted; with more, the index is rebuilt.
        ids_at_once: IDs of commits that are inserted together.
        inline_ids: the most that are inserted on the event loop's thread; more in another one.
        warm_up_ids: IDs that the warm-up reads at a time.
        patience_s: how long a view waits until the index has a commit, or until it may read from
            the database.
        settle_s: how often the index is compared with the database.
        backoff_s: the first pause after a failure.
    """

    entries: int = 2_000_000
    chunk_ids: int = MIN_CHUNK_IDS
    waiting_commits: int = 16_384
    ids_at_once: int = 16_384
    inline_ids: int = 2_000
    warm_up_ids: int = 65_536
    patience_s: float = 5.0
    settle_s: float = 60.0
    backoff_s: float = 1.0


ADMITTED_AT_ONCE: Final = 256
"""Messages of a page that are admitted at a time, so that others on the event loop get a turn."""

# Transfers, the registry of sessions and the memory of refusals. Source: the contract ("Limits",
# "Peers" and the schema of ``TransferFrame``)

MAX_FRAME_BYTES: Final = MAX_RESPONSE_BYTES
"""A frame that this node sends; one message that alone has more goes alone."""

FRAME_RESERVE_BYTES: Final = 1_024
"""The bytes of a frame besides messages and answers: the session and the tags."""

MAX_REASON_BYTES: Final = 256
"""A reason for a refusal, in UTF-8; a longer one is cut."""

MAX_DETAILED_REFUSALS: Final = 1_024
"""Refusals that wait with a sentence of their own; more get the sentence of their kind."""

MAX_REASONS_SHOWN: Final = 8
"""Reasons that a report gives in the words of the peer."""

SESSION_ID_CHARS: Final = 32
"""A session is named by 128 random bits in hexadecimal digits."""

MAX_SESSIONS: Final = 4
"""Sessions of one node in all, begun by either side."""

SILENCE_NS: Final = 60 * NS_PER_S
"""The silence of the peer after which a session ends."""

MAX_REMEMBERED: Final = 65_536
"""Refusals that are remembered, of all peers together."""

REMEMBERED_NS: Final = 24 * 3600 * NS_PER_S
"""A refusal is forgotten after so long: the rules of a node change when its operator wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """The limits of what is under way in a transfer at once.

    ``frame_messages`` and ``frame_bytes`` of messages go into one frame, with up to
    ``frame_answers`` answers. ``unsent_bytes`` are read from the database ahead of the stream, in
    portions of up to ``load_ids``; ``unstored_bytes`` of received frames, in ``unstored_pieces``,
    may wait for the database before the stream is left alone. ``find_ids`` are looked up at once.
    More than ``unsolicited_messages`` end it. For the others see `store.sync.transfer.transfer`.
    """

    frame_messages: int = MAX_BATCH_MESSAGES
    frame_bytes: int = 1024 * 1024
    frame_answers: int = MAX_BATCH_MESSAGES
    unsent_bytes: int = 4 * 1024 * 1024
    unstored_bytes: int = 8 * 1024 * 1024
    unstored_pieces: int = 512
    load_ids: int = 2_048
    find_ids: int = 4_096
    unsolicited_messages: int = MAX_BATCH_MESSAGES
    silence_ns: int = SILENCE_NS
    pace_ns: int = 300 * NS_PER_S
    pace_ids: int = 64
    pace_bytes: int = 256 * 1024
    total_ns: int = 3_600 * NS_PER_S
