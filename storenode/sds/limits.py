"""Limits of SDS: what a store node reads as a message, and what a participant keeps.

Everything that other participants can make grow has its bound here.
"""

from typing import Final

MAX_ID_BYTES: Final = 256
"""A channel ID, message ID or sender ID, as UTF-8."""

MAX_HISTORY_ENTRIES: Final = 256
"""Causal history entries of a message that a store node indexes, and of an own one."""

SDS_KEY_BYTES: Final = 16
"""Size of the index key of a (channel, message ID) pair."""

MAX_SDS_MESSAGE_BYTES: Final = 150 * 1024
"""The size limit of an encoded message, which must fit into a WakuMessage."""

MAX_HINT_BYTES: Final = 256
"""A retrieval hint; a store node's is a hash of 32 bytes."""

MAX_HISTORY_BYTES: Final = 40 * 1024
"""Causal history of an own message: 256 usual entries fit. Others choose their IDs, and must not
be able to make ours too large to send; past this, the oldest entries are left out."""

MAX_SIGNATURE_BYTES: Final = 8_192
"""An application's signature of a message: the largest that are usual, of SLH-DSA-128s, fit."""

MAX_CLOCK: Final = 2**64 - 1
"""Largest Lamport timestamp that the wire can carry."""

MAX_REPAIR_ENTRIES: Final = 256
"""Repair requests that are read of one message; more are left out."""

MAX_REQUEST_BYTES: Final = 16 * 1024
"""Repair requests of an own message, which others make long as they do its history."""

MAX_REPAIR_ANSWERED: Final = 32
"""Repair requests of one message that are looked at; the rest will be asked again."""

MAX_PENDING_ANSWERS: Final = 1_024
"""Repair answers that wait for their time."""

ANSWER_EPOCH_MS: Final = 600_000
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_ANSWER_BYTES_PER_REQUESTER: Final = 1024 * 1024
"""The bytes that are sent again in an epoch at the request of others, in all and for each of them.
Messages that a store has are not sent, and do not count."""

ASK_EVERY_MS: Final = 1_000
ASKS_IN_VAIN: Final = 32
MAX_ASK_EVERY_MS: Final = 60_000
"""Time between sync messages that are sent only to carry repair requests. After `ASKS_IN_VAIN`
without an answer it doubles with each four, up to a bound."""

MAX_REMEMBERED_ANSWERS: Final = 4_096
"""IDs answered lately, which are not answered again so soon."""

MAX_RECALLED_AT_ONCE: Final = 32
RECALL_EVERY_MS: Final = 1_000
"""Repair answers that are read from the state together, and how often."""

MAX_CAUSES: Final = 8_192
"""Causal history entries of a message that a participant takes: as many as can be missing."""

ENTRY_BYTES: Final = 256
"""The approximate memory of an entry of a causal history, or of a message, beside its texts."""

MAX_WAITING_SYNCS: Final = 256
"""Sync messages in the incoming buffer; the oldest makes room."""

MAX_HINTS_PER_MISSING: Final = 4
"""Different hints remembered for one missing message."""

UNATTENDED_SWEEPS: Final = 4
"""Periods of reports on missing messages after which an unfetched one shows that the participant
was off or asleep."""

MAX_LOST_IDS: Final = 16_384
"""Given-up dependencies that are remembered; past it the oldest is forgotten, and would be
waited for once more if a new message named it."""

MAX_OWED_IDS: Final = 256
"""Messages whose acknowledgement to others is tracked."""

MAX_HEADS: Final = 32
"""Messages that no other one names, of which all are named by each own message."""

MAX_OWED_NAMED: Final = 32
"""Unacknowledged messages that one own message names at most."""

MAX_GAP_IDS: Final = 256
"""Messages noticed missing at others that wait to be named in a causal history."""

MAX_LACKING_PEERS: Final = 64
MAX_LACKING_IDS: Final = 64
"""Participants whose filters lack something, and messages of each."""

MAX_BEHIND_PEERS: Final = 16
"""Peers whose filters show that we lack something; more are not looked at meanwhile."""

MAX_COMPARED_PEERS: Final = 256
"""Peers of which is remembered when their filter last showed nothing new, or that it proves
nothing."""

MAX_UNREAD_FILTERS: Final = 64
"""Filters that wait to be compared; more are compared at once."""

