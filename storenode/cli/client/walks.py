"""Pages of SDS messages as `get` and `causal-history` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storenode.cli.client.output import Output, note
from storenode.cli.client.text import safe
from storenode.client.plain import to_plain

if TYPE_CHECKING:
    from storenode.client.types import CausalHistoryPage, HistoryEntry, SdsMessagesPage


def print_page(out: Output, page: SdsMessagesPage | CausalHistoryPage, *, data: bool = True) -> int:
    """Print the messages of a page, then what is missing; returns how many are missing."""
    for item in page.messages:
        out.sds(item, data=data)
    for entry in page.missing:
        _print_missing(out, entry)
    if page.truncated and out.as_json:
        out.json({"truncated": True})
    return len(page.missing)


def missing_note(count: int) -> None:
    """Say on standard error how many messages are missing."""
    if count:
        noun = "message is" if count == 1 else "messages are"
        note(f"{count} {noun} missing: this node does not hold what is listed as missing.")


def _print_missing(out: Output, entry: HistoryEntry) -> None:
    if out.as_json:
        out.json({"missing": to_plain(entry)})
    else:
        hint = f"  {entry.retrieval_hint.hex()}" if entry.HasField("retrieval_hint") else ""
        out.line(f"missing: {safe(entry.message_id)}{hint}")
