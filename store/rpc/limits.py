"""Bounds of the gRPC edge; those of messages and pages are in ``message.limits``."""

from typing import Final

MAX_LONG_READ_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""A ``Query``, or a ``GetCausalHistory``, whose known IDs may have 2.6 MiB."""

MAX_READ_REQUEST_BYTES: Final = 1024 * 1024
"""A request of any other call that does not publish; none has a legal one half as large."""

COUNTED_REQUEST_BYTES: Final = 1024 * 1024
"""A larger ``PublishRequest`` has its messages counted before it is decoded, since two bytes of
it may become an object of fifty."""

MAX_COUNTED_FIELDS: Final = 10_000
"""Fields at the top of a request that is counted, its messages apart. The schema has two more; a
request may consist of millions, and to step over them would keep all other calls waiting."""

ADMISSION_CHUNK_MESSAGES: Final = 1_000
ADMISSION_CHUNK_BYTES: Final = 384 * 1024
"""Messages, and bytes of an average request, that are judged at one go, about 4 ms, before other
calls get their turn. By number alone, messages that name hundreds of parents each took a second.
A request that is one chunk is not copied: a batch of 1,000 small messages should be one."""

STREAM_WINDOW_REQUESTS: Final = 16
STREAM_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Requests of one ``PublishStream`` that are under way at one time."""

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