MAX_EXPLAINED_IDS: Final = 4_096
"""Missing and lost messages that a comparison of filters allows for; past it there is none."""

MAX_FILTER_CAPACITY: Final = 1_000_000
"""IDs of a Bloom filter."""

MAX_UNPROVEN: Final = 10_000
"""Messages whose ID proves nothing, of which is remembered what they said; of older ones nothing
else that claims their ID is judged."""

MAX_FORGERIES_REPORTED: Final = 1_000
"""Forged messages that are not reported again when they come again."""

MAX_SEGMENTS: Final = 255
"""Segments of one content: LIP-243 has fewer than 256, its maxTotalSegments."""

SEGMENT_HASH_BYTES: Final = 32
"""Keccak-256 of the whole content."""

MAX_CONTENT_BYTES: Final = MAX_SEGMENTS * MAX_SDS_MESSAGE_BYTES
"""A content that is sent in segments."""

MAX_SETS: Final = 256
MAX_PLACES: Final = 16_384
"""Contents that are not complete, and their segments, of which only the places are kept."""

MAX_CANDIDATES: Final = 16
"""Different segments that are remembered for one index of a content."""

MAX_NAMED_BY_SEGMENT: Final = 8
"""Causes of a segment that are remembered, the last ones: the segment before is one of them."""

MAX_LINKED_ATTEMPTS: Final = 64
MAX_ATTEMPTS: Final = 16
"""The number of times that a content is assembled without matching its hash, because of segments
that name each other or belong to others."""

MAX_LOADED_MESSAGES: Final = 4_096
"""Messages at the end of the log in which parts of contents are looked for after a restart."""

# A participant with a network: what it asks for at once, and how long it waits.

MAX_NODE_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""The size limit of a node's response; nodes stay under 4 MiB by default."""

WARN_AFTER_S: Final = 5.0
"""Waiting for a status that takes longer is reported in the log."""

MAX_CLOSURE_MESSAGES: Final = 20_000
"""Messages of one causal closure; deeper ones are requested again."""

MAX_CLOSURES_PER_ROUND: Final = 16
"""Closures of one node in one round of repair; the rest waits for the next round."""

MAX_FETCHED_BYTES: Final = 256 * 1024 * 1024
"""The size limit of what one fetching call receives; pages are processed, never collected."""

MAX_CURSOR_BYTES: Final = 1_024
"""A cursor of a feed; a node's has less than 100."""

MAX_REASON_CHARS: Final = 500
"""The number of characters of a node's reason that are kept."""

MAX_EMPTY_PAGES: Final = 1_000
"""Pages without messages in a row, after which a stream is given up."""

MAX_REPAIR_IDS: Final = 10_000
"""Missing messages of one round of repair."""

BYTES_AT_ONCE: Final = 64 * 1024
"""Packets that are taken before other tasks get their turn, each with 256 bytes more."""

MAX_QUEUED_EVENTS: Final = 10_000
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Events that wait for one reader; then nothing more is received until it reads."""

MAX_UNSAVED: Final = 5_000
MAX_UNSAVED_BYTES: Final = 16 * 1024 * 1024
"""Events that wait for a transaction; then nothing more is received until it is through."""

MAX_LOG_PAGE: Final = 1_000
"""Messages that are read from the state at once."""

MAX_VOLATILE_ITEMS: Final = 1_024
"""Resends, syncs and answers that wait for a node; the oldest makes room."""

MAX_KNOWN_TIMES: Final = 4_096
"""Messages whose time of publication is remembered, so that they can be published as they were."""

MAX_PUBLISH_MESSAGES: Final = 500
MAX_PUBLISH_BYTES: Final = 1_000_000
"""The size limit of a publish request."""

MAX_REPUBLISHED: Final = 256
REPUBLISH_NS: Final = 60 * 10**9
"""The age of published messages that are repeated to the next node after a disconnection."""

MAX_PUBLISH_TRIES: Final = 3
"""The number of times that a refused message is published with a new timestamp."""

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
"""The time before the last moment online at which a scan begins: clocks differ, and nodes reconcile
every few minutes."""

SEARCH_EVERY_S: Final = 60.0
"""Time between scans for what peers' filters show, and for causes given up for want of room."""

LEAVE_TIMEOUT_S: Final = 10.0
"""The time that leaving a channel waits for unpublished messages."""

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
