"""Bounds that hold for clients of every protocol."""

from typing import Final

MAX_IN_FLIGHT_PUBLISH_BYTES: Final = 256 * 1024 * 1024
"""Requests of all publishers together that are decoded and not yet answered."""

MAX_REQUEST_ID_CHARS: Final = 64
"""``x-request-id`` of a caller; a longer one is replaced."""

MAX_SCAN_PAGE_MESSAGES: Final = 10_000
"""``ScanRequest.page_size``; larger wishes are clamped. A page is cut by its size in any case."""
