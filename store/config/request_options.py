"""The options of `storenode run` that limit requests and responses, whoever calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from store.config.limits import (
    LARGEST_BATCH_MESSAGES,
    LARGEST_CAUSAL_HEADS,
    LARGEST_CAUSAL_KNOWN_IDS,
    LARGEST_CAUSAL_MESSAGES,
    LARGEST_PAGE_MESSAGES,
    LARGEST_QUERY_HASHES,
    LARGEST_QUERY_TOPICS,
    LARGEST_RESPONSE_BYTES,
    LARGEST_SDS_CLAIMANTS,
    LARGEST_SDS_ENTRIES,
)
from store.domain.limits import RequestLimits
from storenode.cli.options.layers import option
from storenode.cli.options.types import size_up_to
from storenode.cli.options.units import format_size

_SECTION: Final = "Requests"
_DEFAULTS: Final = RequestLimits()


def _most(
    flag: str, default: int, largest: int, what: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return option(
        flag,
        type=click.IntRange(1, largest),
        default=default,
        metavar="N",
        show_default=True,
        section=_SECTION,
        help=what,
    )


REQUEST_OPTIONS: Final = (
    _most(
        "--max-batch-messages",
        _DEFAULTS.batch_messages,
        LARGEST_BATCH_MESSAGES,
        "Messages in one publishing request.",
    ),
    option(
        "--max-response-size",
        type=size_up_to(LARGEST_RESPONSE_BYTES),
        default=format_size(_DEFAULTS.response_bytes),
        show_default=True,
        section=_SECTION,
        help="Size of one response; pages are kept below it. gRPC clients accept 4MiB by default.",
    ),
    _most(
        "--default-page-limit",
        _DEFAULTS.default_page_messages,
        LARGEST_PAGE_MESSAGES,
        "Messages of a page of Query that asks for no number.",
    ),
    _most(
        "--max-page-limit",
        _DEFAULTS.page_messages,
        LARGEST_PAGE_MESSAGES,
        "Messages of a page of Query, whatever it asks for.",
    ),
    _most(
        "--max-query-hashes",
        _DEFAULTS.query_hashes,
        LARGEST_QUERY_HASHES,
        "Message hashes in a Query.",
    ),
    _most(
        "--max-query-topics",
        _DEFAULTS.query_topics,
        LARGEST_QUERY_TOPICS,
        "Content topics in a Query, and in the filter of any other read.",
    ),
    _most(
        "--max-sds-entries",
        _DEFAULTS.sds_entries,
        LARGEST_SDS_ENTRIES,
        "Entries of a GetSdsMessages.",
    ),
    _most(
        "--max-sds-claimants",
        _DEFAULTS.sds_claimants,
        LARGEST_SDS_CLAIMANTS,
        "Messages returned for one SDS message ID.",
    ),
    _most(
        "--max-causal-heads",
        _DEFAULTS.causal_heads,
        LARGEST_CAUSAL_HEADS,
        "Heads of a GetCausalHistory.",
    ),
    _most(
        "--max-causal-known-ids",
        _DEFAULTS.causal_known_ids,
        LARGEST_CAUSAL_KNOWN_IDS,
        "Known IDs of a GetCausalHistory.",
    ),
    _most(
        "--max-causal-messages",
        _DEFAULTS.causal_messages,
        LARGEST_CAUSAL_MESSAGES,
        "Messages of a GetCausalHistory, whatever it asks for.",
    ),
)
