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
"""One encoded message: what fits a WakuMessage."""

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

MAX_REPAIR_ANSWERED: Final = 32
"""Repair requests of one message that are looked at; the rest will be asked again."""

MAX_PENDING_ANSWERS: Final = 1_024
"""Repair answers that wait for their time."""

ANSWER_EPOCH_MS: Final = 600_000
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_ANSWER_BYTES_PER_REQUESTER: Final = 1024 * 1024
"""What is sent again in an epoch because others ask for it, in all and for each of them. What a
store holds is not sent, and does not count."""

ASK_EVERY_MS: Final = 1_000
ASKS_IN_VAIN: Final = 32
MAX_ASK_EVERY_MS: Final = 60_000
"""Time between sync messages that are sent only to carry repair requests. After so many without an
answer it doubles with each four, up to a bound."""

MAX_REMEMBERED_ANSWERS: Final = 4_096
"""IDs answered lately, which are not answered again so soon."""

MAX_RECALLED_AT_ONCE: Final = 32
RECALL_EVERY_MS: Final = 1_000
"""Repair answers that are read from the state together, and how often."""

ENTRY_BYTES: Final = 256
"""About what an entry of a causal history takes in memory."""

MAX_WAITING_SYNCS: Final = 256
"""Sync messages in the incoming buffer; the oldest makes room."""

MAX_HINTS_PER_MISSING: Final = 4
"""Different hints remembered for one missing message."""

UNATTENDED_SWEEPS: Final = 4
"""Periods of telling what is missing after which nobody has looked for it, as far as we know: the
participant was off, or asleep."""

MAX_LOST_IDS: Final = 16_384
"""Given-up dependencies that are remembered; past it the oldest is forgotten, and would be
waited for once more if a new message named it."""

MAX_OWED_IDS: Final = 256
"""Message messages whose acknowledgement to others is tracked."""

MAX_HEADS: Final = 32
"""Messages that no other one names, of which all are named by each own message."""

MAX_OWED_NAMED: Final = 32
"""Messages that nobody has acknowledged, of which one own message names at most so many."""

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
"""How often one content is put together and does not have its hash: of segments that name each
other, and of others."""

MAX_LOADED_MESSAGES: Final = 4_096
"""Messages at the end of the log in which parts of contents are looked for after a restart."""
