"""Bounds of the gRPC edge; those of messages and pages are in ``storenode.message.limits``."""

from typing import Final

from storenode.message.limits import MAX_PEER_REQUEST_BYTES

MAX_SMALL_REQUEST_BYTES: Final = 1024 * 1024
"""A request of a call for which no legal one is half as large, since it has no list but topics."""

COUNTED_REQUEST_BYTES: Final = 1024 * 1024
"""A larger ``PublishRequest`` has its messages counted before it is decoded, and a larger request
of a read its fields, since two bytes of it may become an object of fifty."""

MAX_READ_FIELDS: Final = 32_768
"""Fields of a read's request that is counted, besides the entries that the node's limits allow."""

MAX_LARGE_READ_BYTES: Final = 128 * 1024 * 1024
"""Requests of all reads of a listener together that are large enough to be counted."""

MAX_COUNTED_FIELDS: Final = 10_000
"""Fields at the top of a request that is counted, its messages apart. The schema has two more; a
request may consist of millions, and to step over them would keep all other calls waiting."""

ADMISSION_CHUNK_MESSAGES: Final = 1_000
ADMISSION_CHUNK_BYTES: Final = 384 * 1024
"""Messages, and bytes of an average request, that are judged at one go, about 4 ms, before other
calls get their turn. By number alone, messages that name hundreds of parents each took a second.
A request that is one chunk is not copied: a batch of 1,000 small messages should be one."""

STREAM_WINDOW_REQUESTS: Final = 32
STREAM_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Requests of one ``PublishStream`` that are under way at one time: some are written together, and
those that follow are judged meanwhile."""

MAX_IN_FLIGHT_PUBLISH_BYTES: Final = 256 * 1024 * 1024
"""Requests of all publishers together that are decoded and not yet answered."""

MAX_SCAN_PAGE_MESSAGES: Final = 10_000
"""``ScanRequest.page_size``; larger wishes are clamped. A page is cut by its size in any case."""

MAX_SERIES: Final = 512
"""Pairs of a method and a status code whose counters are kept at hand."""

MAX_REQUEST_ID_CHARS: Final = 64
"""``x-request-id`` of a caller; a longer one is replaced."""

MAX_QUERY_REQUEST_ID_BYTES: Final = 1024
"""``StoreQueryRequest.request_id``, which is sent back as it came."""

MAX_PEER_FIELD_CHARS: Final = 253
"""Node ID (a DNS name), store ID and version in a peer's metadata."""

MAX_PEER_TEXT_CHARS: Final = 400
"""A sentence of a peer that is shown or logged here; a longer one is cut."""

MAX_PEER_FRAME_BYTES: Final = MAX_PEER_REQUEST_BYTES + 64 * 1024
"""A payload of the largest size, and the other fields of its frame."""

PEER_CONNECT_TIMEOUT_S: Final = 10.0
"""From a call of a peer to its initial metadata, a new connection included."""

MIN_PEER_RECONNECT_MS: Final = 250
MAX_PEER_RECONNECT_MS: Final = 5_000
"""Pauses of gRPC itself between two attempts to connect to a peer."""

PEER_KEEPALIVE_MS: Final = 60_000
PEER_KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""A peer that is called and does not answer pings for this long is gone."""

PEER_CLOSING_S: Final = 10.0
"""From the last word of a transfer to the end of its call, which nothing depends on."""

MAX_OPENING_CALLS: Final = 8
"""Calls of peers whose first frame, of up to `MAX_PEER_FRAME_BYTES`, is read at the same time."""

FIRST_FRAME_S: Final = 20.0
"""From a call of a peer to its first frame, for which others may have to wait: shorter than any
silence, and long enough to open a view."""

MAX_OPENING_CALLS_OF_PEER: Final = 2
"""Those of one peer among them; more are refused."""

MAX_RECONCILE_S: Final = 600.0
"""One ``Reconcile``, however many frames it takes."""

LARGE_PAYLOAD_BYTES: Final = 512 * 1024
"""Two bytes of a payload may become a range of 150: larger ones are worked on one at a time, of all
sessions together."""

THREADED_PAYLOAD_BYTES: Final = 64 * 1024
"""The step of a session on a larger payload runs beside the event loop."""

PEER_SCAN_PAGE_MESSAGES: Final = 2_000
"""Messages that are asked for in a page of a peer's ``Scan``."""

MAX_LOOKUP_MESSAGES: Final = 20_000
"""Messages that are taken from a peer for one look-up of SDS message IDs: 1,000 IDs with as many
claimants as a node returns by default, and one more that a hint names, fit."""

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

MIN_KEPT_STEPS: Final = 64
MAX_HORIZON_STEP_NS: Final = 2**36
"""Steps in which the horizon of reconciliations moves: at least so many in the time that messages
are kept, and each at most 69 s long."""
