"""Bounds of the HTTP edge; those of clients of every protocol are in ``store.serving.limits``."""

from typing import Final

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line, headers and trailers, and what frames the chunks of a small body. A connection that
sends more is closed. All connections together hold as much of unfinished heads at most."""

MAX_HEADER_FIELDS: Final = 100
"""Headers and trailers of a request, as Apache has it; browsers behind proxies send some 40."""

MAX_PARAMETERS: Final = 64
"""Parameters of a URL; a list of more entries goes into a body."""

MAX_SMALL_CHUNKS: Final = 1_024
LEAST_CHUNK_BYTES: Final = 1_024
"""Chunks of a body in any size, and how large all further ones are in the mean."""

MAX_PIPELINED_REQUESTS: Final = 16
"""Requests that are sent before the answer to the one before them."""

LINGER_S: Final = 2.0
"""A caller that is answered before it has sent all is given this long to read the answer."""

HEAD_TIMEOUT_S: Final = 10
"""From the first byte of a request, or from the connection on, to the end of the head."""

KEEP_ALIVE_S: Final = 75
"""How long a connection may be idle between two requests."""

HANDSHAKE_TIMEOUT_S: Final = 10
"""For TLS."""

MAX_UNFINISHED_BODIES: Final = 8
"""Bodies that may come in at one time, each of the largest size: 128 MiB."""

SEND_TIMEOUT_S: Final = 60.0
"""A caller that takes nothing of an answer for this long is disconnected."""

PROBE_AFTER_S: Final = 60
"""The kernel asks the other end of a connection that has been silent for this long whether it is
there; without an answer the connection ends."""

BUFFER_BYTES: Final = 16 * 1024
"""What the transport holds of an answer before its sender waits."""

COUNTED_BODY_BYTES: Final = 1024 * 1024
QUOTES_OF_ENTRY: Final = 64
"""A larger body has its quotation marks counted before it is decoded: so many for each entry of the
longest list that the node's limits allow. A message with all its fields has 32."""

MAX_QUOTED_CHARS: Final = 200
"""What an error says of a request that its type refuses."""

HEARTBEAT_S: Final = 10.0
"""A follower that is sent nothing else gets a comment this often: proxies and browsers end
connections that are silent for longer."""

RETRY_AFTER_S: Final = 1
"""``Retry-After`` of what may succeed later."""

CORS_MAX_AGE_S: Final = 600
"""How long a browser may keep what a preflight request has told it."""

MAX_WAKU_PAGE_MESSAGES: Final = 100
"""``pageSize`` of ``/store/v3/messages`` at most, as nwaku has it."""

MAX_WAKU_INTEGER_DIGITS: Final = 40
"""Digits of a parameter that are read: the 20 of a number of 64 bits, with zeros before them."""

SHARED_FRAMES: Final = 256
MAX_SHARED_FRAMES_BYTES: Final = 4 * 1024
"""Pages that are kept as JSON, since many followers are sent the same, and their largest size."""
