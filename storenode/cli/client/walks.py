"""Pages of SDS messages as `get` and `causal-history` print them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from storenode.cli.client.completeness import tell
from storenode.cli.client.output import Output
from storenode.cli.client.text import note, safe
from storenode.client.plain import to_plain

if TYPE_CHECKING:
    from storenode.client.types import (
        AnswerCoverage,
        CausalHistoryPage,
        HistoryEntry,
        SdsMessagesPage,
    )


async def print_pages(
    out: Output,
    pages: AsyncGenerator[SdsMessagesPage] | AsyncGenerator[CausalHistoryPage],
    truncated_note: str,
    *,
    data: bool = True,
    with_coverage: bool,
) -> set[str]:
    """Print messages and return the IDs of those that the node lacks; remarks go to standard error.

    ``truncated_note`` says what to do where the node has left messages out.
    """
    missing: list[str] = []
    truncated = False
    said: list[AnswerCoverage] = []
    async with aclosing(pages):
        async for page in pages:
            _print_page(out, page, data=data)
            missing += [entry.message_id for entry in page.missing]
            truncated |= page.truncated
            if page.HasField("coverage"):
                said.append(page.coverage)
    if truncated:
        note(truncated_note)
    if missing:
        noun = "message is" if len(missing) == 1 else "messages are"
        note(f"{len(missing)} {noun} missing: this node does not hold what is listed as missing.")
    if with_coverage:
        tell(out, said)
    return set(missing)


def _print_page(out: Output, page: SdsMessagesPage | CausalHistoryPage, *, data: bool) -> None:
    out.sds(page.messages, data=data)
    for entry in page.missing:
        _print_missing(out, entry)
    if page.truncated and out.as_json:
        out.json({"truncated": True})


def _print_missing(out: Output, entry: HistoryEntry) -> None:
    if out.as_json:
        out.json({"missing": to_plain(entry)})
    else:
        hint = f"  {entry.retrieval_hint.hex()}" if entry.HasField("retrieval_hint") else ""
        out.line(f"missing: {safe(entry.message_id)}{hint}")
