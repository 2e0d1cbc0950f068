"""The limits of requests and responses of a node.

They hold for every caller, on every path and every page. Their defaults are those of the node's
contract, table "Limits".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from storenode.message.limits import (
    DEFAULT_PAGE_MESSAGES,
    MAX_BATCH_MESSAGES,
    MAX_CAUSAL_HEADS,
    MAX_CAUSAL_KNOWN_IDS,
    MAX_CAUSAL_MESSAGES,
    MAX_PAGE_MESSAGES,
    MAX_QUERY_CONTENT_TOPICS,
    MAX_QUERY_HASHES,
    MAX_RESPONSE_BYTES,
    MAX_SDS_CLAIMANTS,
    MAX_SDS_ENTRIES,
)

RESPONSE_RESERVE_BYTES: Final = 64 * 1024
"""What a page leaves free of a response, for the fields that are no entries."""

DEFAULT_UNSENT_BYTES: Final = 128 * 1024 * 1024
"""All answers of a node that their callers have not taken yet, with their copies in memory."""

DEFAULT_PAGE_BYTES: Final = MAX_RESPONSE_BYTES - RESPONSE_RESERVE_BYTES
"""Entries of one page, where nothing else is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How much a request may ask for, and how large a response is.

    ``page_messages`` and ``causal_messages`` clamp what a request asks for, ``sds_claimants``
    truncates an answer, ``response_bytes`` cuts it into pages; all others refuse the request.
    """

    batch_messages: int = MAX_BATCH_MESSAGES
    response_bytes: int = MAX_RESPONSE_BYTES
    default_page_messages: int = DEFAULT_PAGE_MESSAGES
    page_messages: int = MAX_PAGE_MESSAGES
    query_hashes: int = MAX_QUERY_HASHES
    query_topics: int = MAX_QUERY_CONTENT_TOPICS
    sds_entries: int = MAX_SDS_ENTRIES
    sds_claimants: int = MAX_SDS_CLAIMANTS
    causal_heads: int = MAX_CAUSAL_HEADS
    causal_known_ids: int = MAX_CAUSAL_KNOWN_IDS
    causal_messages: int = MAX_CAUSAL_MESSAGES

    @property
    def page_bytes(self) -> int:
        """Entries of one page, in bytes; an entry that is larger has a page of its own."""
        return self.response_bytes - RESPONSE_RESERVE_BYTES
