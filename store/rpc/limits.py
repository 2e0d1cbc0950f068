"""Bounds of the gRPC edge; those of messages and pages are in ``storenode.message.limits``."""

from typing import Final

from storenode.message.limits import MAX_PEER_REQUEST_BYTES

MAX_UNFINISHED_OPEN_REQUESTS: Final = 4
"""Requests of calls that need no token, such as health checks, that gRPC may hold in part at one
time, each of the largest size."""

MAX_UNFINISHED_BYTES: Final = 128 * 1024 * 1024
"""Bytes that gRPC may hold of all requests; the next request of a stream needs no slot."""

LOOKAHEAD_BYTES: Final = 128 * 1024
"""Bytes that a caller may send of a message before it is read. A stream of smaller requests is no
faster than this in each round trip."""

MAX_STREAMS_PER_CONNECTION: Final = 100
"""Calls under way over one connection, those included that were dropped and not yet cleared away.
gRPC's clients keep further ones until one has ended."""

MAX_PENDING_CALLS: Final = 32_768
"""Calls of one method, of all connections, that the process has not taken up. Beyond this gRPC
turns any call away with CANCELLED: 300 full connections do not come so far."""

HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""For TLS and the first frame of HTTP/2, from the connection on."""

IDLE_CONNECTION_MS: Final = 300_000
"""A connection without a call is closed after this; gRPC's clients connect again when they call."""

STREAM_WINDOW_REQUESTS: Final = 32
STREAM_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Requests of one ``PublishStream`` that are under way at one time: some are written together, and
those that follow are judged meanwhile."""

MAX_CALLERS: Final = 64
"""Peers of which it is remembered when they called: in clear text names are invented easily."""

MAX_PEER_FIELD_CHARS: Final = 253
"""Node ID (a DNS name), store ID and version in a peer's metadata."""

MAX_PEER_FRAME_BYTES: Final = MAX_PEER_REQUEST_BYTES + 64 * 1024
"""A payload of the largest size, and the other fields of its frame."""

PEER_CONNECT_TIMEOUT_S: Final = 10.0
"""From a request to a peer to its names, a new connection included."""

PEER_ANSWER_TIMEOUT_S: Final = 20.0
"""The same for a call whose first frame it may answer before it names itself."""

GREETING_GRACE_S: Final = 0.25
GREETING_PAUSE_S: Final = 2.0
"""How long a callee of ``Gossip`` may be silent until it is sent something to answer; and again."""

MAX_PEER_CURSOR_BYTES: Final = 4_096
"""A peer's cursor, which is kept until its next page."""

MAX_PEER_PAGE_BYTES: Final = 16 * 1024 * 1024
"""A page of a peer's ``Scan``: four times what this node sends in one."""

MAX_EMPTY_PAGES: Final = 8
"""Pages without messages that a peer may send in a row."""

PEER_SCAN_PAGE_MESSAGES: Final = 2_000
"""Messages that are asked for in a page of a peer's ``Scan``."""

MAX_LOOKUP_MESSAGES: Final = 20_000
"""Messages that are taken from a peer for one look-up of SDS message IDs: 1,000 IDs with as many
claimants as a node returns by default, and one more that a hint names, fit."""

MAX_GOSSIP_FRAME_BYTES: Final = 4 * 1024 * 1024
"""A ``GossipFrame``; a larger one ends the stream. What is in one: ``store.gossip.limits``."""

MAX_GOSSIP_ENTRIES: Final = 8_192
"""Messages or IDs in a ``GossipFrame``."""
