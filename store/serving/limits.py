"""Bounds that hold for clients of every protocol."""

from typing import Final

MIB: Final = 1024 * 1024

MAX_UNFINISHED_REQUESTS: Final = 16
"""Requests that may come in over gRPC at one time, each of the largest size."""

MAX_WAITING_REQUESTS: Final = 2_048
"""Calls that wait for such a slot."""

REQUEST_TIMEOUT_S: Final = 60.0
CROWDED_TIMEOUT_S: Final = 0.5
"""How long a request may take to come in full; the second one while others wait for its slot."""

MAX_IN_FLIGHT_PUBLISH_BYTES: Final = 256 * MIB
"""Requests of all publishers together that are decoded and not yet answered."""

MAX_FOLLOWED_BYTES: Final = 128 * MIB
"""Topics of all followers; one caller may take half of it, some 60,000 topics."""

ROUTE_BYTES: Final = 850
"""The cost of a followed topic beside its name."""

MAX_REQUEST_ID_CHARS: Final = 64
"""``x-request-id`` of a caller; a longer one is replaced."""

MAX_SCAN_PAGE_MESSAGES: Final = 10_000
"""``ScanRequest.page_size``; larger wishes are clamped. A page is cut by its size in any case."""

MAX_SMALL_REQUEST_BYTES: Final = MIB
"""A request of a call for which no legal one is half as large, since it has no list but topics."""

COUNTED_REQUEST_BYTES: Final = MIB
"""A larger ``PublishRequest`` has its messages counted before it is decoded, and a larger request
of a read its fields, since two bytes of it may become an object of fifty."""

MAX_READ_FIELDS: Final = 32_768
"""Fields of a read's request that is counted, besides the entries that the node's limits allow."""

MAX_LARGE_READ_BYTES: Final = 128 * MIB
"""Requests of all reads together that are large enough to be counted."""

MAX_QUERY_REQUEST_ID_BYTES: Final = 1024
"""``StoreQueryRequest.request_id``, which is sent back as it came."""

MAX_UNSTORED_MESSAGES: Final = 65_536
"""Messages that could not be stored and may be published again when they are older than
``--max-clock-drift``."""
